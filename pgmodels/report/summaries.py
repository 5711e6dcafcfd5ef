"""Display of results, models and graphs: a paragraph in a terminal, a table in a notebook."""

import textwrap
from typing import Any, TypeAlias

import numpy as np

from pgmodels.augmentation.explain import explain_sections, likelihood_line
from pgmodels.augmentation.graph import AugmentedGraph
from pgmodels.diagnostics.convergence import convergence
from pgmodels.inference.objectives import known_objective
from pgmodels.model import Model
from pgmodels.objectives.base import Objective
from pgmodels.parameters.vector import ParameterVector, with_priors
from pgmodels.report.html import Html, element, join, picture, table
from pgmodels.results.approximation import CorrectedApproximation, GaussianResult
from pgmodels.results.draws import Draws
from pgmodels.results.integrated import IntegratedApproximation
from pgmodels.results.nested import NestedApproximation
from pgmodels.results.result import Result
from pgmodels.results.sparse import SparseApproximation
from pgmodels.runtime.formatting import write_constraint, write_distribution

AnyResult: TypeAlias = Result | SparseApproximation

WIDTH = 100
_METHODS = {
    "linear_response": "Linear-response correction",
    "perturbative": "Second-order correction",
    "nested": "Nested variational marginals",
    "gibbs": "Gibbs sampling",
    "nuts": "NUTS",
    "integrate": "Hyperparameters integrated out",
}
# Before the name of a method with auxiliary variables, and after that of another.
_STOCHASTIC = {"svi": ("Stochastic ", " by stochastic steps")}
_CORRECTED = {
    "linear_response": ", corrected by linear response",
    "perturbative": ", corrected to second order",
    "nested": ", corrected by nested variational marginals",
}


def result_text(result: AnyResult) -> str:
    """A result in one paragraph of at most 100 columns."""
    facts = [f"{name} {value}" for name, value in result_facts(result)[2:]]
    text = f"{_heading(result)}, {_size(result)}: {'; '.join(facts)}."
    return textwrap.fill(text, WIDTH, break_on_hyphens=False)


def result_status(result: Result) -> str:
    """The engine with its objective, convergence, bound or log evidence, and how the result is corrected."""
    if isinstance(result, Draws):
        return f"{_METHODS[result.method]}: " + "; ".join([_chains(result), *map(" ".join, _mixing(result)[:3])])
    if isinstance(result, IntegratedApproximation):
        return "integrate: " + "; ".join(map(" ".join, _points(result)[:2]))
    assert isinstance(result, GaussianResult)
    objective = known_objective(result)
    title = (Objective if objective is None else objective).title
    name, value = _iterations(result.uncorrected)[0]
    state = "converged" if result.converged else "not converged"
    correction = "none" if result.fit is None else result.fit.correction
    if result.corrects_another:
        correction = _CORRECTED[result.method].removeprefix(", corrected ")
    lines = [f"{result.uncorrected.method} on {title}: {name} {value}, {state}", f"correction: {correction}"]
    if result.fit is not None and result.fit.intervals:
        lines.append(f"uncertainty of parameters: {result.fit.intervals}")
    return "\n".join(lines)


def result_line(result: AnyResult) -> str:
    """A result in one line, without computed diagnostics."""
    return f"<{type(result).__name__} {_heading(result)}, {_size(result)}, {result.seconds:.3g} s>"


def result_html(result: AnyResult) -> Html:
    """A result as a table of facts."""
    return table([], result_facts(result), caption=_heading(result))


def result_facts(result: AnyResult) -> list[tuple[str, str]]:
    """The main facts of a result, by name."""
    facts = [("model", repr(result.model)), ("size", _size(result))]
    if result.weights is not None:
        facts.append(("weights of rows", f"{result.weights.sum():.6g} in total"))
    if isinstance(result, Draws):
        facts += [("draws", _chains(result)), *_mixing(result)]
    elif isinstance(result, GaussianResult):
        facts += _iterations(result)
    elif isinstance(result, IntegratedApproximation):
        facts += _points(result)
    elif isinstance(result, SparseApproximation):
        facts += _windows(result)
    return [*facts, ("time", f"{result.seconds:.3g} s")]


