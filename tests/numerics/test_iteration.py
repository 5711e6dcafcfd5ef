"""Sweeps go further than they reach by themselves: sooner at the same optimum, and never down."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pgmodels.inference.cavi import CAVI
from pgmodels.inference.loop import maximise
from pgmodels.inference.problem import problem_of
from pgmodels.inference.vi import cavi
from pgmodels.numerics.iteration import Search, conjugate_gradients, empty_history, hessian
from pgmodels.priors.base import Sites
from tests.covering import some
from tests.registry import CASES

pytestmark = pytest.mark.usefixtures("double_precision")


def test_an_affine_map_is_solved_in_as_many_moves_as_it_has_dimensions():
    """Anderson's iteration is GMRES there: exact after four moves in four dimensions (Walker and Ni 2011)."""
    rng = np.random.default_rng(2)
    A, b = 0.3 * rng.normal(size=(4, 4)), rng.normal(size=4)

    def image(sites):
        return split(jnp.asarray(A) @ jnp.concatenate([part.ravel() for part in sites]) + b)

    def split(vector):
        # Coupled precisions may have any sign.
        return Sites(vector[:2].reshape(2, 1), vector[2:].reshape(2, 1, 1))

    sites = split(jnp.asarray(rng.normal(size=4)))
    memory = empty_history(sites)
    for _ in range(6):
        mapped = image(sites)
        memory = memory.after(sites, mapped)
        sites = memory.extrapolated(mapped)
    expected = np.linalg.solve(np.eye(4) - A, b)
    # The ridge of 1e-10 leaves what the plain iteration still has to do times as much; 0.3 A takes 6 steps to 1e-2.
    np.testing.assert_allclose(np.concatenate([part.ravel() for part in sites]), expected, atol=1e-6)


def test_without_a_past_it_is_the_image():
    sites = Sites(jnp.ones((3, 1)), jnp.full((3, 1), 2.0))
    mapped = Sites(jnp.full((3, 1), -1.0), jnp.full((3, 1), 0.5))
    again = empty_history(sites).after(sites, mapped).extrapolated(mapped)
    np.testing.assert_array_equal(again.potential, mapped.potential)
    np.testing.assert_array_equal(again.precision, mapped.precision)


def test_precisions_stay_positive():
    """From 1 to 0.5 to 0.1: what they tend to is below zero."""
    memory = empty_history(Sites(jnp.zeros((1, 1)), jnp.zeros((1, 1))))
    points = [Sites(jnp.ones((1, 1)), jnp.full((1, 1), w)) for w in (1.0, 0.5, 0.1)]
    for before, after in itertools.pairwise(points):
        memory = memory.after(before, after)
    extrapolated = memory.extrapolated(points[-1])
    assert float(extrapolated.precision[0, 0]) == pytest.approx(0.01)


def plain(problem, state):
    """A sweep that remembers nothing."""
    moved = CAVI.step(problem, state)
    return moved._replace(memory=empty_history(moved.sites))


# Latents of variance 16, of which q knows too much: by a factor of five, linear response says.
@pytest.mark.filterwarnings("ignore::pgmodels.CorrectionWarning")
@pytest.mark.parametrize(
    ("name", "faster"), some([("sigmoid_poisson", 3.0), ("additive", 1.5)], ("sigmoid_poisson", 3.0))
)
def test_fewer_sweeps_to_a_higher_bound(name, faster):
    case = CASES[name]
    X, y = case.data(12, seed=3, scale=2.0, shift=0.3)
    model = case.model(variance=16.0, mean=0.2)
    result = cavi(model, X, y)
    model, data = model.prepare(X, y, None)
    problem = problem_of(model.resolve(data.X), data)
    slow = maximise(plain, problem, CAVI.init(problem), 1e-9, 2000)
    assert slow.converged
    assert faster * len(result.elbo_trace) < len(slow.trace)
    # The slow one stops where an iteration gains 1e-9, long before the optimum: the fast one is above it.
    assert result.elbo > slow.trace[-1] - 1e-12 * abs(result.elbo)
    best = maximise(plain, problem, slow.state, 1e-15, 20_000)
    assert result.elbo == pytest.approx(best.trace[-1], rel=1e-9)


