from collections.abc import Callable
from math import factorial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from mpmath import gammainc, mp
from scipy.spatial.distance import pdist
from scipy.special import ive
from sklearn.gaussian_process import kernels as sk

import pgmodels as pgm
from pgmodels.kernels.columns import Coregion, Difference, On, Sphere, Structured
from pgmodels.kernels.kernel import CallableKernel, as_kernel, check_traced, squared_distance
from pgmodels.kernels.others import ByLevel, Centred, Constant, Cosine, Linear, Periodic, RandomWalk, White
from pgmodels.kernels.state_space import harmonic_shares, incomplete_gammas
from pgmodels.kernels.stationary import RBF, Matern12, Matern32, Matern52, RationalQuadratic
from pgmodels.parameters.parameter import Fixed, bare, bare_arrays
from pgmodels.priors.hilbert import Basis, TruncatedKernel
from tests.covering import some
from tests.programs import run

pytestmark = pytest.mark.usefixtures("double_precision")

ARD = np.array([0.7, 1.3, 2.1])
RADIAL = [RBF, Matern12, Matern32, Matern52, RationalQuadratic]
ALL = [
    *(k(1.4, 0.9) for k in RADIAL), RBF(1.4, ARD), Periodic(1.4, 0.9, 2.3), Linear(ARD), Constant(0.3), White(0.2),
    RBF(1.0, 2.0) + Linear(0.5) * Constant(2.0), (RBF(1.0, 2.0) + White(0.1)) * Matern12(2.0, ARD),
    CallableKernel(lambda X, Z: (X @ Z.T) ** 2), On(Matern32(1.4, np.array([0.9, 1.7])), [2, 0]),
    Difference(RBF(1.4, 0.9), [0], [2]), On(Sphere(Matern52(1.4, 500.0)), [2, 0]),
    On(RBF(Fixed(1.0), 0.9), [0]) * On(Coregion(3, 2), [3]),
    On(Linear([0.7, 1.3], [[1.0, 0.0], [-0.6, 0.8]]), [1, 0]), On(Cosine(1.4, 2.3), [1]),
    On(RandomWalk(0.6, -20.0), [2]), On(Structured.car([[0, 1, 0], [1, 0, 1], [0, 1, 0]], 1.3, 0.4), [3]),
    Centred(RBF(1.4, 0.9), np.random.default_rng(5).normal(size=(7, 3))),
    On(ByLevel(Matern52(Fixed(1.0), Fixed(1.0)), [0.7, 1.3, 0.4], [0.9, 1.7, 2.1], 3), [0, 3]),
    TruncatedKernel(On(RBF(1.4, 0.9), [2, 0]) + Constant(0.3), Basis((5, 1, 6), ((-9.0, 9.0), None, (-7.0, 9.0)))),
]  # fmt: skip


def inputs(n=9, m=6, d=3):
    generator = np.random.default_rng(0)
    return generator.normal(1.0, 2.0, (n, d)), generator.normal(0.0, 2.0, (m, d))


def with_outputs(kernel, *arrays):
    """Inputs with the number of an output in a fourth column, for kernels that read one."""
    if not kernel.reads(4, "levels"):
        return arrays
    return tuple(np.column_stack([X, np.arange(len(X)) % 3]) for X in arrays)