def _heading(result: AnyResult) -> str:
    name = _METHODS.get(result.method, result.method)
    if isinstance(result, (GaussianResult, SparseApproximation)):
        is_learned = result.fit is not None
        if is_learned or not isinstance(result, CorrectedApproximation):
            name = _variational_method(result)
        if is_learned:
            name += f" at learned hyperparameters{_CORRECTED.get(result.method, '')}"
    return f"{name} of {result.likelihood!r}"


def _variational_method(result: GaussianResult | SparseApproximation) -> str:
    objective = known_objective(result)
    name = Objective.method if objective is None else objective.method
    before, after = _STOCHASTIC.get(result.method, ("", ""))
    return before + name if objective is not None and objective.has_auxiliaries else name + after


def _size(result: AnyResult) -> str:
    latents = result.model.num_latents
    return f"{result.num_rows} rows, {latents} latent{'s' if latents > 1 else ''}"


def _chains(draws: Draws) -> str:
    chains = "one chain" if draws.num_chains == 1 else f"each of {draws.num_chains} chains"
    return f"{draws.num_samples} in {chains}, after {draws.num_warmup} of warm-up"


def _mixing(draws: Draws) -> list[tuple[str, str]]:
    sampled = [(f"sampled {name}", _spread(values)) for name, values in draws.hyperparameters.items()]
    if draws.whitened is None and draws.stored_latents is None:
        return [("R-hat and ESS", "unknown: the draws of the latents were not stored"), *sampled]
    diagnostics = convergence(draws)
    facts = [("largest R-hat", _figure(diagnostics["rhat"], ".3f", "not defined for one chain"))]
    facts += [
        (f"smallest {part} ESS", _figure(diagnostics[f"ess_{part}"], ".0f", "not defined")) for part in ("bulk", "tail")
    ]
    return [*facts, *sampled]


def _figure(value: float, form: str, otherwise: str) -> str:
    return otherwise if np.isnan(value) else f"{value:{form}}"


def _spread(values: np.ndarray) -> str:
    """The median and the central 90 % interval of draws, for each entry."""
    flat = values.reshape(values.shape[0] * values.shape[1], -1)
    return _ranges(*np.quantile(flat, (0.05, 0.5, 0.95), axis=0))


def _ranges(low: np.ndarray, middle: np.ndarray, high: np.ndarray) -> str:
    """Medians with central 90 % intervals from the 5 %, 50 % and 95 % quantiles."""
    return ", ".join(f"{m:.4g} (90 %: {a:.3g} to {b:.3g})" for a, m, b in zip(low, middle, high, strict=True))


def _iterations(result: GaussianResult) -> list[tuple[str, str]]:
    state = "converged" if result.converged else "not converged"
    objective = known_objective(result)
    name = "ELBO" if objective is None or objective.is_bound else "approximate log evidence"
    facts = [(name, f"{result.elbo:.4f} nats"), ("iterations", f"{result.num_iterations}, {state}")]
    if isinstance(result, CorrectedApproximation) and result.is_corrected:
        facts[0] = ("ELBO before the correction", facts[0][1])
        facts.append(("variances that are not positive", f"{result.num_nonpositive} of {result.variance.size}"))
    if isinstance(result, NestedApproximation):
        facts.append(("largest lower bound of log p(y)", f"{result.log_evidence_bounds.max():.4f} nats"))
        facts.append(("largest skewness", f"{result.skewness.flat[np.argmax(abs(result.skewness))]:.2f}"))
    if result.fit is not None:
        facts.append(("hyperparameters", _learned(result)))
        if not result.is_corrected or result.fit.exceptions:
            facts.append(("correction", result.fit.correction))
        if result.uncertainty is not None:
            for path, values in result.uncertainty.nodes(result.model).items():
                facts.append((path, _ranges(*np.quantile(values.reshape(len(values), -1), (0.05, 0.5, 0.95), axis=0))))
        elif result.fit.intervals:
            facts.append(("uncertainty of hyperparameters", result.fit.intervals))
    return facts


