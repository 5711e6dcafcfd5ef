"""Steps on some latents at a time: the tangent of the sum over all, what steps average to, and where they lead."""

import itertools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.inference import latent_subsampling
from pgmodels.inference.checkpoint_folder import EngineCheckpoint
from pgmodels.inference.latent_subsampling import LatentSample, LogSum, features, fit_log_sum, newton_update
from pgmodels.inference.objectives import objective_of
from pgmodels.inference.svi_step import (
    DataBatch,
    NaturalParameters,
    Rates,
    StochasticProblem,
    SviState,
    penalised_bound,
)
from pgmodels.numerics.iteration import initial_adam
from pgmodels.parameters.vector import trainable
from pgmodels.runtime.precision import as_array
from tests.covering import some
from tests.data.test_sources import assert_kept
from tests.inference.test_checkpoint import interrupted
from tests.programs import run

RNG = np.random.default_rng(12)
C = 4


@pgm.likelihood(num_latents=C)
def weighted(y, f, scale=pgm.Parameter(1.7, positive=True)):
    """Of y[0] and y[1] two latents, which may be one; weights and factors that differ from latent to latent."""
    c = pgm.positions(f)
    total = 0.3 + pgm.sum((1 + c) * pgm.sigmoid(2 * f - 0.5))
    return (
        scale * pgm.sigmoid(f[y[0]]) ** 2 * pgm.sigmoid(f[y[1]]) * pgm.prod(pgm.sigmoid(-f) ** (0.3 * c)) / total**1.5
    )


CASES = {
    "softmax": (pgm.LogisticSoftmax(C), np.array([0.0, 1.0, 3.0, 3.0, 1.0]), "augmented"),
    "weighted": (weighted(), np.array([[0.0, 1.0], [3.0, 3.0], [2.0, 0.0], [1.0, 1.0], [3.0, 2.0]]), "augmented"),
    "gumbel": (pgm.Softmax(C), np.array([0.0, 1.0, 3.0, 3.0, 1.0]), "gumbel"),
}
MEAN, VARIANCE = RNG.normal([0.5, -1.0, 2.0, -0.2], 1.3, (5, C)), RNG.uniform(0.1, 3.0, (5, C))


def total_of(tangent, m, v, y, parameters):
    """S of each row."""
    sums = np.exp(tangent.log_sums(m, v, y, parameters, np.arange(C)))
    return np.asarray(tangent.constant(y, parameters) + sums.sum(axis=1))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_tangent_is_below_the_bound_and_touches_it_at_the_sum(double_precision, case):
    likelihood, y, name = CASES[case]
    model = pgm.Model(likelihood, pgm.GP(pgm.RBF(), size=C))
    objective, data, latents = objective_of(model, name), (y, model.parameters), np.arange(C)
    tangent, exact = objective.tangent(), np.asarray(objective.local_bound(MEAN, VARIANCE, *data))

    def bound(scale, m=MEAN, v=VARIANCE):
        logs = jnp.log(scale)
        return jnp.sum(tangent.terms(m, v, *data, latents, logs), axis=1) + tangent.rest(*data, logs)

    sums = total_of(tangent, MEAN, VARIANCE, *data)
    # Sums of a few numbers of order one.
    np.testing.assert_allclose(bound(sums), exact, atol=1e-13)
    power = 1.5 if case == "weighted" else 1.0
    for share in (0.2, 0.9, 1.3, 4.0):
        lost = power * (1.0 / share - 1.0 + np.log(share))
        np.testing.assert_allclose(exact - bound(share * sums), lost, atol=1e-12)
    # The sites are those of the objective there, and elsewhere the gradient in (m, s).
    for ours, theirs in zip(
        tangent.sites(MEAN, VARIANCE, *data, latents, np.log(sums)),
        objective.local_sites(MEAN, VARIANCE, *data),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-13)
    h, w = tangent.sites(MEAN, VARIANCE, *data, latents, np.log(0.6 * sums))
    second, step = VARIANCE + MEAN**2, 1e-5
    for latent in range(C):
        one = step * np.eye(C)[latent]
        by_mean = [bound(0.6 * sums, m, second - m**2) for m in (MEAN + one, MEAN - one)]
        by_second = [bound(0.6 * sums, v=VARIANCE + sign * one) for sign in (1.0, -1.0)]
        # Of central differences.
        np.testing.assert_allclose(h[:, latent], (by_mean[0] - by_mean[1]) / (2 * step), atol=1e-8)
        np.testing.assert_allclose(w[:, latent], (by_second[1] - by_second[0]) / step, atol=1e-8)