@pytest.mark.parametrize(
    ("ours", "theirs", "columns"),
    [
        (RBF(1.0, 1.7), sk.RBF(1.7), 3),
        (RBF(1.0, ARD), sk.RBF(ARD), 3),
        (Matern12(1.0, 1.7), sk.Matern(1.7, nu=0.5), 3),
        (Matern32(1.0, 1.7), sk.Matern(1.7, nu=1.5), 3),
        (Matern52(1.0, ARD), sk.Matern(ARD, nu=2.5), 3),
        (RationalQuadratic(1.0, 1.7, 0.6), sk.RationalQuadratic(1.7, 0.6), 3),
        (Periodic(1.0, 1.7, 0.6), sk.ExpSineSquared(1.7, 0.6), 1),
        (Linear(1.0), sk.DotProduct(0.0), 3),
        (Constant(0.3), sk.ConstantKernel(0.3), 3),
        (RBF(2.0, 1.7), sk.ConstantKernel(2.0) * sk.RBF(1.7), 3),
        (RBF(1.0, 1.7) + Linear(4.0), sk.RBF(1.7) + 4.0 * sk.DotProduct(0.0), 3),
        (RBF(1.0, 1.7) * Matern12(1.0, 0.5), sk.RBF(1.7) * sk.Matern(0.5, nu=0.5), 3),
        (RBF(1.0, 9.0), sk.RBF(9.0), 40),
    ],
)
def test_against_scikit_learn(ours, theirs, columns):
    X, Z = inputs(d=columns)
    # Rounding: scikit-learn and this package sum the squares in different orders.
    np.testing.assert_allclose(run(ours, X, Z), theirs(X, Z), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(run(ours.diagonal, X), theirs.diag(X), rtol=1e-14)


def test_periodic_in_several_columns():
    X, Z = inputs()
    sines = np.sin(np.pi * (X[:, None] - Z[None]) / 2.3) ** 2
    np.testing.assert_allclose(
        run(Periodic(1.4, ARD, 2.3), X, Z), 1.4 * np.exp(-2 * (sines / ARD**2).sum(-1)), rtol=1e-12
    )


@pytest.mark.parametrize("kernel", ALL, ids=repr)
def test_symmetric_positive_semidefinite_and_consistent_with_its_diagonal(kernel):
    (X,) = with_outputs(kernel, inputs(n=25)[0])
    K = np.asarray(run(kernel, X, X))
    # Differences of numbers cancel in entries.
    np.testing.assert_allclose(K, K.T, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(run(kernel.diagonal, X), np.diag(K), rtol=1e-12)
    assert np.linalg.eigvalsh(K).min() > -1e-12 * np.linalg.norm(K, 2)


@pytest.mark.parametrize("kernel", ALL, ids=repr)
def test_gradients_against_finite_differences(kernel):
    X, Z = inputs()
    X[1] = X[0]
    Z[2] = X[0]
    X, Z = with_outputs(kernel, X, Z)
    weights = np.random.default_rng(1).normal(size=(9, 6))
    flat, unravel = jax.flatten_util.ravel_pytree(kernel)
    if not flat.size:
        return

    @jax.jit
    def objective(values):
        return jnp.sum(weights * unravel(values)(X, Z))

    gradient, flat = jax.jit(jax.grad(objective))(flat), np.asarray(flat)
    step = 1e-6
    differences = [(objective(flat + step * e) - objective(flat - step * e)) / (2 * step) for e in np.eye(flat.size)]
    # Central differences: rounding 1e-16/step and truncation step² leave about nine digits.
    np.testing.assert_allclose(gradient, np.array(differences), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("kernel", [RBF(1.0, ARD), Matern32(1.0, ARD), Matern52(1.0, 0.8)], ids=repr)
def test_gradients_in_the_inputs(kernel):
    X, Z = inputs()

    @jax.jit
    def objective(Z):
        return jnp.sum(jnp.cos(jnp.arange(6.0)) * kernel(X, Z))

    gradient = np.asarray(jax.jit(jax.grad(objective))(Z))
    for i, j in [(0, 0), (3, 2)]:
        step = np.zeros_like(Z)
        step[i, j] = 1e-6
        assert gradient[i, j] == pytest.approx(float(objective(Z + step) - objective(Z - step)) / 2e-6, abs=1e-8)


@pytest.mark.parametrize("kernel", [RBF(1.5, ARD), Matern32(1.5, ARD), RBF(1.5, 0.8)], ids=repr)
def test_gradients_far_from_the_origin(kernel):
    """Those in the hyperparameters, and in the inputs, go by differences, as kernels do."""
    X, Z = inputs()
    # Shifted exactly.
    X, Z = np.round(X * 2**20) / 2**20, np.round(Z * 2**20) / 2**20
    weights = np.random.default_rng(1).normal(size=(9, 6))

    @jax.jit
    def slopes(kernel, X, Z):
        return jax.grad(lambda kernel, Z: jnp.sum(weights * kernel(X, Z)), argnums=(0, 1))(kernel, Z)

    near, far = slopes(kernel, X, Z), slopes(kernel, X + 2.0**24, Z + 2.0**24)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-13), near, far)
    K = np.asarray(jax.jit(lambda X: kernel(X, X))(X + 2.0**24))
    np.testing.assert_allclose(K, K.T, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kernel", [k(1.5, ARD) for k in RADIAL], ids=repr)
def test_duplicates_have_full_covariance_and_finite_gradients(kernel):
    # Far from the origin, where |x|² + |z|² - 2 x·z would cancel.
    X = np.full((4, 3), 1e6 / 3) + np.array([[0.0], [0.0], [1e-4], [0.0]])
    assert np.all(np.asarray(run(kernel, X, X))[0, [0, 1, 3]] == 1.5)
    gradients = jax.jit(jax.grad(lambda k: jnp.sum(k(X, X))))(kernel)
    assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradients))


def test_white_noise_is_shared_by_duplicates():
    X = np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 3.0]])
    np.testing.assert_array_equal(White(0.5)(X, X), 0.5 * np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]]))


