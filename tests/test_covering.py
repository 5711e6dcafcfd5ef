"""The default tests meet everything that the package lists: a newcomer is in one of them, or these fail."""

import inspect
from dataclasses import fields
from importlib import import_module

import pytest

import pgmodels as pgm
from pgmodels.augmentation.derive import derive_formula
from pgmodels.augmentation.rules import RULES
from pgmodels.cli import NAMED
from pgmodels.inference.gibbs_schedule import MOVES
from pgmodels.kernels.kernel import Kernel
from pgmodels.priors.base import LatentPrior
from pgmodels.priors.representation import Representation
from tests.augmentation import test_verify
from tests.covering import default_rows, some
from tests.engines import ENGINES
from tests.forms import FORMS
from tests.inference import test_engines, test_moves
from tests.kernels import test_kernels
from tests.priors import test_representations as test_forms
from tests.registry import EVERY
from tests.rules import FORMULAS
from tests.statistical.geweke import KERNELS

# Engines by their laws in tests/engines.py, and those with a separate default test.
LAWS = {
    pgm.cavi: "cavi",
    pgm.correct: "linear response of cavi",
    pgm.fit: "fit",
    pgm.gaussian_vi: "gaussian_vi",
    pgm.gibbs: "gibbs",
    pgm.nuts: "nuts",
    pgm.svi: "svi",
}
ELSEWHERE = {
    pgm.batch: "inference.test_update.test_each_set_of_a_batch_is_that_of_the_engine_alone",
    pgm.GibbsKernel: "inference.test_nuts.test_chains_of_every_method_have_the_rows_and_the_means_of_gibbs_and_go_on",
    pgm.gibbs_steps: "interop.test_other_samplers.test_gibbs_steps_in_a_scan_are_draws_of_the_posterior",
    pgm.integrate: "inference.test_integrate.test_hyperparameters_of_a_regression_are_those_of_quadrature",
    pgm.log_evidence: "inference.test_integrate.test_labels_against_quadrature",
    pgm.numpyro_bound: "interop.test_other_samplers.test_the_bound_is_the_elbo_with_its_gradient",
    pgm.marginals: "inference.test_nested.test_a_contrast_and_a_mean_are_those_of_quadrature",
    pgm.update: "inference.test_update.test_a_gaussian_likelihood_is_conditioned_on_exactly",
    pgm.vi: "objectives.test_extension_objective.test_vi_maximises_it_with_negative_precisions",
    pgm.prior_predictive: "inference.test_prior_predictive.test_values_with_priors_are_drawn_with_what_depends_on_them",
}


def test_every_engine():
    exported = [getattr(pgm, name) for name in pgm.__all__]
    of_inference = {part for part in exported if getattr(part, "__module__", "").startswith("pgmodels.inference")}
    # Warnings and what is returned are of inference too.
    others = {
        pgm.Evidence,
        pgm.IterationInfo,
        *(part for part in of_inference if inspect.isclass(part) and issubclass(part, Exception)),
    }
    assert of_inference - others == {*LAWS, *ELSEWHERE}
    met = {engine for engine, _ in default_rows(test_engines.test_its_law_holds)}
    assert met == {engine.name for engine in ENGINES} >= set(LAWS.values())
    for place in ELSEWHERE.values():
        module, test = place.rsplit(".", 1)
        marks = {mark.name for mark in getattr(getattr(import_module(f"tests.{module}"), test), "pytestmark", ())}
        assert "slow" not in marks, place


def test_every_likelihood():
    met = {case for _, case in default_rows(test_engines.test_its_law_holds)}
    assert met == set(EVERY)
    assert {EVERY[name].likelihood().name for name in met} >= set(NAMED)


def test_every_form_of_a_prior():
    met = [FORMS[name] for (name,) in default_rows(test_forms.test_posterior)]
    assert {type(case.form) for case in met} >= concrete(Representation)
    assert {case.kind for case in met} >= concrete(LatentPrior)


def test_every_rule():
    formulas = [FORMULAS[name] for (name,) in default_rows(test_verify.test_passes)]
    assert {type(rule) for row in formulas for rule in derive_formula(row.formula, row.size).rules} >= set(RULES)


def test_every_move():
    met = {kernel for *_, kernel in default_rows(test_moves.test_keeps_the_joint_law)}
    assert {type(row.move) for row in KERNELS if row.name in met} >= set(map(type, MOVES))


def test_every_kernel():
    met = {
        type(part)
        for test in (test_kernels.test_gradients_against_finite_differences,)
        for (kernel,) in default_rows(test)
        for part in components(kernel)
    }
    assert met >= concrete(Kernel)


def components(kernel):
    yield kernel
    for field in fields(kernel):
        if isinstance(part := getattr(kernel, field.name), Kernel):
            yield from components(part)


def concrete(base):
    """The package's own subclasses that are not abstract."""
    below = {kind for child in base.__subclasses__() for kind in {child, *concrete(child)}}
    return {kind for kind in below if kind.__module__.startswith("pgmodels.") and not inspect.isabstract(kind)}


def test_a_default_that_is_no_row_is_refused():
    assert [bool(row.marks) for row in some(["a", "b"], "b")] == [True, False]
    with pytest.raises(ValueError, match=r"got \['c'\]"):
        some(["a", "b"], "c")