@pytest.mark.parametrize("case", CASES)
def test_terms_of_some_latents_are_those_among_all(double_precision, case):
    likelihood, y, name = CASES[case]
    model = pgm.Model(likelihood, pgm.GP(pgm.RBF(), size=C))
    tangent, data = objective_of(model, name).tangent(), (y, model.parameters)
    log_scale = np.linspace(-0.7, 0.7, 5)
    every = tangent.terms(MEAN, VARIANCE, *data, np.arange(C), log_scale)
    some = np.array([3, 0])
    ours = tangent.terms(MEAN[:, some], VARIANCE[:, some], *data, some, log_scale)
    np.testing.assert_allclose(ours, every[:, some], rtol=1e-14)
    chosen, first = (np.asarray(part) for part in tangent.selected(*data))
    np.testing.assert_array_equal(chosen, y.reshape(5, -1))
    np.testing.assert_array_equal(first[:, 0], 1.0)
    np.testing.assert_array_equal(first[:, 1:], (chosen[:, 1:] != chosen[:, :1]).astype(float))
    moments = (np.take_along_axis(part, chosen, axis=1) for part in (MEAN, VARIANCE))
    at_chosen = tangent.terms(*moments, *data, chosen, log_scale)
    np.testing.assert_allclose(at_chosen, np.take_along_axis(np.asarray(every), chosen, axis=1), rtol=1e-14)


Z = np.array([[-1.0, 0.3], [0.2, -0.7], [0.9, 0.8]])
ROWS = RNG.uniform(-1.0, 1.0, (5, 2))


