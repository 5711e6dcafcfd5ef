"""The conditionals of a softmax: one class given the others, by a Pólya-Gamma variable for each datum."""

from typing import Any

import jax
import jax.numpy as jnp

from pgmodels import polya_gamma
from pgmodels.likelihoods.expression import Expression
from pgmodels.likelihoods.named import Softmax
from pgmodels.likelihoods.symbols import Latents, Observation
from pgmodels.objectives.expected import Quadrature


class OneVersusRest(Quadrature):
    """The softmax e^f[y] / Σ_c e^f[c], to the power of a weight if ``weighted``, with draws of its auxiliaries.

    In f_c alone it is proportional to σ(z)^[y = c] σ(-z)^[y != c], z = f_c - C_c, C_c = log Σ_{j != c} e^f_j, so that
    each latent has Pólya-Gamma conditionals given the others. No bound follows from them: as an objective, it is the
    expected log density by the coarse rule. Source: Polson, Scott and Windle 2013, section on the multinomial logit.
    """

    def __init__(self, formula: Expression, size: int, weighted: bool):
        super().__init__(formula, size, coarse=True)
        self.weighted = weighted

    def draw_site(self, key: Any, f: Any, y: Any, latent: Any) -> tuple[Any, Any]:
        """Draw ω | f, y of a latent and return its sites h = w ([y = c] - 1/2) + ω C_c and ω, (n, 1) each."""
        labels, weights = (y[:, :1], y[:, 1:]) if self.weighted else (y[:, None], jnp.ones((len(y), 1)))
        others = jnp.where(jnp.arange(self.size) == latent, -jnp.inf, f)
        rest = jax.nn.logsumexp(others, axis=-1, keepdims=True)
        omega = polya_gamma.draw(key, weights, jax.lax.dynamic_slice_in_dim(f, latent, 1, axis=-1) - rest)
        return weights * ((labels == latent) - 0.5) + omega * rest, omega


def one_versus_rest(formula: Expression, size: int) -> OneVersusRest | None:
    """The conditionals of a formula that is a softmax, or one to the power of a weight in y[1]; None if it is not."""
    for weighted in (False, True):
        if size > 1 and formula.key == softmax_formula(size, weighted).key:
            return OneVersusRest(formula, size, weighted)
    return None


def softmax_formula(size: int, weighted: bool = False) -> Expression:
    """The softmax of a datum's class y, or of a class y[0] to the power of a weight y[1] if ``weighted``."""
    formula, f = Softmax(size).function, Latents(size)
    return formula(Observation(0), f) ** Observation(1) if weighted else formula(Observation(None), f)
