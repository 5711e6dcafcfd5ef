"""A formula over other latents: each latent replaced by an expression, with vectors and f[y] written out."""

from collections.abc import Sequence

from pgmodels.likelihoods.algebra import add, compare, multiply, power, rebuild
from pgmodels.likelihoods.expression import Expression
from pgmodels.likelihoods.indicators import Largest
from pgmodels.likelihoods.operations import Power, Product, Reduction
from pgmodels.likelihoods.symbols import Constant, Latent, Latents, Positions, Selected


def substitute(formula: Expression, latents: Sequence[Expression]) -> Expression:
    """The formula with latent number l replaced by ``latents[l]``; ValueError for ``largest``."""
    return _Substitution(latents).scalar(formula)


class _Substitution:
    """Replaces latents; ``chosen`` is the number of the latent that f[index] stands for."""

    def __init__(self, latents: Sequence[Expression], chosen: int | None = None):
        self.latents, self.chosen = latents, chosen

    def scalar(self, node: Expression) -> Expression:
        """An expression of one number per datum."""
        if node.latent_free:
            return node
        if self.chosen is None and (index := _index_in(node)) is not None and not isinstance(node, Product):
            if isinstance(node, Power) and node.exponent.latent_free:
                return power(self.scalar(node.base), node.exponent)
            # g(f[i]) = Π_c g(f[c])^[i = c].
            each = [_Substitution(self.latents, c).scalar(node) for c in range(len(self.latents))]
            return multiply(*(power(value, compare("==", index, float(c))) for c, value in enumerate(each)))
        if isinstance(node, Selected):
            assert self.chosen is not None
            return self.latents[self.chosen]
        if isinstance(node, Reduction):
            entries = [self.entry(node.argument, c) for c in range(len(self.latents))]
            return add(*entries) if node.operator == "sum" else multiply(*entries)
        return self.entry(node, 0)

    def entry(self, node: Expression, c: int) -> Expression:
        """Entry c of a vector over the latents; a number as it is."""
        if isinstance(node, Latent):
            return self.latents[node.position]
        if isinstance(node, Latents):
            return self.latents[c]
        if isinstance(node, Positions):
            return Constant(float(c))
        if isinstance(node, Largest):
            raise ValueError(
                f"{node.text()} reads single latents, not sums of latents: use a likelihood without pgm.largest, such "
                "as Softmax or LogisticSoftmax."
            )
        if not node.is_vector and (node.latent_free or isinstance(node, Selected | Reduction)):
            return self.scalar(node)
        children = [self.entry(child, c) if child.is_vector else self.scalar(child) for child in node.children]
        return rebuild(node, children)


def _index_in(node: Expression) -> Expression | None:
    """The index of f[index] in an expression, None if there is none."""
    if isinstance(node, Selected):
        return node.index
    return next((index for child in node.children if (index := _index_in(child)) is not None), None)