@pytest.mark.parametrize("case", some(CASES, "gumbel"))
def test_what_subsets_say_averages_to_what_all_latents_say(double_precision, case):
    likelihood, y, name = CASES[case]
    model = pgm.Model(likelihood, pgm.GP(pgm.RBF(1.3, 0.8), mean=-0.4, size=C, form=pgm.Inducing(Z)))
    objective = objective_of(model, name)
    unknowns, sample = trainable(model), LatentSample(objective.tangent(), 2, jax.random.key(0))
    vector, units = as_array(unknowns.start()), as_array(np.ones(len(unknowns.start())))
    # Rows that stand for seven times as many.
    num_rows = as_array(35.0)
    problem = StochasticProblem(
        objective, unknowns, model.bare(), model.prior(ROWS[:1]), (as_array(Z),), units, num_rows, False
    )
    root = np.tril(RNG.normal(size=(C, 3, 3)))
    stacked = NaturalParameters(as_array(root @ np.swapaxes(root, 1, 2)), as_array(RNG.normal(size=(C, 3))))
    each = [jax.tree.map(lambda leaf, c=c: leaf[c], stacked) for c in range(C)]
    rows, y = DataBatch(as_array(ROWS), as_array(y)), as_array(y)

    def exact(vector):
        value, (batch, moments) = penalised_bound(problem, each, vector, rows)
        return value, problem.targets(batch, moments.mean, moments.variance)

    (value, targets), slope = run(jax.value_and_grad(exact, has_aux=True), vector)
    tangent = sample.bound
    means, variances = (np.asarray(part) for part in run(problem.moments, run(problem.batch, vector, rows), each)[:2])
    sums = total_of(tangent, means, variances, y, model.parameters)
    # S0 = S is put in the place of what these features say.
    nothing = LogSum(jnp.zeros(4), jnp.eye(4))

    @jax.jit
    def of_some(vector, latents):
        def bound(vector):
            batch = problem.batch(vector, rows)
            before = jax.tree.map(lambda leaf: leaf[latents], stacked)
            sampled = latent_subsampling.sampled_marginals(sample, batch, stacked, before, nothing, latents)._replace(
                log_scale=jnp.log(sums)
            )
            both = sampled.marginals.mean, sampled.marginals.variance
            towards = latent_subsampling.targets(sample, batch, both, latents, jnp.log(sums))
            total = jnp.exp(latent_subsampling.estimated_log_sum(sample, batch, sampled, latents, sample.share))
            return latent_subsampling.estimated_bound(sample, batch, sampled, latents), (towards, total)

        return jax.value_and_grad(bound, has_aux=True)(vector)

    by_subset = [of_some(vector, jnp.array(chosen)) for chosen in itertools.combinations(range(C), 2)]
    assert np.mean([bound for (bound, _), _ in by_subset]) == pytest.approx(float(value), rel=1e-12)
    np.testing.assert_allclose(np.mean([by for _, by in by_subset], axis=0), slope, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(np.mean([total for (_, (_, total)), _ in by_subset], axis=0), sums, rtol=1e-12)
    # Of two latents, drawn half of the time, each goes all of its way: on average half of the natural gradient.
    moved = np.zeros((C, 3, 3)), np.zeros((C, 3))
    for chosen, ((_, (towards, _)), _) in zip(itertools.combinations(range(C), 2), by_subset, strict=True):
        for total, toward, now in zip(moved, towards, stacked, strict=True):
            total[list(chosen)] += np.asarray(toward - now[np.array(chosen)]) / len(by_subset)
    for place in range(2):
        full = np.stack([target[place] - q[place] for target, q in zip(targets, each, strict=True)])
        np.testing.assert_allclose(moved[place], 0.5 * full, rtol=1e-10, atol=1e-10)


def gumbel_problem(size):
    """A problem of so many classes, with two of them in a step, and q at the prior."""
    form = pgm.Inducing(Z)
    model = pgm.Model(pgm.Softmax(size), pgm.GP(pgm.RBF(30.0, 0.8), mean=-0.4, size=size, form=form))
    objective, unknowns = objective_of(model, "gumbel"), trainable(model)
    vector = as_array(unknowns.start())
    problem = StochasticProblem(
        objective, unknowns, model.bare(), model.prior(ROWS[:1]), (as_array(Z),), jnp.ones_like(vector),
        as_array(5.0), False,
    )  # fmt: skip
    q = NaturalParameters(jnp.zeros((size, 3, 3)), jnp.zeros((size, 3)))
    state = SviState((q,), (), initial_adam(vector), jnp.zeros(size), jnp.ones(()), LogSum(jnp.zeros(4), jnp.eye(4)))
    rows = DataBatch(as_array(ROWS), as_array([0.0, 1.0, 3.0, 3.0, 1.0]))
    return problem, LatentSample(objective.tangent(), 2, jax.random.key(0)), state, rows


def test_a_step_is_short_however_wrong_the_sum(double_precision):
    problem, sample, state, rows = gumbel_problem(C)
    rates, latents = Rates(*map(as_array, (1.0, 0.7, 0.0))), latent_subsampling.draw_latents(sample, jnp.zeros(()))
    wrong = state._replace(log_sum=LogSum(as_array([0.0, 0.0, 0.0, -300.0]), jnp.eye(4)))
    after, _ = run(latent_subsampling.step, problem, sample, wrong, rows, rates)
    batch = problem.batch(state.values.vector, rows)
    A = np.asarray(batch.factors[0])
    for latent in np.asarray(latents):
        precision = np.asarray(after.naturals[0].precision[latent])
        # S_c / S0 is at most e.
        assert np.linalg.eigvalsh(precision).min() > -1e-9
        assert np.linalg.eigvalsh(np.e * A @ A.T - precision).min() > -1e-9
    # The known part is that of the rows' classes, with variances of 30.
    before = jax.tree.map(lambda leaf: leaf[latents], state.naturals[0])
    sampled = latent_subsampling.sampled_marginals(sample, batch, state.naturals[0], before, wrong.log_sum, latents)
    np.testing.assert_allclose(sampled.log_scale, -0.4 - 15.0, atol=1e-6)
    assert np.all(np.isfinite(after.log_sum.weights))
    assert after.log_sum.weights[3] > -300.0


def operations_on(program, size):
    """The operations of a program with an axis of this length, by name and number of axes."""
    for equation in program.eqns:
        for part in jax.extend.core.jaxprs_in_params(equation.params):
            yield from operations_on(part, size)
        shapes = [getattr(one.aval, "shape", ()) for one in (*equation.invars, *equation.outvars)]
        yield from ((equation.primitive.name, len(shape)) for shape in shapes if size in shape)


def test_the_work_of_a_step_does_not_grow_with_the_classes(double_precision):
    size = 997
    arguments = (*gumbel_problem(size), Rates(1.0, 0.7, 0.01))
    operations = set(operations_on(jax.make_jaxpr(latent_subsampling.step)(*arguments).jaxpr, size))
    # The q of a step and of its rows are read from those of all classes, and written back.
    assert {name for name, axes in operations if axes > 1} == {"gather", "scatter"}
    # A class has a number to be drawn by, its mean and its count of steps, but no part in any loop.
    assert "scan" not in {name for name, _ in operations}


def test_the_sum_is_learned_from_estimates_of_it(double_precision):
    A = as_array(RNG.normal(size=(2, 50)))
    weights = np.array([0.7, -1.1, 0.4])
    log_sums = np.asarray(features(A)) @ weights
    # The prior N(0, 1) of the weights has the say of one row among so many.
    now = fit_log_sum(A, as_array(np.zeros(50)), as_array(1e9))
    np.testing.assert_allclose(now.weights, 0.0, atol=1e-12)

    def updated(log_sums, rate):
        ratios = log_sums - features(A) @ now.weights
        return newton_update(now, A, as_array(ratios), as_array(1e9), as_array(rate))

    for _ in range(40):
        now = updated(log_sums, 0.5)
    np.testing.assert_allclose(now.weights, weights, atol=1e-6)
    np.testing.assert_allclose(fit_log_sum(A, as_array(log_sums), as_array(1e9)).weights, weights, atol=1e-7)
    # Unbiased estimates of either half or one and a half of the sum leave it where it is, to first order.
    ups = [updated(log_sums + np.log(share), 0.1).weights for share in (0.5, 1.5)]
    np.testing.assert_allclose(np.mean(ups, axis=0), weights, atol=1e-6)
    # However large estimates are, log S0 moves by at most 1.
    np.testing.assert_allclose(updated(log_sums + 800.0, 0.1).weights, weights + np.array([0.0, 0.0, 1.0]), atol=1e-6)


# The fourth class is rare: most batches have none of it.
N = 240
X = RNG.uniform(-2.0, 2.0, (N, 2))
SHARES = np.exp(np.column_stack([2.0 * X[:, 0], 1.5 * X[:, 1] - 0.5, 1.0 - X[:, 0] * X[:, 1], np.full(N, -3.0)]))
CUMULATED = np.cumsum(SHARES / SHARES.sum(axis=1, keepdims=True), axis=1)
LABELS = np.minimum((RNG.random((N, 1)) > CUMULATED).sum(axis=1), C - 1).astype(float)
PRIOR = pgm.GP(pgm.RBF(4.0, 1.2), mean=-0.3, size=C, form=pgm.Inducing(10, "kmeans"))
MODEL, SOFTMAX = pgm.Model(pgm.LogisticSoftmax(C), PRIOR), pgm.Model(pgm.Softmax(C), PRIOR)
SAVED = {"batch_size": 40, "class_batch_size": 2}
EVERY = (pgm.ArrayRows(X, LABELS),)


def taken(model=MODEL, rows=(X, LABELS), **options):
    """What some passes of steps lead to: ordinary ones from EVERY row."""
    with pytest.warns(pgm.ConvergenceWarning):
        return pgm.svi(model, *rows, tolerance=1e-9, **options)


def assert_same(ours, theirs, tolerance=0.0):
    np.testing.assert_allclose(ours.elbo_trace, theirs.elbo_trace, rtol=tolerance)
    np.testing.assert_allclose(ours.predict_latent(X[:5]), theirs.predict_latent(X[:5]), rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "objective"), [(MODEL, "augmented"), (SOFTMAX, "gumbel")])