@pytest.mark.slow
def test_where_going_further_goes_down_the_sweep_counts():
    """A past of another problem sends it astray: the ELBO rises all the same, by the sweep, and the past is dropped."""
    case = CASES["bernoulli"]
    X, y = case.data(12, seed=3)
    model, data = case.model().prepare(X, y, None)
    problem = problem_of(model.resolve(data.X), data)
    state = CAVI.step(problem, CAVI.init(problem))
    misled = state._replace(memory=jax.tree.map(lambda part: part + 3.0, state.memory))
    memory = misled.memory.after(state.sites, problem.sites(state.mean, state.variance))
    astray = CAVI.state_of(problem, memory.extrapolated(problem.sites(state.mean, state.variance)))
    assert astray.elbo < state.elbo - 0.01

    moved, swept = CAVI.step(problem, misled), plain(problem, state)
    np.testing.assert_allclose(moved.elbo, swept.elbo, rtol=1e-14)
    np.testing.assert_allclose(moved.sites.precision, swept.sites.precision, rtol=1e-14)
    assert not np.any(moved.memory.moves)


# Conjugate gradients, Hessians by finite differences and searches against closed forms.


RNG = np.random.default_rng(0)
ROOT = RNG.normal(size=(6, 6))
M, B = ROOT @ ROOT.T + np.eye(6), RNG.normal(size=6)


def solved(matrix, Q):
    product = lambda direction, raw: matrix @ direction  # noqa: E731
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, conjugate_gradients(product, jnp.asarray(B), lambda r: Q @ r, 1e-10, 50))


@pytest.mark.parametrize("Q", [np.eye(6), np.diag(1.0 / np.diag(M))], ids=["plain", "preconditioned"])
def test_conjugate_gradients_solve(Q):
    solution = solved(M, Q)
    np.testing.assert_allclose(solution.x, np.linalg.solve(M, B), rtol=1e-8)
    assert solution.positive
    assert solution.residual < 1e-10
    assert solution.num_products <= 8


def test_what_is_not_positive_definite_ends_them():
    solution = solved(-M, np.eye(6))
    assert not solution.positive
    assert solution.num_products == 1
    np.testing.assert_array_equal(solution.x, 0.0)


@pytest.mark.parametrize("central", [False, True])
def test_the_hessian_of_a_quadratic_is_exact(central):
    np.testing.assert_allclose(hessian(lambda x: M @ x - B, B, central=central), M, rtol=1e-9, atol=1e-9)


class Quadratic(NamedTuple):
    """x^T M x / 2 - B^T x with its gradient."""

    value: float
    slope: np.ndarray


def quadratic(x, best):
    return Quadratic(0.5 * x @ M @ x - B @ x, M @ x - B) if x[0] < 40.0 else None


def test_a_search_ends_at_the_minimum_within_the_box():
    units, box = np.geomspace(0.5, 4.0, 6), np.stack([np.full(6, -9.0), np.full(6, 9.0)])
    free = Search(quadratic, np.ones(6), units, 50.0 * box)
    assert free.converge(200, 1e-14)
    np.testing.assert_allclose(free.x, np.linalg.solve(M, B), atol=1e-5)
    by_curvature = Search(quadratic, np.ones(6), np.ones(6), 50.0 * box)
    inverse = np.linalg.inv(M)
    by_curvature.bfgs(0.5 * (inverse + inverse.T), 3)
    np.testing.assert_allclose(by_curvature.x, free.x, atol=1e-5)
    # At the lower limit of the first coordinate, the minimum in the others.
    box[0, 0] = free.x[0] + 1.0
    bounded = Search(quadratic, box[0] + 2.0, units, box)
    assert bounded.converge(200, 1e-14)
    np.testing.assert_allclose(bounded.x[0], box[0, 0])
    np.testing.assert_allclose(bounded.point.slope[1:], 0.0, atol=1e-4)
    assert bounded.point.slope[0] > 0.0


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_a_search_has_no_length_of_its_own(scale):
    """Coordinates of any size: locations of y, or inducing inputs, in small or large units."""
    reach = 50.0 * scale

    def scaled(x, best):
        value, slope = quadratic(x / scale, best)
        return Quadratic(value, slope / scale)

    search = Search(scaled, np.ones(6) * scale, np.full(6, scale), np.stack([np.full(6, -reach), np.full(6, reach)]))
    assert search.converge(200, 1e-14)
    np.testing.assert_allclose(search.x / scale, np.linalg.solve(M, B), atol=1e-5)


def test_outside_the_box_and_where_nothing_is_finite_a_search_is_sent_back():
    search = Search(quadratic, np.zeros(6), np.ones(6), np.stack([np.full(6, -1.0), np.full(6, 99.0)]))
    for x in (-2.0 * np.ones(6), 50.0 * np.ones(6)):
        value, slope = search(x)
        assert value > search.point.value
        assert slope @ x > 0.0
        assert search.left_box
    assert search.num_evaluations == 2
    with pytest.raises(ValueError, match="not finite at the start of the search"):
        _ = Search(quadratic, 50.0 * np.ones(6), np.ones(6), np.zeros((2, 6))).point
