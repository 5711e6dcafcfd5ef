"""Every function that reads data x every form of the same data: the numbers are those of the plain form."""

from decimal import Decimal
from functools import cache
from itertools import product

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import polars as pl
import pytest

import pgmodels as pgm
from tests.covering import some

N = 10
RNG = np.random.default_rng(11)
# Numbers that every type has: whole ones, and quarters.
DATA = pd.DataFrame(
    {
        "a": RNG.integers(0, 4, N).astype(float),
        "b": RNG.integers(-8, 8, N) / 4.0,
        "g": RNG.choice(["u", "v", "w"], N).astype(object),
        "y": np.arange(N) % 2,
    }
)
MODEL = pgm.Model(
    pgm.Bernoulli(), pgm.GP(pgm.On(pgm.RBF(pgm.Fixed(1.5), 1.2), ["a", "b"]) + pgm.On(pgm.White(0.7), ["g"]))
).fixed()
SAMPLED = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.On(pgm.RBF(dist.LogNormal(0.0, 0.3), 1.0), ["a", "b"])))
FORMS = {
    "whole numbers": lambda frame: frame.astype({"a": "int8"}),
    "single precision": lambda frame: frame.astype({"a": "f4", "b": "f4"}),
    "categories": lambda frame: frame.astype({"g": "category"}),
    "nullable": lambda frame: frame.astype({"a": "Int64", "b": "Float64", "y": "Int64"}),
    "strings": lambda frame: frame.astype({"g": "string"}),
    "Arrow": lambda frame: frame.convert_dtypes(dtype_backend="pyarrow"),
    "objects": lambda frame: frame.astype(object),
    "decimals": lambda frame: frame.assign(b=[Decimal(str(value)) for value in frame["b"]]),
    "truth": lambda frame: frame.assign(y=frame["y"] > 0),
    "another index": lambda frame: frame.set_index(np.arange(N)[::-1] + 100),
    "two indices": lambda frame: frame.set_index(pd.MultiIndex.from_arrays([list("abcde") * 2, range(N)])),
    "other columns first": lambda frame: frame[["y", "g", "b", "a"]],
    "polars": pl.from_pandas,
    "pyarrow": lambda frame: pl.from_pandas(frame).to_arrow(),
}


def _X(frame, names=("a", "b", "g")):
    return frame.select(list(names)) if not isinstance(frame, pd.DataFrame) else frame[list(names)]


def _engine(engine, model=MODEL, names=("a", "b", "g"), **options):
    def call(frame, new, weights=None):
        result = engine(model, _X(frame, names), frame["y"], weights=weights, progress=False, **options)
        X_new = _X(new, names)
        return np.concatenate([*result.predict_latent(X_new), result.predict(X_new).probabilities], axis=1)

    return call


def _formula(frame, new, weights=None):
    result = pgm.formula("y ~ a + b + (1|g)", frame, family="bernoulli", weights=weights).gaussian_vi()
    return result.predictions(new)[["mean", "sd"]].to_numpy()


def _classifier(frame, new, weights=None):
    classifier = pgm.GPClassifier(pgm.RBF(1.0, 1.0), method="cavi", learn=False)
    return classifier.fit(_X(frame, "ab"), frame["y"], weights).predict_proba(_X(new, "ab"))


def _prior(frame, new, weights=None):
    return pgm.prior_predictive(MODEL, _X(frame), num_draws=5, seed=1).observations


CALLS = {
    "cavi": _engine(pgm.cavi),
    "GPClassifier": _classifier,
    "formula": _formula,
    "prior_predictive": _prior,
    "gaussian_vi": _engine(pgm.gaussian_vi),
    "fit": _engine(pgm.fit, SAMPLED, "ab", correct=False),
    "svi": _engine(pgm.svi, MODEL.with_form(pgm.Inducing(4)), max_epochs=3, seed=0),
    "gibbs": _engine(pgm.gibbs, num_samples=5, num_warmup=5, num_chains=1, seed=0),
    "nuts": _engine(pgm.nuts, num_samples=5, num_warmup=5, num_chains=1, seed=0),
    "integrate": _engine(pgm.integrate, SAMPLED, "ab", seed=0),
}
QUICK = ("cavi", "GPClassifier", "formula")


@cache
def plain(name):
    return CALLS[name](DATA, DATA)


# scikit-learn refuses whole numbers of type object as labels.
CASES = [pair for pair in product(CALLS, FORMS) if pair != ("GPClassifier", "objects")]
# By default every form with the first of the quick calls, and a third of the forms with each of the others.
DEFAULT = [
    *(("cavi", form) for form in FORMS),
    *((name, form) for number, name in enumerate(QUICK[1:]) for form in [*FORMS][number + 1 :: 3]),
]


@pytest.mark.filterwarnings("ignore::pgmodels.PgmodelsWarning")
@pytest.mark.parametrize(("name", "form"), some(CASES, *DEFAULT))
def test_another_form_of_the_data_gives_the_numbers_of_the_plain_one(name, form):
    # Draws repeat bit for bit; searches end within their tolerance.
    frame = FORMS[form](DATA)
    np.testing.assert_allclose(CALLS[name](frame, frame), plain(name), rtol=1e-7, atol=1e-9)


# Rows once, twice and not at all, of which the last have entries that nobody may read.
TIMES = np.array([1, 2, 1, 0, 1, 1, 2, 1, 0, 1])
WEIGHED = ("cavi", "GPClassifier", "formula", "gaussian_vi", "fit", "integrate")


@pytest.mark.filterwarnings("ignore::pgmodels.PgmodelsWarning")
@pytest.mark.parametrize("name", some(WEIGHED, *QUICK))
def test_whole_weights_are_repeated_rows_and_zeros_are_none(name):
    repeated = DATA.loc[DATA.index.repeat(TIMES)].reset_index(drop=True)
    # scikit-learn refuses labels that are NaN.
    nothing = 1 - DATA["y"] if name == "GPClassifier" else np.nan
    hidden = DATA.assign(b=np.where(TIMES == 0, 1e9, DATA["b"]), y=np.where(TIMES == 0, nothing, DATA["y"]))
    weighted = CALLS[name](hidden, DATA, TIMES.astype(float))
    np.testing.assert_allclose(weighted, CALLS[name](repeated, DATA), rtol=1e-5, atol=1e-6)
