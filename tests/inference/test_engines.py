"""Every engine on every likelihood: the rows of ``engines.py`` crossed with those of ``registry.py``."""

from itertools import product

import pytest

from tests.covering import some
from tests.engines import ENGINES
from tests.registry import EVERY

# By default each likelihood with one engine and each engine with a likelihood: those with dear laws with a cheap one.
DEFAULT = {
    "bernoulli": "linear response of gaussian_vi",
    "probit": "gaussian_vi",
    "binomial": "svi",
    "negative_binomial": "linear response of cavi",
    "sigmoid_poisson": "derived bound",
    "logistic_softmax": "cavi",
    "stick_breaking": "cavi",
    "student_t": "fit of gaussian_vi",
    "laplace": "gibbs",
    "gaussian": "fit",
    "heteroscedastic": "cavi",
    "own_softmax": "derived bound",
    "affine": "perturbative correction",
    "offset": "nuts",
    "ordered_logit": "derived bound",
    "ordered_probit": "derived bound",
    "zero_inflated": "derived bound",
    "label_noise": "cavi",
    "additive": "gaussian_vi",
    "varying": "gibbs",
    "shared": "derived bound",
    "multinomial_probit": "derived bound",
    "log_poisson": "gaussian_vi",
    "softmax": "nuts",
}
BY_NAME = {engine.name: engine for engine in ENGINES}
CELLS = [(engine.name, name) for engine, (name, case) in product(ENGINES, EVERY.items()) if engine.takes(case)]


@pytest.mark.parametrize(("engine", "case"), some(CELLS, *((engine, name) for name, engine in DEFAULT.items())))
def test_its_law_holds(engine, case):
    BY_NAME[engine].holds(EVERY[case])