def test_all_latents_at_a_time_are_the_steps_of_all_latents(model, objective):
    assert 0 < np.sum(LABELS == 3.0) < 20
    options = {"objective": objective, "batch_size": 40, "max_epochs": 3}
    assert_same(taken(model, class_batch_size=C, **options), taken(model, EVERY, **options), 1e-10)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pgmodels.InducingWarning")
def test_half_of_the_latents_of_a_softmax_lead_to_its_optimum(tmp_path):
    theirs = taken(SOFTMAX, EVERY, objective="gumbel", batch_size=40, max_epochs=300)
    result = taken(SOFTMAX, objective="gumbel", max_epochs=600, **SAVED)
    assert_kept(result, X[:5], tmp_path / "result.npz")
    assert pgm.load(tmp_path / "result.npz").objective == result.objective == "gumbel"
    (mean, variance), (expected, spread) = (each.predict_latent(X) for each in (result, theirs))
    level, their_level = (each.mean(axis=1, keepdims=True) for each in (mean, expected))
    # The likelihood has no say in the level of all latents. What noise and S0 that is not the sum leave.
    assert np.mean(np.abs(mean - level - expected + their_level) / np.sqrt(spread)) < 0.125
    assert np.mean(np.abs(variance / spread - 1.0)) < 0.05
    # The tangent is below the bound by a hundredth of a nat per row, and both averages have noise.
    assert -6.0 < np.mean(result.elbo_trace[-100:]) - np.mean(theirs.elbo_trace[-100:]) < 1.0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pgmodels.InducingWarning")
