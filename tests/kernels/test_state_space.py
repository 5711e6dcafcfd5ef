"""State-space forms of kernels, against the kernels and integrals to many digits."""

from math import factorial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpmath import gammainc, mp
from scipy.special import ive

import pgmodels as pgm
from pgmodels.kernels.state_space import harmonic_shares, incomplete_gammas
from pgmodels.parameters.parameter import bare_arrays
from tests.covering import some

pytestmark = pytest.mark.usefixtures("double_precision")

KERNELS = {
    "Matern12": pgm.Matern12(1.7, 0.8),
    "Matern32": pgm.Matern32(1.7, 0.8),
    "Matern52": pgm.Matern52(1.7, 0.8),
    "Constant": pgm.Constant(0.6),
    "White": pgm.White(0.4),
    "Linear": pgm.Linear(0.3),
    "Cosine": pgm.Cosine(1.7, 0.8),
    # Exact to rounding with so many harmonics.
    "Periodic": pgm.Periodic(1.7, 2.0, 3.0, harmonics=10),
    "RandomWalk": pgm.RandomWalk(0.4, start=-2.0),
    "sum": pgm.Matern32(1.7, 0.8) + pgm.Matern12(0.5, 3.0) + pgm.Linear(0.3),
    "product": pgm.Matern32(1.7, 0.8) * pgm.Matern52(0.9, 2.0),
    "product of a sum": pgm.Matern12(1.7, 0.8) * (pgm.Matern32(1.0, 2.0) + pgm.Constant(0.2)),
    "seasons that change": pgm.Periodic(0.9, 1.5, 3.0, harmonics=12) * pgm.Matern32(1.7, 0.8),
    "oscillations about a walk": pgm.Cosine(1.7, 0.8) * pgm.Matern12(0.9, 2.0) + pgm.RandomWalk(0.4, start=-2.0),
    "on a column": pgm.On(pgm.Matern32(1.7, [0.8]), [0]),
}
STARTS = np.array([-1.0, 0.0, 0.3, 0.3, 2.0])
STEPS = np.array([0.0, 1e-9, 1e-3, 0.7, 30.0])


@pytest.mark.parametrize("name", KERNELS)
def test_its_first_entry_has_the_covariance_of_the_kernel(name):
    kernel, state = KERNELS[name], KERNELS[name].to_state_space()
    P, F = state.covariance(STARTS), state.transition(STEPS)
    expected = [kernel(t[None, None], (t + dt)[None, None])[0, 0] for t, dt in zip(STARTS, STEPS, strict=True)]
    np.testing.assert_allclose((F @ P)[:, 0, 0], expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", KERNELS)
def test_it_is_markov(name):
    state = KERNELS[name].to_state_space()
    F, Q, P = state.transition(STEPS), state.noise(STEPS), state.covariance(STARTS)
    assert F.shape[1:] == (state.dimension,) * 2
    # Entries of size 1 to 5, and sums of up to 49 of them.
    np.testing.assert_allclose(F @ P @ np.swapaxes(F, 1, 2) + Q, state.covariance(STARTS + STEPS), atol=1e-13)
    # Two steps are one.
    np.testing.assert_allclose(state.transition(0.4 * STEPS) @ state.transition(0.6 * STEPS), F, atol=1e-13)


@pytest.mark.parametrize("name", some(KERNELS, "seasons that change", "oscillations about a walk"))
def test_covariances_and_their_slopes_are_those_of_the_kernel(name):
    rng = np.random.default_rng(0)
    times = np.sort(np.concatenate([rng.uniform(-1.0, 3.0, 12), [0.5, 0.5, 90.0, 90.0 + 1e-9]]))
    weights = rng.normal(size=(len(times),) * 2)

    i, j = np.tril_indices(len(times))

    def by_steps(kernel):
        state = kernel.to_state_space()
        covariances = (state.transition(times[i] - times[j]) @ state.covariance(times[j]))[:, 0, 0]
        return jnp.zeros_like(weights).at[i, j].set(covariances).at[j, i].set(covariances)

    def by_kernel(kernel):
        return kernel(times[:, None], times[:, None])

    def with_slopes(of):
        return jax.jit(lambda kernel: (of(kernel), jax.grad(lambda k: jnp.sum(weights * of(k)))(kernel)))

    kernel = bare_arrays(KERNELS[name])
    (K, slopes), (dense, expected) = with_slopes(by_steps)(kernel), with_slopes(by_kernel)(kernel)
    np.testing.assert_allclose(K, dense, rtol=0, atol=1e-12)
    assert np.linalg.eigvalsh(K).min() > -1e-13 * np.linalg.norm(K)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), slopes, expected)


