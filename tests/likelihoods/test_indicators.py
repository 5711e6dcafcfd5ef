"""Steps and largest latents in formulas: values, notation, checks, and what engines make of their jumps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

import pgmodels as pgm
from pgmodels.inference.objectives import expected_objective
from pgmodels.likelihoods.expression import Environment
from pgmodels.likelihoods.likelihood import log_density
from pgmodels.likelihoods.printing import to_latex
from pgmodels.likelihoods.sampling import draw_observations, is_normalised
from pgmodels.runtime.precision import double_precision

ERROR = pgm.Parameter(0.07, positive=True)


@pgm.likelihood(support=pgm.Binary())
def noisy_step(y, f, error=ERROR):
    return error + (1 - 2 * error) * pgm.step((2 * y - 1) * (1.5 * f - 0.4))


@pgm.likelihood
def noisy_largest(y, f, error=ERROR):
    return (1 - error) * pgm.largest(f, y) + error / 2 * (1 - pgm.largest(f, y))


@pgm.likelihood
def multinomial(y, f, noise=pgm.Parameter(0.6, positive=True)):
    return pgm.largest(f, y, noise)


F = np.array([[0.3, -0.4, 0.1], [1.0, 1.0, -2.0], [0.5, 0.5, 0.5], [-3.0, 4.0, 1.0]])


def probabilities(likelihood, f):
    """p(y | f) of each class (classes, n)."""
    return np.exp([log_density(likelihood, np.full(len(f), float(y)), f) for y in range(f.shape[1])])


def test_a_step_is_one_half_at_zero():
    f = np.array([[-1.0], [0.0], [2.0]])
    likelihood = pgm.likelihood(lambda y, f: pgm.step(f) + 0 * y)()
    np.testing.assert_array_equal(np.exp(log_density(likelihood, np.zeros(3), f)), [0.0, 0.5, 1.0])


def test_ties_share_the_indicator_of_the_largest():
    share = np.array([[1, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1, 0]]).T
    np.testing.assert_allclose(probabilities(noisy_largest(), F), 0.93 * share + 0.035 * (1 - share), rtol=1e-14)


def test_with_noise_it_is_a_probability_of_two_differences():
    expected = np.empty((3, len(F)))
    # The differences to the others share the noise of f[y].
    covariance = 0.6 * (np.eye(2) + 1)
    for y, i in np.ndindex(expected.shape):
        others = [c for c in range(3) if c != y]
        expected[y, i] = multivariate_normal.cdf(F[i, y] - F[i, others], np.zeros(2), covariance, abseps=1e-11)
    np.testing.assert_allclose(probabilities(multinomial(), F), expected, atol=1e-9)


def test_of_two_latents_it_is_a_normal_cdf_also_far_out():
    f = np.array([[0.3, -0.4], [-30.0, 5.0]])
    exact = norm.logcdf((f[:, 0] - f[:, 1]) / np.sqrt(2 * 0.6))
    np.testing.assert_allclose(log_density(multinomial(), np.zeros(2), f), exact, rtol=1e-12)


@pytest.mark.parametrize(
    ("likelihood", "size", "text", "latex"),
    [
        (
            noisy_step,
            1,
            "error + (1 - 2 error) step((2 y - 1) (3 f / 2 - 0.4))",
            r"\mathrm{error} + (1 - 2 \, \mathrm{error}) \, "
            r"\operatorname{step}\left( (2 y - 1) \left( \frac{3 f}{2} - 0.4 \right) \right)",
        ),
        (
            noisy_largest,
            3,
            "(1 - error) largest(f, y) + error (1 - largest(f, y)) / 2",
            r"(1 - \mathrm{error}) \, \operatorname{largest}(f, y) + "
            r"\frac{\mathrm{error} \, (1 - \operatorname{largest}(f, y))}{2}",
        ),
        (multinomial, 3, "largest(f, y, noise)", r"\operatorname{largest}(f, y, \mathrm{noise})"),
    ],
    ids=["step", "largest", "noise"],
)
def test_notation_support_and_normalisation(likelihood, size, text, latex):
    formula = likelihood().formula(size)
    assert formula.text() == text
    assert to_latex(formula.notation()) == latex
    assert likelihood().support(size) == (pgm.Binary() if size == 1 else pgm.Classes(3))
    assert is_normalised(likelihood(), size, for_all_parameters=True)


def test_draws_have_these_frequencies():
    rng, f = np.random.default_rng(1), np.repeat(F[:1], 2000, axis=0)
    for likelihood in (noisy_largest(), multinomial()):
        drawn = draw_observations(likelihood, f, None, rng)
        frequencies = np.bincount(drawn.astype(int), minlength=3) / len(f)
        # Four standard errors.
        np.testing.assert_allclose(frequencies, probabilities(likelihood, F[:1])[:, 0], atol=4 * 0.5 / np.sqrt(len(f)))


def test_prior_predictive_draws():
    model = pgm.Model(noisy_largest(), pgm.GP(pgm.RBF(), size=3))
    drawn = pgm.prior_predictive(model, np.linspace(0.0, 1.0, 3)[:, None], num_draws=50, seed=0)
    assert set(np.unique(drawn.observations)) <= {0.0, 1.0, 2.0}


@pytest.mark.parametrize(
    ("formula", "size", "message"),
    [
        (lambda y, f: pgm.largest(f[0], y), 3, r"largest takes the vector of at least two latents f; got f\[0\]"),
        (lambda y, f: pgm.largest(f, y), 1, "largest takes the vector of at least two latents f; got f"),
        (lambda y, f: pgm.largest(f, 3), 3, "a position y of 0 to 2 in the latents f; got 3"),
        (lambda y, f: pgm.largest(f, 0.5), 3, "a position y of 0 to 2 in the latents f; got 1/2"),
        (lambda y, f: pgm.largest(f, f[0]), 3, r"a position y that is a number or a function of y alone; got f\[0\]"),
        (lambda y, f: pgm.largest(f, y, -1.0), 3, "noise of largest must be a variance >= 0 free of f; got -1"),
        (lambda y, f: pgm.largest(f, y, f[1]), 3, r"noise of largest must be .* got f\[1\]"),
    ],
    ids=["one", "one_latent", "out_of_range", "no_position", "latent_position", "negative", "latent_noise"],
)
def test_wrong_arguments(formula, size, message):
    with pytest.raises(ValueError, match=message):
        pgm.likelihood(formula)().formula(size)


def test_nuts_refuses_what_has_no_gradient():
    X = np.linspace(0.0, 1.0, 3)[:, None]
    y = np.array([0.0, 1.0, 0.0])
    for likelihood, size, node in ((noisy_step(), 1, r"step\("), (noisy_largest(), 2, r"largest\(f, y\)")):
        with pytest.raises(ValueError, match=f"nuts needs a gradient .* since {node}.* jumps. Use gaussian_v"):
            pgm.nuts(pgm.Model(likelihood, pgm.GP(pgm.RBF(), size=size)), X, y)


@pgm.likelihood(support=pgm.Binary())
def stairs(y, f):
    return 0.05 + 0.3 * pgm.step((2 * y - 1) * (1.5 * f - 0.4)) + 0.6 * pgm.step((2 * y - 1) * (f + 1))


@double_precision
def test_the_expected_log_density_of_steps_is_exact():
    m, v, y = np.array([0.5, -1.1, 2.0, 0.1]), np.array([0.4, 1.7, 0.01, 3.0]), np.array([1.0, 1.0, 0.0, 0.0])
    objective = expected_objective(pgm.Model(stairs(), pgm.GP(pgm.RBF())))
    assert len(objective.kinks) == 2
    bound, h, w = (
        np.asarray(part)[:4] for part in jax.jit(objective.local_bound_and_sites)(m[:, None], v[:, None], y, {})
    )
    # Constant between the ends of the steps, for y = 1 and y = 0.
    levels = np.log([[0.05, 0.65, 0.95], [0.95, 0.35, 0.05]])[(1 - y).astype(int)]
    z = (m - np.array([[-1.0], [0.4 / 1.5]])) / np.sqrt(v)
    heights = np.diff(levels, axis=1).T
    np.testing.assert_allclose(bound, levels[:, 0] + np.sum(heights * norm.cdf(z), axis=0), atol=1e-10)
    precision = np.sum(heights * norm.pdf(z) * z, axis=0) / v
    np.testing.assert_allclose(w[:, 0], precision, atol=1e-8)
    gradient = np.sum(heights * norm.pdf(z), axis=0) / np.sqrt(v)
    np.testing.assert_allclose(h[:, 0], gradient + precision * m, atol=1e-8)
    # Rows on the wrong side have negative precisions.
    assert w.min() < 0 < w.max()


@pytest.mark.parametrize(
    ("formula", "size"),
    [(lambda y, f: 0.9 * pgm.step(f[0]) * pgm.step(f[1]) + 0.05, 2), (lambda y, f: 0.9 * pgm.step(f**2 - 1) + 0.05, 1)],
    ids=["two", "square"],
)
def test_jumps_that_quadrature_cannot_follow_are_refused(formula, size):
    model = pgm.Model(pgm.likelihood(formula, support=pgm.Binary())(), pgm.GP(pgm.RBF(), size=size))
    with pytest.raises(
        ValueError, match=r"objective='expected' cannot integrate .* since step\(.*\) jumps: expected are"
    ):
        expected_objective(model)


@double_precision
def test_derivatives_of_the_noisy_one():
    likelihood, y = multinomial(), np.array([2.0])
    formula = likelihood.formula(3)

    def log_p(f, noise):
        return formula.log_evaluate(Environment(y, f[None], {"noise": noise}))[0, 0]

    f, noise, step = jnp.asarray(F[0]), jnp.asarray(0.6), 1e-4
    by_f, by_noise = jax.jit(jax.grad(log_p, argnums=(0, 1)))(f, noise)
    value = jax.jit(log_p)
    for c in range(3):
        shift = step * jnp.eye(3)[c]
        np.testing.assert_allclose(by_f[c], (value(f + shift, noise) - value(f - shift, noise)) / (2 * step), atol=1e-7)
    numerical = (value(f, noise + step) - value(f, noise - step)) / (2 * step)
    np.testing.assert_allclose(by_noise, numerical, atol=1e-7)
    # A sum of equal shifts changes nothing.
    assert abs(by_f.sum()) < 1e-9