def test_values_do_not_recompile():
    traces = []

    @jax.jit
    def gram(kernel, X):
        traces.append(kernel)
        return kernel(X, X)

    X, _ = inputs()
    for lengthscale in (0.5, 1.0, 2.0):
        kernel = RBF(lengthscale, lengthscale) + Matern52(1.0, lengthscale * ARD)
        np.testing.assert_allclose(gram(kernel, X), kernel(X, X), rtol=1e-13)
    assert len(traces) == 1


def test_kernels_of_one_structure_are_checked_by_one_trace():
    calls = []

    def cubic(X, Z):
        calls.append(X.shape)
        return (X @ Z.T) ** 3

    for variance in (0.5, 2.0):
        check_traced(as_kernel(cubic) * Constant(variance), 2)
    # The covariances, and the diagonal by them.
    assert len(calls) == 2
    check_traced(as_kernel(cubic) * Constant(0.5), 3)
    assert len(calls) == 4


def test_a_lengthscale_of_none_is_the_median_distance():
    X, _ = inputs()
    X[1] = X[0]
    kernel = (RBF() + White(0.1)) * Matern12(1.0, 3.0)
    resolved = kernel.resolve(X)
    # The median over distinct rows.
    assert resolved.left.left.lengthscale.value == pytest.approx(np.median(pdist(X[1:])))
    assert resolved.right.lengthscale.value == 3.0
    assert resolved.resolve(X) is resolved
    for degenerate in (X[:1], np.ones((5, 2))):
        assert RBF().resolve(degenerate).lengthscale.value == 1.0
    many = np.random.default_rng(0).normal(size=(5000, 2))
    # The median distance of two standard normal points in the plane is 2 √(log 2).
    assert RBF().resolve(many).lengthscale.value == pytest.approx(2 * np.sqrt(np.log(2)), rel=0.05)
    with pytest.raises(ValueError, match=r"lengthscale of RBF is None.*resolve"):
        RBF()(X, X)


def test_priors_and_fixed_values_are_kept():
    kernel = RBF(Fixed(2.0), dist.LogNormal(0.0, 1.0))
    assert kernel.variance.fixed
    assert kernel.lengthscale.prior is not None
    assert kernel.lengthscale.value == pytest.approx(1.0)


def test_repr():
    assert repr(RBF(1.0, 2.0)) == "RBF(variance=1.0, lengthscale=2.0)"
    assert repr(RBF(Fixed(1.0))) == "RBF(variance=Fixed(1.0), lengthscale=None)"
    assert repr((Linear(ARD) + White()) * Constant(2.0)) == (
        "(Linear(variance=[0.7, 1.3, 2.1]) + White(variance=1.0)) * Constant(variance=2.0)"
    )
    assert repr(CallableKernel(squared_distance)) == "CallableKernel(squared_distance)"


def test_callables_as_kernels():
    X, Z = inputs()

    def quadratic(X, Z):
        return (X @ Z.T) ** 2

    kernel = as_kernel(quadratic)
    np.testing.assert_array_equal(kernel(X, Z), (X @ Z.T) ** 2)
    np.testing.assert_allclose(kernel.diagonal(X), np.sum(X**2, 1) ** 2)
    assert as_kernel(kernel) is kernel
    np.testing.assert_allclose(
        jax.jit(lambda k: k(X, Z))(RBF(1.0, 1.0) + quadratic), RBF(1.0, 1.0)(X, Z) + kernel(X, Z)
    )
    partial = as_kernel(jax.tree_util.Partial(lambda a, X, Z: a * X @ Z.T, 3.0))
    np.testing.assert_allclose(jax.jit(lambda k: k(X, Z))(partial), 3.0 * X @ Z.T)
    with pytest.raises(ValueError, match=r"returned shape \(9,\).*expected \(9, 6\)"):
        as_kernel(lambda X, Z: X[:, 0])(X, Z)
    with pytest.raises(ValueError, match="callable"):
        as_kernel(2.0)
    with pytest.raises(ValueError, match=r"Did you mean RBF\(\)"):
        as_kernel(RBF)


class Warped(eqx.Module):
    """A user's module with a function among its leaves."""

    warp: Callable
    weight: float

    def __call__(self, X, Z):
        return self.weight * self.warp(X) @ self.warp(Z).T


def test_a_callable_may_hold_functions_and_numbers():
    X, Z = inputs()
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(Warped(jnp.tanh, 3.0)))
    np.testing.assert_allclose(
        jax.jit(lambda m: m.gps[0].kernel(X, Z))(bare(model)), 3.0 * np.tanh(X) @ np.tanh(Z).T, rtol=1e-12
    )
    factor = model.prior(X, traced=True).groups[0].factor
    # Of rank 3, so that the root takes some 1e-8 of the variance as jitter.
    np.testing.assert_allclose(factor.T @ factor, 3.0 * np.tanh(X) @ np.tanh(X).T, rtol=1e-6, atol=1e-6)