def _windows(result: SparseApproximation) -> list[tuple[str, str]]:
    state = "converged" if result.converged else "not converged"
    facts = [("ELBO", f"{result.elbo:.4f} nats"), ("windows of steps and passes", f"{len(result.elbo_trace)}, {state}")]
    return facts if result.fit is None else [*facts, ("hyperparameters", _learned(result))]


def _learned(result: GaussianResult | SparseApproximation) -> str:
    if not result.fit.converged:
        return f"not optimal: {result.fit.message}"
    with_prior = bool(with_priors(result.model).leaf_indices)
    mode = ", with priors: the mode of the unconstrained parameters, such as log(variance)" if with_prior else ""
    objective = known_objective(result)
    if objective is None:
        return f"learned on {Objective.title}{mode}"
    return f"learned on {objective.title}{'' if objective.is_bound else ', which is no bound'}{mode}"


def _points(result: IntegratedApproximation) -> list[tuple[str, str]]:
    state = "which cover the posterior" if result.holds_mass else "which do not cover all of the posterior"
    points = f"{len(result.shares)}, {state}" + (f", and {result.num_failed} that failed" * bool(result.num_failed))
    facts = [("points", points), ("log evidence", f"{result.log_evidence:.4f} nats")]
    for name, marginal in result.hyperparameters.items():
        facts.append((name, _ranges(*map(np.ravel, marginal.quantiles([0.05, 0.5, 0.95])))))
    if result.unreliable:
        facts.append(("mass at points with a Pareto k-hat above its limit", f"{result.unreliable:.0%}"))
    return facts


def model_html(model: Model) -> Html:
    """A model: its formula, its GPs and its hyperparameters."""
    title = element("p", element("b", repr(model.likelihood)), f" over {_gps(model)}")
    return join([title, element("p", element("code", likelihood_text(model))), hyperparameter_table(model)])


def _gps(model: Model) -> str:
    return ", ".join(f"{gp.size} × {gp!r}" if gp.size > 1 else repr(gp) for gp in model.gps)


def likelihood_text(model: Model) -> str:
    """The line that states the likelihood, as in the derivation if there is one."""
    if model.is_augmentable:
        return explain_sections(model.augmentation, model.likelihood.name)[0].lines[0].text()
    return likelihood_line(model.likelihood.formula(model.num_latents)).text()


def hyperparameter_table(model: Model) -> Html:
    """Every hyperparameter, mean and likelihood parameter of a model."""
    every = ParameterVector(model, lambda parameter: True)
    rows = []
    for name, parameter in zip(every.names, every.parameters, strict=True):
        note = write_constraint(parameter.support)
        if parameter.prior is not None:
            note = f"prior {write_distribution(parameter.declared_prior)}"
        value = "from the data" if parameter.value is None else _array(parameter.value)
        rows.append((name, value, "fixed" if parameter.fixed else f"trainable, {note}"))
    return table(["hyperparameter", "value", ""], rows)


def _array(value: Any) -> str:
    return ", ".join(f"{entry:.6g}" for entry in np.ravel(np.asarray(value)))


def graph_html(graph: AugmentedGraph) -> Html:
    """A drawing of an augmented graph, and a table of its variables and their parents."""
    from pgmodels.plots.graph import plot_graph

    alt = f"Augmented graph of {graph.name}; the table below lists its variables and edges."
    rows = []
    for node in graph.nodes:
        plates = " and ".join(plate.label for plate in graph.plates_of(node))
        parents = [graph.labels[edge.source] for edge in graph.edges if edge.target == node.id]
        rows.append((node.label, node.kind, plates, ", ".join(parents)))
    listed = table(["variable", "kind", "for each", "parents"], rows, caption=f"Augmented graph of {graph.name}")
    caption = element("figcaption", "Arrows lead from parents to children; the nodes of a plate are repeated.")
    return join([element("figure", picture(plot_graph(graph), alt), caption), listed])
