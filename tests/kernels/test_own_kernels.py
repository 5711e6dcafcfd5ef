"""User-defined kernels: their fields are converted, learned and sampled by name."""

import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import pgmodels as pgm
from pgmodels.parameters.vector import trainable

RNG = np.random.default_rng(8)
X = RNG.normal(size=(30, 3))
Y = (np.sin(2.0 * X[:, 0] - X[:, 1]) + 0.3 * RNG.normal(size=30) > 0).astype(float)
REAL = np.sin(2.0 * X[:, 0] - X[:, 1])


def squared(X, Z):
    return jnp.sum((X[:, None] - Z[None]) ** 2, axis=-1)


class Own(pgm.Kernel):
    scale: pgm.Parameter
    shift: pgm.Parameter = pgm.Parameter(0.0, positive=False)

    def __call__(self, X, Z):
        return self.scale.value * jnp.exp(-0.5 * squared(X, Z)) + self.shift.value**2

    def diagonal(self, X):
        return jnp.full(len(X), self.scale.value + self.shift.value**2)


class Projected(pgm.Kernel):
    W: "pgm.Parameter"
    lengthscale: pgm.Parameter = pgm.Parameter(None)

    def __call__(self, X, Z):
        W = self.W.value
        return jnp.exp(-0.5 * squared(X @ W.T, Z @ W.T) / self.lengthscale.value**2)

    def diagonal(self, X):
        return jnp.ones(len(X))


W = np.array([[0.8, -0.3, 0.1], [0.2, 0.5, -0.4]])


def model_of(kernel, likelihood=None):
    return pgm.Model(likelihood or pgm.Bernoulli(), pgm.GP(kernel))


def test_field_values_are_converted_to_parameters():
    assert Own(2).scale == pgm.RBF(2.0).variance
    assert Own(pgm.Fixed(2.0)).scale.fixed
    assert Own(pgm.Parameter(2.0, prior=dist.Gamma(2.0, 1.0))).scale.prior is not None
    kernel = Own(dist.LogNormal(1.0, 0.5), shift=-0.3)
    assert kernel.scale.value == pytest.approx(np.e, rel=1e-6)
    assert (kernel.shift.value, kernel.shift.positive) == (-0.3, False)
    assert Own(1.0).shift.value == 0.0
    assert str(kernel) == "Own(scale=LogNormal(1.0, 0.5), shift=-0.3)"
    assert Projected(dist.Normal(0.0, 1.0).expand([2, 3])).W.value.shape == (2, 3)
    assert Projected(pgm.Fixed(W)).W.fixed
    assert Projected(pgm.Parameter(W, positive=False)).resolve(X).lengthscale.value > 1.0
    assert pickle.loads(pickle.dumps(kernel)) == kernel


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Own(-1.0), "scale of Own must be positive"),
        (lambda: Own("wide"), "scale of Own must be a number"),
        (lambda: Own(None), "scale of Own is missing"),
        (lambda: Own(np.nan), "scale of Own must be finite"),
        (lambda: Own(1.0, shift=np.inf), "shift of Own must be finite"),
        (lambda: Own(pgm.Parameter(1.0, prior=dist.Normal())), "scale of Own must be positive, but its prior Normal"),
        (lambda: Own(dist.Poisson(2.0)), "the prior of scale of Own is Poisson, a discrete"),
        (lambda: Own(pgm.Parameter(2.0, constraint=constraints.interval(3.0, 4.0))), "scale of Own must satisfy"),
        (lambda: Projected(dist.Normal(0.0, 1.0).expand([2, 4])), None),
    ],
)
def test_invalid_field_values_are_refused_by_name(make, words):
    if words is not None:
        with pytest.raises(ValueError, match=words):
            make()
        return
    with pytest.raises(ValueError, match=r"Projected.*cannot be compiled.*W has shape \(2, 4\)"):
        model_of(make()).check(X, Y)


class Undeclared(pgm.Kernel):
    scale: float

    def __call__(self, X, Z):
        return self.scale * X @ Z.T

    def diagonal(self, X):
        return self.scale * jnp.sum(X**2, axis=1)


@pytest.mark.parametrize("value", [1.5, np.ones(2), jnp.ones(()), pgm.Fixed(2.0), dist.LogNormal(), {"w": np.ones(2)}])
def test_undeclared_numbers_are_refused(value):
    with pytest.raises(ValueError, match=r"scale of Undeclared holds numbers.*declare.*scale: pgm.Parameter"):
        model_of(Undeclared(value)).check(X, Y)


SAMPLED = Own(dist.LogNormal(0.0, 1.0), shift=pgm.Fixed(0.2))


@pytest.mark.slow
def test_fit_learns_it_and_its_prior_regularises_it():
    def fitted(scale):
        return pgm.fit(model_of(Own(scale, shift=pgm.Fixed(0.2))), X, Y).model.gps[0].kernel.scale.value

    free, narrow = fitted(1.0), fitted(dist.LogNormal(0.0, 0.1))
    assert abs(np.log(free)) > 0.3
    assert 0 < abs(np.log(narrow)) < 0.1


@pytest.mark.slow
def test_own_hyperparameter_is_sampled_and_integrated_by_name():
    model = model_of(SAMPLED)
    draws = pgm.gibbs(model, X, Y, num_samples=200, num_warmup=150, num_chains=2, seed=0)
    assert set(draws.hyperparameters) == {"scale"}
    log_scale = np.log(draws.hyperparameters["scale"])
    integrated = pgm.integrate(model, X, Y)
    marginal = integrated.hyperparameters["scale"]
    # Some 200 effective draws of a deviation below 0.8.
    median = np.log(marginal.quantiles([0.5])[0])
    assert abs(np.median(log_scale) - median) < 0.3
    assert log_scale.std() > 0.2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pgmodels.MixingWarning", "ignore::pgmodels.DivergenceWarning")