def test_half_of_the_latents_at_a_time_lead_to_the_optimum(tmp_path):
    exact = pgm.cavi(MODEL, X, LABELS)
    result = taken(max_epochs=600, **SAVED)
    mean, variance = result.predict_latent(X)
    # What the noise of steps on 40 rows leaves, and S0 that is not the sum: an eighth of a deviation.
    deviation = np.sqrt(exact.variance)
    assert np.mean(np.abs(mean - exact.mean) / deviation) < 0.125
    assert np.mean(np.abs(variance / exact.variance - 1.0)) < 0.05
    # A hundred windows of 7 nats' noise.
    assert abs(np.mean(result.elbo_trace[-100:]) - exact.elbo) < 3.0
    assert_kept(result, X[:5], tmp_path / "result.npz")
    predicted = result.predict(X[:5])
    np.testing.assert_allclose(predicted.probabilities.sum(axis=1), 1.0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pgmodels.InducingWarning")
@pytest.mark.parametrize(("model", "objective"), [(MODEL, "augmented"), (SOFTMAX, "gumbel")])
def test_an_interrupted_run_is_taken_up_bit_for_bit(model, objective, tmp_path, monkeypatch):
    monkeypatch.setattr(EngineCheckpoint, "interval", 0.0)
    options = {"objective": objective, "max_epochs": 12, **SAVED}
    uninterrupted = taken(model, **options)
    with interrupted("replace", 3):
        taken(model, checkpoint=tmp_path, **options)
    assert_same(taken(model, checkpoint=tmp_path, **options), uninterrupted)
    with pytest.raises(ValueError, match="contains another run of svi, which differs in"):
        pgm.svi(model, X, LABELS, tolerance=1e-9, checkpoint=tmp_path, **options | {"class_batch_size": 3})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:svi did not converge", "ignore::pgmodels.InducingWarning")
@pytest.mark.parametrize(("model", "objective"), [(MODEL, "augmented"), (SOFTMAX, "gumbel")])
def test_values_are_learned_from_some_latents_at_a_time(model, objective):
    options = {"objective": objective, "train_hyperparameters": True}
    every = pgm.svi(model, pgm.ArrayRows(X, LABELS), batch_size=40, max_epochs=400, **options)
    some = pgm.svi(model, X, LABELS, max_epochs=800, **options, **SAVED)
    assert set(some.fit.values) == set(every.fit.values)
    initial, learned_by_all, learned_by_some = (
        pgm.vi(model, X, LABELS, objective=objective).elbo for model in (model, every.model, some.model)
    )
    # Of some 25 nats the noise of both, and of steps that have latents two at a time, leaves tenths: along the mean the
    # bound is so flat that values from several seeds are half a unit apart.
    assert learned_by_all > initial + 20.0
    assert learned_by_some == pytest.approx(learned_by_all, abs=0.6)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"class_batch_size": 0}, "class_batch_size must be a whole number >= 1"),
        ({"class_batch_size": 2.0}, "class_batch_size must be a whole number >= 1"),
        ({"class_batch_size": 5}, "class_batch_size must be at most 4, the number of latents of the model; got 5"),
        ({"rate": "adaptive"}, "class_batch_size cannot be combined with rate='adaptive'"),
        ({"weights": np.ones(N)}, "class_batch_size cannot be combined with weights"),
        ({"objective": "factorised"}, "class_batch_size cannot be combined with objective='factorised'"),
    ],
)
def test_wrong_options_are_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        pgm.svi(MODEL, X, LABELS, **{"class_batch_size": 2, **options})