def test_errors_name_the_parameter():
    with pytest.raises(ValueError, match="variance of RBF must be positive"):
        RBF(-1.0)
    with pytest.raises(ValueError, match=r"variance of RBF must be one number; got an array of shape \(3,\)"):
        RBF(ARD)
    with pytest.raises(ValueError, match=r"lengthscale of Matern12 has shape \(3,\), but X has 2 column"):
        (RBF(1.0, 1.0) + Matern12(1.0, ARD)).check(2)
    with pytest.raises(ValueError, match=r"lengthscale of RBF has shape \(1, 2\)"):
        RBF(1.0, np.ones((1, 2))).check(2)
    with pytest.raises(ValueError, match="variance of Linear has shape"):
        Linear(ARD).check(1)
    (RBF(1.0, ARD) + White() * RBF()).check(3)


def test_a_cosine_is_the_covariance_of_a_wave_of_random_phase():
    X, Z = inputs(d=1)
    a, b = (2.0 * np.pi * A / 2.3 for A in (X, Z))
    expected = 1.4 * (np.cos(a) * np.cos(b).T + np.sin(a) * np.sin(b).T)
    np.testing.assert_allclose(Cosine(1.4, 2.3)(X, Z), expected, rtol=0, atol=1e-14)
    with pytest.raises(ValueError, match="Cosine reads one column; got 3"):
        Cosine().check(3)


def test_a_random_walk_sums_independent_steps():
    # f = L e has independent steps of variance 0.6 a unit.
    x = np.array([2.0, 2.5, 2.5, 7.0, 7.25])
    L = np.tril(np.ones((5, 5))) * np.sqrt(0.6 * np.diff(x, prepend=1.0))
    np.testing.assert_allclose(RandomWalk(0.6, 1.0)(x[:, None], x[:, None]), L @ L.T, rtol=1e-14)
    X = np.array([[4.0], [3.0]])
    resolved = RandomWalk(0.6).resolve(X)
    assert resolved.start.value == 3.0
    assert resolved.start.fixed
    assert resolved.resolve(X - 1.0) is resolved
    with pytest.raises(ValueError, match=r"start of RandomWalk is None.*resolve"):
        RandomWalk()(X, X)
    with pytest.raises(ValueError, match=r"X_new is 2 in row 1, before the start of RandomWalk, 3.*start="):
        On(resolved, [0]).check_values(X - 1.0, "X_new")
    with pytest.raises(ValueError, match="RandomWalk reads one column; got 3"):
        RandomWalk().check(3)


def test_limits_are_those_of_all_components():
    walk = RandomWalk(0.6, 1.0)
    kernel = On(RandomWalk(0.6, -2.0) + RBF() * walk, [2]) + On(Sphere(RBF()), [3, 0]) + On(RandomWalk(), [1])
    expected = [[-90.0, 90.0], [-np.inf, np.inf], [1.0, np.inf], [-360.0, 360.0]]
    np.testing.assert_array_equal(kernel.limits(4), expected)
    np.testing.assert_array_equal(Difference(walk, [0], [2]).limits(3)[:, 0], [1.0, -np.inf, 1.0])


@pytest.mark.parametrize(
    ("kernel", "rank"),
    [
        (Linear(ARD), 3),
        (On(Linear(0.5), [0]) + Constant(2.0), 2),
        (On(White(0.4), [3]) * (Constant(0.7) + On(Linear(1.3), [1])), 6),
        (On(White(0.4), [3]) + Constant(0.7) + On(Linear(1.3), [1]), 5),
        (Constant(0.5) * (On(White(0.4), [3]) + Constant(0.7) + On(Linear(1.3), [1])), 5),
        (RBF(1.4, 0.9), 40),
        (On(White(0.2), [3]) * RBF(1.0, 0.9), 40),
        (Linear(ARD) * Matern32(1.0, 0.9), 40),
    ],
)
def test_the_rank_of_the_matrix_is_within_its_bound(kernel, rank):
    X = np.column_stack([np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 3])
    X = X if "On" in repr(kernel) else X[:, :3]
    assert kernel.rank_at(X) == rank
    assert np.linalg.matrix_rank(np.asarray(run(kernel, X, X)), tol=1e-9) <= rank


# State-space forms of kernels, against the kernels and integrals to many digits.


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
def test_kernels_without_a_state_space_form_are_refused_with_a_remedy(kernel):
    with pytest.raises(ValueError, match=r"has no state-space form.*pgm.Dense"):
        kernel.to_state_space()


def test_state_space_form_needs_a_lengthscale():
    with pytest.raises(ValueError, match=r"lengthscale of Matern32 is None"):
        pgm.Matern32().to_state_space()
