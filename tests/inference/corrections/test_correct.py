from functools import partial

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from pgmodels.inference.correct import correct
from pgmodels.inference.gibbs import gibbs
from pgmodels.inference.vi import cavi
from pgmodels.kernels.others import Linear
from pgmodels.kernels.stationary import RBF
from pgmodels.likelihoods.named import Bernoulli, Binomial
from pgmodels.model import GP, Model
from pgmodels.results.gaussian import CorrectionWarning
from tests.referees import rbf
from tests.registry import CASES

perturbed = partial(correct, method="perturbative")


def test_binary_formula():
    """The closed form with Var_q(ω) (Wenzel et al. 2019, A.6, with its variance mended), at data far from zero."""
    X, y = CASES["bernoulli"].data(25, seed=6)
    vi = cavi(CASES["bernoulli"].model(), X, y, tolerance=1e-13)
    fixed = perturbed(vi)
    m, v = vi.mean[:, 0], vi.variance[:, 0]
    c = np.sqrt(m**2 + v)
    V = (np.tanh(c / 2) / c - 0.5 / np.cosh(c / 2) ** 2) / (2 * c**2)
    C = np.linalg.inv(np.linalg.inv(rbf(X) + 1e-10 * np.eye(25)) + np.diag(vi.sites.precision[:, 0]))
    mean = m + C @ (v * m * V)
    variance = v + m**2 - mean**2 + 2 * m * (C @ (m * v * V)) + C**2 @ ((m**2 + v) * V)
    # The inverse of a nearly singular K loses six digits.
    np.testing.assert_allclose(fixed.mean[:, 0], mean, atol=1e-7)
    np.testing.assert_allclose(fixed.variance[:, 0], variance, atol=1e-7)


def test_nothing_to_correct_where_the_bound_is_exact():
    X, y = CASES["gaussian"].data(20, seed=6)
    vi = cavi(CASES["gaussian"].model(), X, y)
    fixed = perturbed(vi)
    # B is linear in (m, s) up to y: its Hessian is zero but for rounding.
    np.testing.assert_allclose(fixed.mean, vi.mean, atol=1e-12)
    np.testing.assert_allclose(fixed.variance, vi.variance, atol=1e-12)


@pytest.fixture(scope="module")
def beyond_reach():
    """Independent latents, and a point where they add up: there the shifts add up too, the widths only in square.

    The point is also the last row of the data, with no trials: it carries no information.
    """
    one_each = np.eye(60)
    X = np.vstack([one_each, np.ones(60)])
    y = np.array([[1.0, 1.0]] * 60 + [[0.0, 0.0]])
    return X, cavi(Model(Binomial(), GP(Linear(16.0))), X, y)


def test_nonpositive_variance_at_the_data_is_reported(beyond_reach):
    _, vi = beyond_reach
    with pytest.warns(CorrectionWarning, match=r"1 of 61 corrected variances at the data are not positive.*row 60"):
        fixed = perturbed(vi)
    assert fixed.num_nonpositive == 1
    assert fixed.variance[60, 0] < 0
    assert (fixed.variance[:60] > 0).all()


def test_nonpositive_variance_at_new_points_is_reported_and_never_predicted_with(beyond_reach):
    X, vi = beyond_reach
    with pytest.warns(CorrectionWarning):
        fixed = perturbed(vi)
    with pytest.warns(CorrectionWarning, match="1 of 1 corrected variances at X_new"):
        _, variance = fixed.predict_latent(X[60:])
    np.testing.assert_allclose(variance, fixed.variance[60:], rtol=1e-8)
    with (
        pytest.warns(CorrectionWarning),
        pytest.raises(ValueError, match=r"corrected variance is .* in row 0 of X_new"),
    ):
        fixed.predict(X[60:])


def breast_cancer():
    """200 rows and the first two columns, standardised with all rows."""
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    rows = train_test_split(np.arange(len(X)), train_size=200, random_state=0)[0]
    return X[rows, :2], y[rows].astype(float)


def errors(variance, num_samples):
    """Mean absolute errors of CAVI and of the correction against Gibbs: means, then variances."""
    X, y = breast_cancer()
    model = Model(Bernoulli(), GP(RBF(variance, 1.5)))
    vi = cavi(model, X, y)
    fixed, draws = perturbed(vi), gibbs(model, X, y, num_samples=num_samples, num_warmup=300, seed=1)
    means = [np.abs(result.mean - draws.mean).mean() for result in (vi, fixed)]
    return (*means, *(np.abs(result.variance - draws.variance).mean() for result in (vi, fixed)))


# What 20,000 Gibbs sweeps gave in an independent calculation.
KNOWN = {1.0: (0.029, 0.007, 0.067, 0.027), 4.0: (0.086, 0.040, 0.288, 0.175), 16.0: (0.202, 0.127, 0.999, 0.745)}


@pytest.mark.slow
def test_correction_on_breast_cancer():
    got = errors(4.0, num_samples=1500)
    # 6,000 draws, of which a tenth or more effective, of latents with variance about 1.5: a mean has standard error
    # 0.05 at most and a variance 0.09; averaged over 200 points, a third of that.
    np.testing.assert_allclose(got[:2], KNOWN[4.0][:2], atol=0.025)
    np.testing.assert_allclose(got[2:], KNOWN[4.0][2:], atol=0.045)
    assert got[1] < got[0]
    assert got[3] < got[2]


@pytest.mark.slow
@pytest.mark.parametrize("variance", KNOWN)
def test_correction_on_breast_cancer_in_full(variance):
    got = errors(variance, num_samples=20_000)
    print(variance, got)
    # The known figures have the Monte-Carlo error of their own 20,000 sweeps: 1 % of the prior standard deviation
    # a mean, and its square root of two times that, in units of the prior variance, a variance.
    scale = np.sqrt(variance)
    np.testing.assert_allclose(got[:2], KNOWN[variance][:2], atol=0.01 * scale)
    np.testing.assert_allclose(got[2:], KNOWN[variance][2:], atol=0.014 * variance)


def test_refuses_where_two_latents_multiply():
    X, y = CASES["heteroscedastic"].data(10, seed=2)
    with pytest.raises(ValueError, match=r"two latents of one datum multiply.*linear_response"):
        perturbed(cavi(CASES["heteroscedastic"].model(), X, y))


def test_keeps_what_is_corrected_already_and_refuses_what_is_no_approximation():
    X, y = CASES["bernoulli"].data(10, seed=2)
    fixed = perturbed(cavi(CASES["bernoulli"].model(), X, y))
    assert correct(fixed) is fixed
    with pytest.raises(ValueError, match="approximation must be the result of cavi, gaussian_vi or fit; got ndarray"):
        correct(np.zeros(3))
    with pytest.raises(ValueError, match="must be one of 'linear_response', 'perturbative', 'nested'; got 'third'"):
        correct(cavi(CASES["bernoulli"].model(), X, y), method="third")