@pgm.likelihood(num_latents=3)
def written_out(y, f):
    return pgm.sigmoid(f[y]) / (pgm.sigmoid(f[0]) + pgm.sigmoid(f[1]) + pgm.sigmoid(f[2]))


@pgm.likelihood(num_latents=3)
def twice(y, f):
    return pgm.sigmoid(f[y]) / pgm.sum(pgm.sigmoid(f)) / (1 + pgm.sum(pgm.sigmoid(-2 * f)))


INDUCING = pgm.Inducing(5)


@pytest.mark.parametrize(
    "likelihood", [pgm.StickBreaking(4), written_out(), twice(), pgm.HeteroscedasticGaussian(1.0), pgm.Bernoulli()]
)
def test_likelihoods_without_one_sum_over_their_latents_are_refused(likelihood):
    model = pgm.Model(likelihood, pgm.GP(pgm.RBF(), size=likelihood.num_latents, form=INDUCING))
    with pytest.raises(ValueError, match="is not one sum over its latents to a negative power"):
        pgm.svi(model, X[:5], np.zeros(5), class_batch_size=1)


@pytest.mark.parametrize(
    "gps",
    [
        [pgm.GP(pgm.RBF(), form=INDUCING) for _ in range(C)],
        pgm.GP(pgm.RBF(), size=C),
        pgm.GP(pgm.RBF(), size=C, form=pgm.Inducing("auto")),
    ],
)
def test_priors_that_latents_do_not_share_are_refused(gps):
    model = pgm.Model(pgm.LogisticSoftmax(C), gps)
    with pytest.raises(ValueError, match="class_batch_size needs one GP of size=4 with inducing"):
        pgm.svi(model, X, LABELS, class_batch_size=2)
