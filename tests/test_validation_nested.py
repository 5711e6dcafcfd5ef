"""Cases of the validation of nested marginals: their log densities are those of their likelihoods."""

import numpy as np
import pytest

from pgmodels.likelihoods.likelihood import log_density
from validation.nested import quadrature
from validation.nested.cases import CASES


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{case.name} {case.y}" for case in CASES])
def test_log_densities_are_those_of_the_likelihoods(number):
    case = CASES[number]
    f = np.random.default_rng(number).normal(size=(len(case.y), case.num_latents))
    values = log_density(case.likelihood, case.observations, f)
    expected = [case.log_density(y, latents) for y, latents in zip(case.observations, f, strict=True)]
    np.testing.assert_allclose(values, expected, rtol=2e-5, atol=2e-5)


def test_quadrature_of_a_gaussian_is_exact():
    case = next(case for case in CASES if case.name.startswith("Gaussian"))
    exact = quadrature.truth(case, 9.0)
    K = 9.0 * np.exp(-0.5 * (case.inputs - case.inputs.T) ** 2)
    S = K + 0.25 * np.eye(3)
    mean = 0.3 + K @ np.linalg.solve(S, case.observations - 0.3)
    np.testing.assert_allclose(exact.mean[:, 0], mean, atol=1e-8)
    np.testing.assert_allclose(exact.variance[:, 0], np.diag(K - K @ np.linalg.solve(S, K)), rtol=1e-7)
    residual = case.observations - 0.3
    log_evidence = -0.5 * (residual @ np.linalg.solve(S, residual) + np.linalg.slogdet(2.0 * np.pi * S)[1])
    assert exact.log_evidence == pytest.approx(log_evidence, abs=1e-8)
