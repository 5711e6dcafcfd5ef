"""State-space forms of kernels, against the kernels and integrals to many digits."""

from math import factorial

import jax
import numpy as np
import pytest
from mpmath import gammainc, mp

import pgmodels as pgm
from pgmodels.kernels.state_space import incomplete_gammas

KERNELS = {
    "Matern12": pgm.Matern12(1.7, 0.8),
    "Matern32": pgm.Matern32(1.7, 0.8),
    "Matern52": pgm.Matern52(1.7, 0.8),
    "Constant": pgm.Constant(0.6),
    "White": pgm.White(0.4),
    "Linear": pgm.Linear(0.3),
    "sum": pgm.Matern32(1.7, 0.8) + pgm.Matern12(0.5, 3.0) + pgm.Linear(0.3),
    "product": pgm.Matern32(1.7, 0.8) * pgm.Matern52(0.9, 2.0),
    "product of a sum": pgm.Matern12(1.7, 0.8) * (pgm.Matern32(1.0, 2.0) + pgm.Constant(0.2)),
    "on a column": pgm.On(pgm.Matern32(1.7, [0.8]), [0]),
}
STARTS = np.array([-1.0, 0.0, 0.3, 0.3, 2.0])
STEPS = np.array([0.0, 1e-9, 1e-3, 0.7, 30.0])


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


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


@pytest.mark.parametrize("kernel", [pgm.RBF(1.0, 1.0), pgm.Linear(1.0) * pgm.Matern12(1.0, 1.0), pgm.Periodic()])
def test_kernels_without_a_form_say_what_to_use(kernel):
    with pytest.raises(ValueError, match=r"has no state-space form.*pgm.Dense"):
        kernel.to_state_space()


def test_a_lengthscale_from_the_data_is_asked_for():
    with pytest.raises(ValueError, match=r"lengthscale of Matern32 is None"):
        pgm.Matern32().to_state_space()
