"""From a formula to its augmentation: recognise the factors, chain the rules, put the parts together."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from pgmodels.augmentation.errors import NoAugmentationError
from pgmodels.augmentation.normal_form import Factor, Term, expand, factorise
from pgmodels.augmentation.notation import plain, words
from pgmodels.augmentation.predictor import Predictor, SharedPredictorError, affine, latents_of
from pgmodels.augmentation.predictors import Predictors, over_predictors
from pgmodels.augmentation.quadratic import Linear, Quadratic, Square, read_completed, read_quadratic
from pgmodels.augmentation.rules import (
    RULES,
    Auxiliary,
    GammaMixtureRule,
    GammaRule,
    GaussianRule,
    InverseGaussianMixtureRule,
    PoissonRule,
    PolyaGammaRule,
    Rule,
    TruncatedGaussianRule,
)
from pgmodels.language.algebra import add, multiply, power
from pgmodels.language.expression import Environment, Expression
from pgmodels.language.functions import exp
from pgmodels.language.operations import Call, Comparison, Power, Reduction, Sum
from pgmodels.language.symbols import Constant, Positions, Selected
from pgmodels.latent.mixing import push_values

ZERO, ONE = Constant(0.0), Constant(1.0)


class Requirement:
    """What a derivation needs of a coefficient: ``nonnegative``, ``positive`` or ``indicator`` (0 or 1).

    ``marked_reason`` is ``reason`` with its words marked (``notation.words``).
    """

    def __init__(self, expression: Expression, kind: str, marked_reason: str):
        self.expression, self.kind, self.marked_reason = expression, kind, marked_reason
        self.reason = plain(marked_reason)

    def holds(self, values: Any) -> Any:
        """Where the values satisfy the requirement, up to rounding."""
        if self.kind == "nonnegative":
            return values >= -1e-9
        if self.kind == "positive":
            return values > 0
        return (values == 0) | (values == 1)

    @property
    def wording(self) -> str:
        """The requirement in words."""
        return {"nonnegative": ">= 0", "positive": "> 0", "indicator": "0 or 1"}[self.kind]


class Augmentation:
    """The augmentation of one likelihood: its rules in the order in which their auxiliaries are drawn.

    Two augmentations of equal formulas are equal, so that compiled code is shared between them.
    """

    def __init__(
        self,
        formula: Expression,
        size: int,
        base: Expression,
        rules: tuple[Rule, ...],
        requirements: tuple[Requirement, ...],
    ):
        self.formula, self.size, self.base = formula, size, base
        self.rules, self.requirements = rules, requirements
        self.predictors: Predictors | None = None

    def __hash__(self) -> int:
        return hash((self.formula.key, self.size))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Augmentation) and (self.formula.key, self.size) == (other.formula.key, other.size)

    @cached_property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """The latents updated together: latents that a rate couples to a sigmoid's are in different blocks."""
        conflicts: dict[int, set[int]] = {position: set() for position in range(self.size)}
        for rule in self.rules:
            if isinstance(rule, PoissonRule):
                for left in rule.rate_positions:
                    for right in rule.positions:
                        conflicts[left].add(right)
                        conflicts[right].add(left)
        blocks: list[list[int]] = []
        for position in range(self.size):
            free = [block for block in blocks if not conflicts[position].intersection(block)]
            if free:
                free[0].append(position)
            else:
                blocks.append([position])
        return tuple(tuple(block) for block in blocks)

    @property
    def num_latents(self) -> int:
        """The number of latents, which is ``size``, the number of predictors, where no factor combines latents."""
        return self.size if self.predictors is None else self.predictors.num_latents

    def latents_of(self, block: tuple[int, ...]) -> tuple[int, ...]:
        """The latents that a block of predictors reads."""
        return block if self.predictors is None else self.predictors.latents_of(block)

    def predictor_values(self, f: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        """The predictors of latents (..., n, latents): the latents themselves where no factor combines them."""
        return f if self.predictors is None else push_values(self.predictors.matrix(y, parameters), f)

    def log_density(self, y: Any, f: Any, parameters: Mapping[str, Any]) -> Any:
        """log p(y | f) of each datum, shape (..., n), from the formula itself."""
        z = self.predictor_values(f, y, parameters)
        return self.formula.log_evaluate(Environment(y, z, parameters))[..., 0]

    def local_bound(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        """B(m, v + m^2) <= E log p(y | f) of each datum under f ~ N(m, v), shape (n,) (math: section 1)."""
        env = Environment(y, m, parameters)
        total = self.base.log_evaluate(env)
        for rule in self.rules:
            total = total + jnp.sum(rule.share(m, v, env), axis=-1, keepdims=True)
        return jnp.broadcast_to(total[..., 0], m.shape[:-1])

    def local_sites(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> tuple[Any, Any]:
        """The CAVI sites h = ∂B/∂m, w = -2 ∂B/∂s at q's marginals, shapes (n, latents)."""
        total = lambda m, v: jnp.sum(self.local_bound(m, v, y, parameters))  # noqa: E731
        by_mean, by_variance = jax.grad(total, argnums=(0, 1))(m, v)
        w = -2.0 * by_variance
        return by_mean + w * m, w

    def local_hessian(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        """The Hessian of each datum's B in (m_p, s_p) of one predictor p at a time, shape (n, predictors, 2, 2)."""
        own = jnp.arange(self.size)
        return jnp.moveaxis(self.joint_hessian(m, v, y, parameters)[:, own, :, own, :], 0, 1)

    def joint_hessian(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        """The Hessian of each datum's B in (m, s) of all predictors, shape (n, predictors, 2, predictors, 2)."""

        def bound(shift: Any, m_i: Any, v_i: Any, y_i: Any) -> Any:
            dm, ds = shift[:, 0], shift[:, 1]
            # s = v + m^2, so that v moves by ds - 2 m dm - dm^2: no difference of large squares is taken.
            moved = v_i + ds - 2.0 * m_i * dm - dm**2
            return self.local_bound((m_i + dm)[None], moved[None], y_i[None], parameters)[0]

        def one(m_i: Any, v_i: Any, y_i: Any) -> Any:
            return jax.hessian(bound)(jnp.zeros((self.size, 2), m.dtype), m_i, v_i, y_i)

        return jax.vmap(one)(m, v, jnp.asarray(y))

    def draw_chain(self, key: Any, f: Any, y: Any, parameters: Mapping[str, Any], block: int = 0) -> dict[str, Any]:
        """Draw the auxiliaries that a block of latents needs, given all latents; values by name."""
        values = dict(parameters)
        drawn = {}
        keys = jax.random.split(key, len(self.rules))
        for rule, rule_key in zip(self.rules, keys, strict=True):
            if rule.auxiliary is not None and self._active(rule, block):
                value = rule.draw(rule_key, f, Environment(y, f, values))
                values[rule.auxiliary.name] = drawn[rule.auxiliary.name] = value
        return drawn

    def sites_given(
        self, auxiliaries: Mapping[str, Any], f: Any, y: Any, parameters: Mapping[str, Any], block: int = 0
    ) -> tuple[Any, Any]:
        """The sites that the auxiliaries leave for a block of latents, shapes (n, latents)."""
        env = Environment(y, f, {**parameters, **auxiliaries})
        h, w = jnp.zeros_like(f), jnp.zeros_like(f)
        for rule in self.rules:
            if self._active(rule, block):
                potential, precision = rule.site(env)
                h, w = h + potential, w + precision
            if isinstance(rule, PoissonRule) and set(rule.rate_positions) & set(self.blocks[block]):
                potential, precision = rule.rate_site(env)
                h, w = h + potential, w + precision
        return h, w

    def draw_auxiliaries(
        self, key: Any, f: Any, y: Any, parameters: Mapping[str, Any], block: int = 0
    ) -> tuple[Any, Any]:
        """Draw the auxiliaries given f and return the sites they leave: the first half of a Gibbs sweep."""
        return self.sites_given(self.draw_chain(key, f, y, parameters, block), f, y, parameters, block)

    def log_joint(
        self, auxiliaries: Mapping[str, Any], f: Any, y: Any, parameters: Mapping[str, Any], block: int = 0
    ) -> Any:
        """log p(y, auxiliaries | f) of each datum, with the auxiliaries that the block does not need integrated out."""
        env = Environment(y, f, {**parameters, **auxiliaries})
        total = self.base.log_evaluate(env)
        for rule in self.rules:
            if rule.auxiliary is None or rule.auxiliary.name in auxiliaries:
                value = None if rule.auxiliary is None else auxiliaries[rule.auxiliary.name]
                part = rule.log_joint(value, f, env)
            elif isinstance(rule, PoissonRule) and rule.parent is not None and rule.parent.name not in auxiliaries:
                continue  # a part of the parent's factor, which is integrated out as a whole
            else:
                part = rule.log_factor(f, env)
            total = total + jnp.sum(part, axis=-1, keepdims=True)
        return total[..., 0]

    def log_conditional(self, auxiliaries: Mapping[str, Any], f: Any, y: Any, parameters: Mapping[str, Any]) -> Any:
        """log p(auxiliaries | f, y) of each datum."""
        env = Environment(y, f, {**parameters, **auxiliaries})
        total = jnp.zeros((1, 1))
        for rule in self.rules:
            if rule.auxiliary is not None and rule.auxiliary.name in auxiliaries:
                part = rule.log_conditional(auxiliaries[rule.auxiliary.name], f, env)
                total = total + jnp.sum(part, axis=-1, keepdims=True)
        return total[..., 0]

    def _active(self, rule: Rule, block: int) -> bool:
        return bool(set(rule.positions) & set(self.blocks[block]))


class Deriver:
    """Builds one augmentation, factor by factor."""

    def __init__(self, formula: Expression, size: int):
        self.formula, self.size = formula, size
        self.requirements: list[Requirement] = []
        self.base: list[Expression] = []
        self.rules: list[Rule] = []
        self.links: dict[tuple, dict[str, Any]] = {}
        self.exponents: list[Expression] = []
        self.named: dict[str, int] = {}

    def derive(self) -> Augmentation:
        """The augmentation, or NoAugmentationError."""
        if self.formula.is_vector:
            raise ValueError(
                f"the formula {self.formula.text()} has one value for each latent, not one number: reduce it with "
                "pgm.prod or pgm.sum, or index it with f[y]."
            )
        for latent in latents_of(self.formula).values():
            if isinstance(latent, Selected):
                # f[i] is read as Π_c g(f[c])^[i = c], which holds where one c is i.
                found = Reduction("sum", Comparison("==", latent.index, Positions(latent.size)))
                self._require(
                    found, "positive", f"{words('the number of latents that')} {latent.text()} {words('selects')}"
                )
        merged: dict[tuple, Factor] = {}
        for factor in factorise(self.formula, self.size):
            held = merged.get(factor.base.key)
            exponent = factor.exponent if held is None else add(held.exponent, factor.exponent)
            merged[factor.base.key] = Factor(factor.base, exponent)
        for factor in merged.values():
            self._place(factor)
        if self.exponents:
            self._place_exponent(add(*self.exponents))
        self._place_links()
        self._check_used()
        order = {GammaRule: 0, GammaMixtureRule: 1, InverseGaussianMixtureRule: 1, TruncatedGaussianRule: 1}
        order |= {PoissonRule: 2, PolyaGammaRule: 3, GaussianRule: 4}
        self.rules.sort(key=lambda rule: order[type(rule)])
        base = multiply(*self.base)
        return Augmentation(self.formula, self.size, base, tuple(self.rules), tuple(self.requirements))

    def _place(self, factor: Factor) -> None:
        base, exponent = factor.base, factor.exponent
        if exponent.key == ZERO.key:
            return
        if base.latent_free:
            self.base.append(power(base, exponent))
        elif isinstance(base, Call) and base.name == "exp":
            self.exponents.append(_summed(multiply(exponent, base.argument)))
        elif isinstance(base, Call) and base.name == "sigmoid":
            self._place_sigmoid(factor)
        elif isinstance(base, Call) and base.name == "normal_cdf":
            self._place_normal_cdf(factor)
        elif isinstance(base, (Sum, Reduction, Power)):
            self._place_sum(factor)
        else:
            raise self._no_rule(factor.text(), "a power of σ(z), Φ(z), a sum, or an exponential")

    def _place_sigmoid(self, factor: Factor) -> None:
        predictor = self._predictor(factor.base.argument, factor.text())  # type: ignore[attr-defined]
        if factor.exponent.sign == -1:
            p = multiply(-1.0, factor.exponent)
            self._place_gamma(factor.base, p, ZERO, ((ONE, predictor, False),))
            return
        self._require(factor.exponent, "nonnegative", f"{words('the exponent of')} {factor.base.text()}")
        self._link(predictor, factor.exponent, None)

    def _link(self, predictor: Predictor, exponent: Expression, count: Auxiliary | None) -> None:
        """Collect a power of σ(z) with the other powers of σ(z) and σ(-z)."""
        side = 1
        if predictor.negated().key in self.links:
            predictor, side = predictor.negated(), -1
        entry = self.links.setdefault(predictor.key, {"predictor": predictor, "a": ZERO, "b": ZERO, "counts": ()})
        if count is not None:
            entry["counts"] = (*entry["counts"], (count, side))
        elif side > 0:
            entry["a"] = add(entry["a"], exponent)
        else:
            entry["b"] = add(entry["b"], exponent)

    def _place_links(self) -> None:
        for entry in self.links.values():
            name = self._name("ω")
            self.rules.append(PolyaGammaRule(name, entry["predictor"], entry["a"], entry["b"], entry["counts"]))

    def _place_normal_cdf(self, factor: Factor) -> None:
        predictor = self._predictor(factor.base.argument, factor.text())  # type: ignore[attr-defined]
        exponent = factor.exponent
        if isinstance(exponent, Constant) and exponent.value != 1.0:
            raise self._no_rule(factor.text(), "Φ(z) to the power 0 or 1")
        self._require(exponent, "indicator", f"{words('the exponent of')} {factor.base.text()}")
        self.rules.append(TruncatedGaussianRule(self._name("u"), predictor, exponent))

    def _place_sum(self, factor: Factor) -> None:
        text, exponent = factor.text(), factor.exponent
        if exponent.sign == 1 or exponent.sign is None:
            raise self._no_rule(text, "a sum or a quadratic to a negative power")
        p = multiply(-1.0, exponent)
        terms = expand(factor.base, self.size)
        sigmoids = [term for term in terms if _is_sigmoid(term)]
        if sigmoids:
            constant = add(*(term.coefficient for term in terms if not term.atoms))
            if len(sigmoids) + sum(not term.atoms for term in terms) != len(terms):
                raise self._no_rule(text, "a sum whose terms are constants and w σ(z), w >= 0")
            parts = []
            for term in sigmoids:
                predictor = self._predictor(term.atoms[0].argument, text)  # type: ignore[attr-defined]
                self._require(
                    term.coefficient,
                    "nonnegative",
                    f"{words('the weight of')} {term.atoms[0].text()} {words('in')} {text}",
                )
                parts.append((term.coefficient, predictor, term.reduced))
            if any(expression.sign == -1 for expression in (constant, *(weight for weight, _, _ in parts))):
                raise self._no_rule(text, "a sum of w σ(z) and a constant, all >= 0, to a negative power")
            self._check_plates(factor.base, exponent, any(reduced for _, _, reduced in parts), text)
            self._require(constant, "nonnegative", f"{words('the constant in')} {text}")
            self._place_gamma(factor.base, p, constant, tuple(parts))
            return
        quadratic = read_completed(terms)
        if quadratic is None:
            raise self._no_rule(text, "a sum of w σ(z), w >= 0, or a non-negative quadratic, to a negative power")
        self._require_quadratic(quadratic, text)
        self._require(p, "nonnegative", f"{words('minus the exponent in')} {text}")
        # Nothing keeps Q^-p finite at Q = 0: without a positive constant it is no likelihood.
        self._require(quadratic.constant, "positive", f"{words('the constant in')} {text}")
        if isinstance(quadratic.constant, Constant) and quadratic.constant.value <= 0:
            raise self._no_rule(text, "a quadratic with a positive constant, to a negative power")
        self._check_plates(factor.base, exponent, any(square.reduced for square in quadratic.squares), text)
        self.rules.append(GammaMixtureRule(self._name("ω"), quadratic, p, self.size))

    def _check_plates(self, base: Expression, exponent: Expression, reduced: bool, text: str) -> None:
        """Refuse a product over the latents of functions of a sum over the latents: its auxiliaries are a matrix."""
        if reduced and (base.is_vector or exponent.is_vector):
            raise self._no_rule(text, "a sum over the latents outside of products over the latents")

    def _place_gamma(self, base: Expression, p: Expression, constant: Expression, terms: tuple) -> None:
        self._require(p, "nonnegative", f"{words('minus the exponent of')} {base.text()}")
        rule = GammaRule(self._name("λ"), base, p, constant, terms)
        self.rules.append(rule)
        poissons = []
        for weight, predictor, _ in terms:
            rate = Quadratic(multiply(rule.auxiliary, weight), ())
            poissons.append(self._add_poisson(predictor, rate, rule.auxiliary))
        rule.poissons = tuple(poissons)

    def _add_poisson(self, predictor: Predictor, rate: Quadratic, parent: Auxiliary | None) -> PoissonRule:
        rule = PoissonRule(self._name("k"), predictor, rate, parent)
        self.rules.append(rule)
        self._link(predictor.negated(), ONE, rule.auxiliary)
        return rule

    def _place_exponent(self, exponent: Expression) -> None:
        gaussian: list[Term] = []
        rates: dict[tuple, tuple[Expression, list[Term]]] = {}
        for term in expand(exponent, self.size):
            sigmoids = [atom for atom in term.atoms if isinstance(atom, Call) and atom.name == "sigmoid"]
            roots = [atom for atom in term.atoms if _is_root(atom)]
            if len(sigmoids) == 1:
                rest = tuple(atom for atom in term.atoms if atom is not sigmoids[0])
                entry = rates.setdefault(sigmoids[0].key, (sigmoids[0], []))
                entry[1].append(Term(term.coefficient, rest, term.reduced))
            elif roots and len(term.atoms) == 1:
                self._place_root(term)
            else:
                gaussian.append(term)
        for link, terms in rates.values():
            gaussian.extend(self._place_rate(link, terms))
        if gaussian:
            self._place_gaussian(gaussian)

    def _place_rate(self, link: Expression, terms: list[Term]) -> list[Term]:
        """Augment exp(-R σ(z)); returns the terms that stay in the exponent."""
        text = exp(add(*(multiply(t.coefficient, *t.atoms, link) for t in terms))).text()
        predictor = self._predictor(link.argument, text)  # type: ignore[attr-defined]
        rate = read_completed([Term(multiply(-1.0, t.coefficient), t.atoms, False) for t in terms])
        if rate is None:
            raise self._no_rule(text, "exp(-R σ(z)) with R >= 0 a coefficient or a quadratic in other latents")
        if set(rate.positions) & set(predictor.positions):
            raise self._no_rule(text, "exp(-R σ(z)) with R free of the latent in z")
        if not rate.squares and rate.constant.sign == -1:
            # exp(R σ(z)) = exp(R) exp(-R σ(-z))
            constant = multiply(-1.0, rate.constant)
            self._require(constant, "nonnegative", f"{words('the rate in')} {text}")
            self._add_poisson(predictor.negated(), Quadratic(constant, ()), None)
            return [Term(constant, (), False)] if not constant.is_vector else [Term(Reduction("sum", constant), ())]
        if rate.expression.is_vector and not predictor.is_vector and rate.squares:
            raise self._no_rule(text, "a rate with one value a datum")
        self._require_quadratic(rate, text)
        self._add_poisson(predictor, rate, None)
        return []

    def _place_root(self, term: Term) -> None:
        """Augment exp(-κ √Q)."""
        text, atom = exp(multiply(term.coefficient, *term.atoms)).text(), term.atoms[0]
        steepness = multiply(-1.0, term.coefficient)
        if steepness.sign == -1:
            raise self._no_rule(text, "exp(-κ |z|) or exp(-κ sqrt(Q)) with κ >= 0")
        inside = power(atom.argument, 2.0) if isinstance(atom, Call) else atom.base  # type: ignore[attr-defined]
        quadratic = read_completed(expand(inside, self.size))
        if quadratic is None:
            raise self._no_rule(text, "the root of a non-negative quadratic")
        self._require_quadratic(quadratic, text)
        self._require(steepness, "nonnegative", f"{words('the steepness in')} {text}")
        self._check_plates(atom, steepness, any(square.reduced for square in quadratic.squares), text)
        self.rules.append(InverseGaussianMixtureRule(self._name("ω"), quadratic, atom, steepness, self.size))

    def _place_gaussian(self, terms: list[Term]) -> None:
        text = exp(add(*(multiply(t.coefficient, *t.atoms) for t in terms))).text()
        read = read_quadratic([Term(multiply(-1.0, t.coefficient), t.atoms, t.reduced) for t in terms])
        if read is None:
            strange = [t for t in terms if read_quadratic([t]) is None]
            text = exp(add(*(multiply(t.coefficient, *t.atoms) for t in strange))).text()
            raise self._no_rule(text, self._exponent_wanted(strange))
        quadratic, linear = read
        for square in quadratic.squares:
            if square.weight.sign == -1:
                raise self._no_rule(text, "a quadratic exponent with a negative leading coefficient")
            self._require(
                square.weight, "nonnegative", f"{words('minus the coefficient of')} {square.expression.text()}"
            )
        self.base.append(exp(multiply(-1.0, quadratic.constant)))
        flipped = tuple(Linear(multiply(-1.0, part.coefficient), part.predictor) for part in linear)
        if not quadratic.squares and not flipped:
            return
        centred = Quadratic(ZERO, quadratic.squares)
        self.rules.append(GaussianRule(centred, flipped, self.size))

    def _exponent_wanted(self, terms: list[Term]) -> str:
        several = [t for t in terms if len(t.atoms) > 1]
        if several:
            return (
                f"an exponent whose terms contain one latent each (or a rate times σ(z)); {several[0].text()} "
                "multiplies functions of the latents"
            )
        return "an exponent made of f, z^2, -κ |z|, -κ sqrt(Q) and -R σ(z)"

    def _predictor(self, argument: Expression, text: str) -> Predictor:
        predictor = affine(argument)
        if predictor is None:
            raise self._no_rule(text, f"an affine function of one latent where {argument.text()} stands")
        return predictor

    def _require_quadratic(self, quadratic: Quadratic, text: str) -> None:
        for square in quadratic.squares:
            if square.weight.sign == -1:
                raise self._no_rule(text, "a non-negative quadratic")
            self._require(
                square.weight,
                "nonnegative",
                f"{words('the coefficient of')} {_square_text(square)} {words('in')} {text}",
            )
        if quadratic.constant.sign == -1 and quadratic.constant.key != ZERO.key:
            raise self._no_rule(text, "a non-negative quadratic")
        self._require(quadratic.constant, "nonnegative", f"{words('the least value of the quadratic in')} {text}")

    def _require(self, expression: Expression, kind: str, reason: str) -> None:
        trivially = expression.nonnegative and kind == "nonnegative"
        trivially |= isinstance(expression, Constant) and expression.value == 1.0
        trivially |= kind == "positive" and isinstance(expression, Constant) and expression.value > 0
        if not trivially:
            self.requirements.append(Requirement(expression, kind, reason))

    def _name(self, symbol: str) -> str:
        self.named[symbol] = self.named.get(symbol, 0) + 1
        return symbol if self.named[symbol] == 1 else f"{symbol}{self.named[symbol]}"

    def _check_used(self) -> None:
        used = {position for rule in self.rules for position in rule.positions}
        used |= {p for rule in self.rules if isinstance(rule, PoissonRule) for p in rule.rate_positions}
        unused = sorted(set(range(self.size)) - used)
        if unused:
            raise ValueError(
                f"the formula does not use latent {', '.join(f'f[{p}]' for p in unused)}: the model has {self.size} "
                f"latent GPs, the formula reads {len(used)}. Give the model as many GPs as the formula reads."
            )

    def _no_rule(self, factor: str, wanted: str) -> NoAugmentationError:
        known = "\n".join(f"  - {rule.title}: {(rule.__doc__ or '').splitlines()[0]}" for rule in RULES)
        return NoAugmentationError(
            f"no augmentation for the factor {factor}\n"
            f"in the likelihood {self.formula.text()}.\n"
            f"Looked for {wanted}.\nThe rules are:\n{known}"
        )


def _summed(expression: Expression) -> Expression:
    """An exponent of a product over the latents is a sum over them."""
    return Reduction("sum", expression) if expression.is_vector else expression


def _is_sigmoid(term: Term) -> bool:
    return len(term.atoms) == 1 and isinstance(term.atoms[0], Call) and term.atoms[0].name == "sigmoid"


def _is_root(atom: Expression) -> bool:
    if isinstance(atom, Call):
        return atom.name == "abs"
    return isinstance(atom, Power) and isinstance(atom.exponent, Constant) and atom.exponent.value == 0.5


def _square_text(square: Square) -> str:
    return power(square.predictor.expression, 2.0).text()


def derive_formula(formula: Expression, size: int) -> Augmentation:
    """Derive the augmentation of a formula over ``size`` latents.

    Where a factor combines latents, it is the augmentation of the formula over its predictors.
    """
    try:
        return Deriver(formula, size).derive()
    except SharedPredictorError:
        over, predictors = over_predictors(formula, size)
    augmentation = Deriver(over, len(predictors.rows)).derive()
    augmentation.predictors = predictors
    predictors.check(augmentation.blocks)
    return augmentation
