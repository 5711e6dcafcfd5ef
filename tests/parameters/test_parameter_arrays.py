"""Parameters of several numbers: cutpoints in order, weights of a simplex, one dispersion a group."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import stats
from scipy.special import expit

import pgmodels as pgm
from pgmodels.likelihoods.likelihood import log_density
from pgmodels.likelihoods.sampling import is_normalised
from pgmodels.parameters.vector import trainable, with_priors

RNG = np.random.default_rng(5)
X = RNG.uniform(-2.0, 2.0, (24, 1))
F = RNG.normal(0.3, 1.2, (24, 1))


@pgm.likelihood(support=pgm.Classes(3))
def ordered(y, f, cuts=pgm.Parameter([-1.0, 0.8], constraint=constraints.ordered_vector)):
    below = [0, *(pgm.sigmoid(cut - f) for cut in cuts), 1]
    return pgm.sum((below[k + 1] - below[k]) * (y == k) for k in range(3))


@pgm.likelihood(support=pgm.Given(pgm.Counts(), pgm.Binary()))
def grouped(y, f, dispersion=pgm.Parameter([1.0, 6.0], positive=True)):
    r = dispersion[y[1]]
    ways = pgm.gamma(y[0] + r) / (pgm.gamma(r) * pgm.gamma(y[0] + 1))
    return ways * pgm.sigmoid(f) ** y[0] * pgm.sigmoid(-f) ** r


@pgm.likelihood(support=pgm.Binary())
def noisy(y, f, share=pgm.Parameter([0.9, 0.06, 0.04], constraint=constraints.simplex)):
    return share[0] * pgm.sigmoid(f) ** y * pgm.sigmoid(-f) ** (1 - y) + share[1] * y + share[2] * (1 - y)


GRADES = np.searchsorted([-0.5, 0.9], np.sin(1.5 * X[:, 0]) * 2 + RNG.logistic(size=24)).astype(float)
GROUP = (np.arange(24) % 2).astype(float)
COUNTS = np.column_stack([RNG.poisson(RNG.gamma(np.where(GROUP, 9.0, 0.7), np.exp(0.5))), GROUP])
LABELS = (GRADES > 0).astype(float)
GP = pgm.GP(pgm.RBF(pgm.Fixed(1.5), pgm.Fixed(1.0)))


def by_cuts(f, cuts):
    """The probabilities of the grades, (..., 3)."""
    below = expit(np.asarray(cuts) - f)
    return np.diff(np.concatenate([np.zeros_like(f), below, np.ones_like(f)], axis=-1), axis=-1)


def test_densities_read_their_entries():
    rows = np.arange(24)
    expected = np.log(by_cuts(F, [-1.0, 0.8])[rows, GRADES.astype(int)])
    np.testing.assert_allclose(log_density(ordered(), GRADES, F), expected, rtol=1e-12)
    expected = stats.nbinom.logpmf(COUNTS[:, 0], np.where(GROUP, 6.0, 1.0), expit(-F[:, 0]))
    np.testing.assert_allclose(log_density(grouped(), COUNTS, F), expected, rtol=1e-11)
    draws = np.array([[[2.0, 3.0]], [[0.5, 4.0]]])
    log_densities = log_density(grouped().with_values({"dispersion": draws}), COUNTS, np.stack([F, F + 1]))
    for one, r, f in zip(log_densities, draws[:, 0], (F, F + 1), strict=True):
        expected = stats.nbinom.logpmf(COUNTS[:, 0], r[GROUP.astype(int)], expit(-f[:, 0]))
        np.testing.assert_allclose(one, expected, rtol=1e-11)


@pytest.mark.parametrize("family", [ordered, grouped, noisy], ids=lambda family: family.__name__)
def test_they_are_normalised_wherever_their_constraint_lets_them_be(family):
    assert is_normalised(family(), 1, for_all_parameters=True) is True


def test_derivations_name_the_entries():
    model = pgm.Model(ordered(), GP)
    assert "(1 - exp(cuts[0] - cuts[1])) σ(cuts[1] - f) σ(f - cuts[0])" in str(pgm.derive(model))
    assert "cuts" in [str(node.label) for node in pgm.derive(model).graph.nodes]
    assert "PG(ω; y[0] + dispersion[y[1]], 0)" in str(pgm.derive(pgm.Model(grouped(), GP)))
    assert pgm.derive(pgm.Model(grouped(), GP)).verify(seed=1)


def test_the_prior_on_what_a_constraint_leaves_has_the_jacobian_of_its_transform():
    model = pgm.Model(ordered(dist.Normal(0.4, 2.0)), GP)
    with jax.enable_x64(True):
        unknowns, vector = with_priors(model), jnp.array([-0.7, 0.3])
        (cuts,) = unknowns.constrain(vector)
        np.testing.assert_allclose(cuts, [-0.7, -0.7 + np.exp(0.3)])
        _, volume = np.linalg.slogdet(jax.jacobian(lambda x: unknowns.constrain(x)[0])(vector))
        expected = stats.norm.logpdf(cuts, 0.4, 2.0).sum() + volume
        # The prior's own numbers are in single precision.
        np.testing.assert_allclose(unknowns.log_prior_unconstrained(vector), expected, rtol=1e-6)


def test_a_simplex_has_one_free_number_fewer():
    with jax.enable_x64(True):
        unknowns = trainable(pgm.Model(noisy(), GP))
        start = unknowns.start()
        assert start.shape == (2,)
        np.testing.assert_allclose(unknowns.constrain(jnp.asarray(start))[0], [0.9, 0.06, 0.04], rtol=1e-12)


FITTED = {
    "ordered": (ordered, "cuts", GRADES, [[0.05, 0.0], [0.0, 0.05]]),
    "grouped": (grouped, "dispersion", COUNTS, [[0.05, 0.0], [0.0, 0.3]]),
    "noisy": (noisy, "share", LABELS, [[-0.01, 0.01, 0.0], [-0.01, 0.0, 0.01]]),
}


# Each compiles another program: one of them runs by default.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["ordered", *(pytest.param(n, marks=pytest.mark.slow) for n in FITTED if n != "ordered")]
)
@pytest.mark.filterwarnings("ignore:.*do not determine")
def test_fit_stops_where_no_neighbour_within_the_constraint_is_better(name):
    family, parameter, y, moves = FITTED[name]
    fitted = pgm.fit(pgm.Model(family(), GP), X, y)
    fitted_parameter = fitted.model.likelihood.parameters[parameter]
    assert np.all(fitted_parameter.support(fitted_parameter.value))
    for move in moves:
        for sign in (-1.0, 1.0):
            beside = fitted_parameter.value + sign * np.array(move)
            if np.all(fitted_parameter.support(beside)):
                # Beyond the tolerance of the ascent: the optimum may lie on the simplex's edge.
                assert pgm.cavi(pgm.Model(family(beside), GP), X, y).elbo < fitted.elbo + 1e-6


@pytest.mark.slow
def test_samplers_keep_the_order_and_predictions_average_over_the_draws(tmp_path):
    model = pgm.Model(ordered(dist.Normal(0.0, 3.0)), GP)
    draws = pgm.gibbs(model, X, GRADES, num_samples=6, num_warmup=4, num_chains=2, seed=0)
    cuts = draws.hyperparameters["cuts"]
    assert cuts.shape == (2, 6, 2)
    assert (cuts[..., 0] < cuts[..., 1]).all()
    assert len(np.unique(cuts[..., 0])) == 12
    predictive = draws.predict(X[:5])
    f = predictive.nodes.at(slice(None), 0)[0]
    expected = by_cuts(f, cuts.reshape(12, 1, 2)).mean(axis=0)
    np.testing.assert_allclose(predictive.probabilities, expected, rtol=1e-10)
    assert pgm.to_arviz(draws)["posterior"]["cuts"].shape == (2, 6, 2)
    assert "cuts=Parameter([" in repr(draws.model.likelihood)
    assert pgm.load(draws.save(tmp_path / "draws.npz"), likelihood=ordered).model == draws.model
    assert pickle.loads(pickle.dumps(draws.model)) == draws.model


@pytest.mark.slow
def test_gibbs_and_nuts_agree_on_cutpoints():
    model = pgm.Model(ordered(dist.Normal(0.0, 3.0)), GP)
    sizes = {"num_samples": 2000, "num_warmup": 500, "num_chains": 2, "seed": 0}
    results = [engine(model, X, GRADES, **sizes) for engine in (pgm.gibbs, pgm.nuts)]
    one, other = (result.hyperparameters["cuts"] for result in results)
    spread = one.std(axis=(0, 1))
    # 4,000 draws each, of which some 500 count: five standard errors of a difference.
    np.testing.assert_allclose(one.mean(axis=(0, 1)), other.mean(axis=(0, 1)), atol=0.3 * spread.max())
    np.testing.assert_allclose(spread, other.std(axis=(0, 1)), rtol=0.2)


REFUSED = {
    "out of order": (lambda: ordered([1.0, -1.0]), r"cuts of ordered must satisfy OrderedVector.*got \[1.0, -1.0\]"),
    "not a simplex": (lambda: noisy([0.9, 0.3, 0.1]), "share of noisy must satisfy Simplex"),
    "no constraint": (lambda: pgm.Parameter([0.0, 1.0], constraint="ordered"), "one of numpyro.*got 'ordered'"),
    "another length of prior": (
        lambda: ordered(pgm.Parameter([0.0, 1.0], prior=dist.Normal(jnp.zeros(3), 1.0))),
        r"shape \(2,\) and its prior \(3,\)",
    ),
    "negative": (
        lambda: pgm.RBF(1.0, pgm.Parameter([0.1, 0.2], constraint=constraints.ordered_vector)),
        "lengthscale of RBF must be positive, and its constraint OrderedVector",
    ),
    "a matrix": (lambda: grouped(np.ones((2, 2))), "must be one number or a list of numbers"),
    "a group that is none": (
        lambda: pgm.Model(grouped([1.0]), GP).check(X, COUNTS),
        r"dispersion\[y\[1\]\] is an index of the 1 entries of dispersion, 0 to 0, and is out of range in row 1",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_values_outside_a_constraint_are_refused(name):
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call()


FORMULAS = {
    "beyond the end": (lambda y, f, cuts: pgm.sigmoid(cuts[2] - f), r"reads cuts\[2\], but cuts has 2 entries"),
    "by a latent": (lambda y, f, cuts: pgm.sigmoid(cuts[f]), "an index is a function of y alone"),
    "by a fraction": (lambda y, f, cuts: pgm.sigmoid(cuts[0.5] - f), "an index is a whole number"),
    "as one number": (
        lambda y, f, cuts: pgm.sigmoid(cuts - f),
        r"uses cuts as one number, but it has 2 entries.*read an entry as cuts\[0\]",
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_that_read_other_entries_are_refused(name):
    formula, message = FORMULAS[name]

    def reads(y, f, cuts=pgm.Parameter([0.5, 1.0], positive=True)):
        return formula(y, f, cuts)

    with pytest.raises(ValueError, match=message):
        pgm.Model(pgm.likelihood(reads)(), GP)
