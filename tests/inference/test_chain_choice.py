"""Where a latent is a Markov process by itself, and that its posterior is that of the dense form."""

import numpy as np
import pytest

import pgmodels as pgm
from pgmodels.inference.vi import FEW, with_chain

MANY = FEW + 100
TIMES = np.random.default_rng(0).uniform(0.0, MANY / 50.0, (MANY, 1))
M32, PLANE = pgm.Matern32(1.0, 2.0), np.column_stack([TIMES, TIMES])
CASES = {
    "a chain": (M32, TIMES, True),
    "sums and products": (M32 * pgm.Cosine(1.0, 0.5) + pgm.RandomWalk(0.1, 0.0) + pgm.Constant(), TIMES, True),
    "one of two columns": (pgm.On(M32, [1]), PLANE, True),
    "both columns": (M32, PLANE, False),
    "a lengthscale for each": (pgm.Matern32(1.0, [1.0, 2.0]), PLANE, False),
    "few rows": (M32, TIMES[:FEW], False),
    "few distinct times": (M32, np.floor(TIMES), False),
    "no form": (pgm.RBF(1.0, 2.0), TIMES, False),
    "harmonics": (M32 + pgm.Periodic(1.0, 30.0), TIMES, False),
    "low rank": (pgm.Linear() + pgm.Constant() + pgm.Cosine(), TIMES, False),
    "a large state": (M32 * M32 * M32 * M32 * M32 * M32, TIMES, False),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_chosen_where_exact_and_cheaper(name):
    kernel, X, is_chosen = CASES[name]
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(kernel, mean=0.3))
    expected = model.with_form(pgm.Markov()) if is_chosen else model
    assert with_chain(model, X) == expected


def test_it_is_not_chosen_over_another_form_or_for_several_latents():
    dense = pgm.Model(pgm.Bernoulli(), pgm.GP(M32, form=pgm.Dense()))
    several = pgm.Model(pgm.LogisticSoftmax(3), pgm.GP(M32, size=3))
    for model in (dense, several):
        assert with_chain(model, TIMES) is model


@pytest.mark.slow
@pytest.mark.parametrize("engine", [pgm.cavi, pgm.gaussian_vi])
def test_the_posterior_is_that_of_the_dense_form(engine):
    y = (np.sin(TIMES[:, 0]) + np.random.default_rng(1).normal(size=MANY) > 0.0).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(M32 + pgm.White(0.1), mean=0.3))
    chosen, dense = (engine(each, TIMES, y) for each in (model, model.with_form(pgm.Dense())))
    assert chosen.model.gps[0].form == pgm.Markov()
    assert chosen.elbo == pytest.approx(dense.elbo, abs=1e-8)
    new = np.linspace(-1.0, MANY / 50.0 + 3.0, 30)[:, None]
    for ours, theirs in (
        ((chosen.mean, chosen.variance), (dense.mean, dense.variance)),
        (chosen.predict_latent(new), dense.predict_latent(new)),
    ):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-8)


@pytest.mark.slow
def test_fit_keeps_what_the_default_form_allows():
    y = (np.sin(TIMES[:, 0]) > np.random.default_rng(1).normal(size=MANY)).astype(float)
    model = pgm.Model(pgm.Bernoulli(), pgm.GP(pgm.Matern32()))
    result = pgm.fit(model, TIMES, y, progress=False)
    assert result.model.gps[0].form == pgm.Markov()
    # No correction by itself, after which the latents could not be drawn jointly.
    assert "leaves no joint density to draw from" in result.fit.correction
    assert result.draw_latents(TIMES[:5], 3).shape == (3, 5, 1)
    asked = pgm.fit(model.with_form(pgm.Markov()), TIMES, y, progress=False)
    assert asked.fit.correction == "by linear response"
    assert asked.elbo == pytest.approx(result.elbo, abs=1e-6)