def test_nuts_and_to_numpyro_sample_its_hyperparameter():
    import numpyro

    model = model_of(SAMPLED)
    with jax.enable_x64(True):
        trace = numpyro.handlers.trace(numpyro.handlers.seed(pgm.to_numpyro(model, X, Y), 0)).get_trace()
    assert isinstance(trace["scale"]["fn"], dist.LogNormal)
    draws = pgm.nuts(model, X, Y, num_samples=40, num_warmup=100, num_chains=1, seed=0)
    assert draws.hyperparameters["scale"].std() > 0.01


def test_matrices_are_learned():
    model = model_of(
        Projected(pgm.Parameter(W, positive=False), lengthscale=pgm.Fixed(1.0)), pgm.Gaussian(pgm.Fixed(0.3))
    )
    before = pgm.cavi(model, X, REAL).elbo
    result = pgm.fit(model, X, REAL)
    learned_matrix = result.model.gps[0].kernel.W.value
    assert learned_matrix.shape == (2, 3)
    assert result.elbo > before + 3.0
    # What y is a function of: the rows of W span 2 x_0 - x_1, and no direction across it matters as much.
    along, across = (
        np.linalg.norm(learned_matrix @ d) for d in (np.array([2.0, -1.0, 0.0]), np.array([1.0, 2.0, 0.0]))
    )
    assert along > 3.0 * across
    assert trainable(model).names == ["W"]


@pytest.mark.slow
def test_matrices_are_learned_in_steps():
    gp = pgm.GP(Projected(pgm.Parameter(W, positive=False), lengthscale=pgm.Fixed(1.0)), form=pgm.Inducing(X[:8]))
    with pytest.warns(pgm.ConvergenceWarning):
        vi = pgm.svi(pgm.Model(pgm.Bernoulli(), gp), X, Y, train_hyperparameters=True, batch_size=15, max_epochs=2)
    assert not np.allclose(vi.model.gps[0].kernel.W.value, W)


@pytest.mark.slow
def test_matrices_with_a_prior_are_sampled_and_named_by_entry():
    import arviz_stats as azs

    model = model_of(Projected(dist.Normal(0.0, 1.0).expand([2, 3]), lengthscale=pgm.Fixed(1.0)))
    draws = pgm.gibbs(model, X, Y, num_samples=40, num_warmup=40, num_chains=2, seed=1)
    assert draws.hyperparameters["W"].shape == (2, 40, 2, 3)
    assert (draws.hyperparameters["W"].std(axis=(0, 1)) > 0.1).all()
    tree = draws.to_arviz()
    assert tree["posterior"]["W"].sizes == {"chain": 2, "draw": 40, "W_dim_0": 2, "W_dim_1": 3}
    assert {"W[0, 1]", "W[1, 2]"} <= set(azs.summary(tree["posterior"].to_dataset()[["W"]]).index)


class Network(eqx.Module):
    """A deep kernel, as equinox's users write it."""

    layer: eqx.nn.Linear
    amplitude: object
    power: float = 2.0

    def __call__(self, X, Z):
        features = [jnp.tanh(jax.vmap(self.layer)(rows)) for rows in (X, Z)]
        return self.amplitude * jnp.exp(-0.5 * squared(*features)) ** (self.power / 2.0)


def network(amplitude=1.5):
    with jax.enable_x64(True):
        return Network(eqx.nn.Linear(3, 2, key=jax.random.key(3), dtype=jnp.float64), amplitude)


def test_arrays_of_an_equinox_module_are_learned_and_its_numbers_stay():
    model = model_of(network(), pgm.Gaussian(pgm.Fixed(0.3)))
    assert [trainable(model).names, trainable(model).shapes] == [["weight", "bias"], [(2, 3), (2,)]]
    before = pgm.cavi(model, X, REAL)
    result = pgm.fit(model, X, REAL)
    assert result.elbo > before.elbo + 3.0
    kernel = result.model.gps[0].kernel
    assert not np.allclose(kernel.function.layer.weight.value, model.gps[0].kernel.function.layer.weight.value)
    assert kernel.function.amplitude == 1.5
    np.testing.assert_allclose(kernel.diagonal(X), 1.5)
    assert pgm.fit(model.fixed(), X, REAL).elbo == pytest.approx(before.elbo, rel=1e-6)
    assert pickle.loads(pickle.dumps(result)).model == result.model


@pytest.mark.slow
def test_leaves_of_a_module_may_have_priors_and_fixed_values():
    kernel = eqx.tree_at(lambda k: k.layer.weight, network(dist.LogNormal(0.0, 1.0)), pgm.Fixed(W))
    model = model_of(kernel)
    draws = pgm.gibbs(model, X, Y, num_samples=20, num_warmup=20, num_chains=1, seed=0)
    assert set(draws.hyperparameters) == {"amplitude"}
    assert draws.hyperparameters["amplitude"].std() > 0.05
    assert trainable(model).names == ["bias", "amplitude"]
    with pytest.raises(ValueError, match=r"layer.weight of Network must be finite"):
        model_of(eqx.tree_at(lambda k: k.layer.weight, network(), np.full((2, 3), np.nan)))


def test_parameters_of_a_formula_with_wrong_shapes_are_refused():
    @pgm.likelihood
    def scaled(y, f, W=pgm.Parameter(1.0)):
        return pgm.sigmoid(W * f) ** y

    with pytest.raises(ValueError, match=r"W of scaled must be one number or a list.*\(2, 3\).*one parameter per row"):
        scaled(W=np.ones((2, 3)))
    with pytest.raises(ValueError, match="scaled needs a value for W"):
        scaled(W=None)