@pytest.mark.parametrize("lengthscale", [0.3, 0.5, 1.0, 2.0, 30.0])
def test_harmonics_of_a_period_are_bessel_functions(lengthscale):
    kernel = pgm.Periodic(1.7, lengthscale, 0.8)
    expected = 2.0 * ive(np.arange(kernel.harmonics + 1), lengthscale**-2.0) / np.where(
        np.arange(kernel.harmonics + 1) == 0, 2.0, 1.0
    )  # fmt: skip
    np.testing.assert_allclose(harmonic_shares(lengthscale, kernel.harmonics), expected, rtol=1e-9, atol=1e-15)
    state, times = kernel.to_state_space(), np.linspace(0.0, 0.4, 50)
    omitted = float(state.omitted_variance)
    assert omitted == pytest.approx(1.7 * (1.0 - expected.sum()), abs=1e-14)
    assert 1.7 - float(state.covariance(np.zeros(1))[0, 0, 0]) == pytest.approx(omitted, abs=1e-14)
    # As few as leave out less than 1e-8, if 20 do.
    assert omitted < 1.7e-8 or kernel.harmonics == 20
    assert kernel.harmonics == 1 or omitted + 1.7 * expected[-1] >= 1.7e-8
    covariance = (state.transition(times) @ state.covariance(times))[:, 0, 0]
    # Left-out harmonics are largest at a distance of nothing.
    assert np.max(np.abs(covariance - kernel(times[:, None], np.zeros((1, 1)))[:, 0])) <= omitted + 1e-14


def test_omitted_variance_of_sums_and_products():
    few, less = pgm.Periodic(1.7, 0.7, 0.8, harmonics=2), pgm.Periodic(0.6, 0.9, 3.0, harmonics=3)
    for kernel in (few + less, few * less, few * pgm.Matern32(1.3, 2.0) + pgm.RandomWalk(0.4, start=-1.0)):
        state = kernel.to_state_space()
        at_start = kernel.diagonal(np.zeros((1, 1)))[0] - state.covariance(np.zeros(1))[0, 0, 0]
        assert float(state.omitted_variance) == pytest.approx(float(at_start), rel=1e-9)
        assert float(state.omitted_variance) > 1e-3


def test_noise_of_short_steps_keeps_all_digits():
    # d = 2: Q = sigma^2 4 lambda^3 [dt^3 / 3, dt^2 / 2; ., dt] for short steps, in units of 1 / lambda.
    dt = np.array([1e-12, 1e-8])
    (Q, scaled) = pgm.Matern32(1.7, 0.8).to_state_space().noise(dt), np.sqrt(3.0) / 0.8 * dt
    expected = 1.7 * 4.0 * np.array([[scaled**3 / 3.0, scaled**2 / 2.0], [scaled**2 / 2.0, scaled]])
    np.testing.assert_allclose(Q, np.moveaxis(expected, -1, 0), rtol=2e-7)


def test_incomplete_gammas_and_their_slopes_are_accurate():
    x = np.array([1e-6, 0.3, 1.999, 2.001, 7.0, 60.0])
    with mp.workdps(40):
        expected = [[float(gammainc(k, 0, value, regularized=True)) for k in range(1, 6)] for value in x]
    np.testing.assert_allclose(incomplete_gammas(x, 5), expected, rtol=1e-14)
    slopes = jax.jvp(lambda x: incomplete_gammas(x, 5), (x,), (np.ones_like(x),))[1]
    expected = [[np.exp(-value) * value ** (k - 1) / factorial(k - 1) for k in range(1, 6)] for value in x]
    np.testing.assert_allclose(slopes, expected, rtol=1e-13)


@pytest.mark.parametrize(
    "kernel", [pgm.RBF(1.0, 1.0), pgm.Linear(1.0) * pgm.Matern12(1.0, 1.0), pgm.RandomWalk(1.0, 0.0) * pgm.White()]
)
def test_kernels_without_a_form_say_what_to_use(kernel):
    with pytest.raises(ValueError, match=r"has no state-space form.*pgm.Dense"):
        kernel.to_state_space()


def test_a_lengthscale_from_the_data_is_asked_for():
    with pytest.raises(ValueError, match=r"lengthscale of Matern32 is None"):
        pgm.Matern32().to_state_space()
