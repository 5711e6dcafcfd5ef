"""Regression models from a formula of terms and a data frame."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from pgmodels.data.arrays import check_finite
from pgmodels.data.frames import as_frame
from pgmodels.inference.empirical_bayes.fit import fit
from pgmodels.inference.evidence.integrate import integrate
from pgmodels.inference.mcmc.gibbs.sampler import gibbs
from pgmodels.inference.mcmc.nuts import nuts
from pgmodels.inference.variational.vi import cavi, gaussian_vi
from pgmodels.likelihoods.additive import with_predictor
from pgmodels.model import Model
from pgmodels.regression.columns import Columns, Design, Numbers, require_columns
from pgmodels.regression.families import family_of
from pgmodels.regression.grammar import parse
from pgmodels.regression.result import RegressionResult
from pgmodels.regression.terms import Term, call_term, check_call, group_term, linear_term
from pgmodels.runtime.warnings import PgmodelsWarning, warn


class FormulaWarning(PgmodelsWarning):
    """Rows of the data of a formula are left out."""


def formula(
    formula: str,
    data: Any,
    *,
    family: Any = "gaussian",
    priors: Mapping[str, Any] | None = None,
    weights: str | ArrayLike | None = None,
    na_action: str = "raise",
    context: Mapping[str, Any] | None = None,
    link: str | None = None,
) -> "Regression":
    """A regression model from a formula of terms, as in R.

    Parameters
    ----------
    formula : str
        ``response ~ term + term``, such as ``"p(ill, n) ~ gp(lon, lat) + s(age) + treat * sex + (1|herd)"``. It is
        code: functions in it are called.
    data : data frame
        Of pandas, polars or pyarrow.
    family : str, Likelihood or likelihood family
        "gaussian", "student", "laplace", "bernoulli", "binomial", "negbinomial", "poisson", or a likelihood of one
        latent. The latent of "negbinomial" is the logarithm of the mean over the dispersion.
    priors : dict, optional
        By term, the text of the term as in the formula: a dict of NumPyro distributions, as in ``{"(1|herd)":
        {"variance": dist.LogNormal(0.0, 1.0)}}``; by coefficient ``dist.Normal(0.0, sd)``; ``"scale"`` and
        ``"dispersion"`` of the family.
    weights : str or array_like, shape (n,), optional
        A column, or powers of the rows' likelihoods.
    na_action : {"raise", "drop"}
        What to do with rows that have no value in a column of the formula.
    context : dict, optional
        Functions and kernels that the formula names.
    link : str, optional
        "logit" or "probit" for "bernoulli".

    Returns
    -------
    Regression
        The model and its arrays, with engines as methods; ``print`` shows terms and priors.

    Raises
    ------
    ValueError
        For a formula, data or priors that cannot be read, with what is wrong.
    ImportError
        Without the package formulaic.

    Warns
    -----
    FormulaWarning
        If rows are dropped.

    Notes
    -----
    Terms: columns, interactions, ``C()``, ``poly()`` and functions, with independent normal priors; ``gp(x, z, by=,
    cov=, iso=, period=, k=)``, a Gaussian process, of each level with ``by`` a factor; ``s(x)``, a Matern52 process
    beside a line; ``(1|g)``, ``(0 + x|g)`` and ``(x||g)``, effects of groups, nested as ``(1|a/b)``; ``ar1(t)``;
    ``offset(x)``. Each GP is a latent of its own, and their sum is the predictor.

    Default priors: coefficients are Normal(0, 2.5 s / sd(x)), with s the standard deviation of y under an identity link
    and else 1; variances are log-normal with a median deviation of 0.6 s; lengthscales are log-normal with 98 % between
    the 2 % quantile of distances and the range.

    Examples
    --------
    >>> import pandas as pd
    >>> import pgmodels as pgm
    >>> data = pd.DataFrame({"y": [1.0, 2.1, 2.9, 4.2], "x": [0.0, 1.0, 2.0, 3.0]})
    >>> pgm.formula("y ~ x", data).fit().summary().loc["x", "mean"].round(1)
    np.float64(1.0)
    """
    frame = _frame(data)
    if na_action not in ("raise", "drop"):
        raise ValueError(f"na_action must be 'raise' or 'drop'; got {na_action!r}.")
    parsed, names = parse(formula), dict(context or {})
    frame, rows = _without_holes(frame, formula, weights, na_action)
    chosen, unused = family_of(family, link), dict(priors or {})
    response = _response(parsed.response, frame, names)
    y = response.read(frame)
    scale = float(np.std(y[:, 0])) or 1.0 if chosen.is_identity else 1.0
    level = float(np.mean(y[:, 0])) if chosen.is_identity else 0.0
    design = Design(parsed.linear, frame, names)
    terms: list[Term] = [linear_term(design, frame, scale, level, unused)] if design.names else []
    for call in parsed.calls:
        check_call(call)
    offsets = [Numbers(call.arguments, frame, names, call.text) for call in parsed.calls if call.name == "offset"]
    terms += [call_term(call, frame, scale, names, unused) for call in parsed.calls if call.name != "offset"]
    terms += [group_term(group, frame, scale, names, unused) for group in parsed.groups]
    likelihood = chosen.make(scale, unused)
    if unused:
        known = [*design.names, *(term.text for term in terms[bool(design.names) :])]
        raise ValueError(
            f"priors has {next(iter(unused))!r}, which is not a term, a coefficient or a parameter; there are {known}."
        )
    if not terms:
        raise ValueError(f"formula: {formula!r} has no term.")
    arrays = [term.read(frame) for term in terms]
    firsts = np.cumsum([0, *(part.shape[1] for part in arrays)])
    gps = [term.gp(int(first), part.shape[1]) for term, first, part in zip(terms, firsts, arrays, strict=False)]
    if offsets:
        y = np.column_stack([y, sum(offset.read(frame)[:, 0] for offset in offsets)])
    model = Model(with_predictor(likelihood, len(terms), offset=bool(offsets)), gps)
    powers = _weights(weights, frame, rows)
    X, y = np.concatenate(arrays, axis=1), y[:, 0] if y.shape[1] == 1 else y
    return Regression(formula, model, X, y, powers, terms, frame, offsets)


class Regression:
    """A model made of a formula: see ``pgmodels.formula``.

    ``model``, ``X``, ``y`` and ``weights`` are the arguments that a user could give to the engines; ``terms`` are the
    terms in the order of the latents.
    """

    def __init__(
        self, formula: str, model: Model, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None, terms: list[Term],
        data: pd.DataFrame, offsets: list[Numbers],
    ):  # fmt: skip
        self.formula, self.model, self.X, self.y, self.weights = formula, model, X, y, weights
        self.terms, self.data, self.offsets = terms, data, offsets

    def fit(self, **options: Any) -> RegressionResult:
        """Learn hyperparameters, with priors as penalties: see ``pgmodels.fit``."""
        return self._run(fit, options)

    def gaussian_vi(self, **options: Any) -> RegressionResult:
        """See ``pgmodels.gaussian_vi``; hyperparameters keep their start values."""
        return self._run(gaussian_vi, options)

    def cavi(self, **options: Any) -> RegressionResult:
        """See ``pgmodels.cavi``; hyperparameters keep their start values."""
        return self._run(cavi, options)

    def integrate(self, **options: Any) -> RegressionResult:
        """Integrate hyperparameters out: see ``pgmodels.integrate``."""
        return self._run(integrate, options)

    def gibbs(self, **options: Any) -> RegressionResult:
        """Draws of latents and hyperparameters: see ``pgmodels.gibbs``."""
        return self._run(gibbs, options)

    def nuts(self, **options: Any) -> RegressionResult:
        """Draws by NUTS: see ``pgmodels.nuts``."""
        return self._run(nuts, options)

    def read(self, newdata: Any) -> tuple[np.ndarray, pd.DataFrame]:
        """Inputs (m, d) of new data, and the data as a frame of pandas."""
        frame = _frame(newdata)
        return np.concatenate([term.read(frame, "newdata") for term in self.terms], axis=1), frame

    def covariates(self, frame: pd.DataFrame) -> np.ndarray | None:
        """The columns of y after the first for new data: one trial, and offsets."""
        support = self.model.likelihood.support(self.model.num_latents)
        count = support.num_covariates - bool(self.offsets)
        columns = [np.ones((len(frame), 1))] * count
        if self.offsets:
            columns.append(sum(offset.read(frame, "newdata") for offset in self.offsets))  # type: ignore[arg-type]
        return np.concatenate(columns, axis=1) if columns else None

    def _run(self, engine: Any, options: dict[str, Any]) -> RegressionResult:
        result = engine(self.model, self.X, self.y, weights=self.weights, **options)
        return RegressionResult(self, result)

    def __repr__(self) -> str:
        lines = [f"Regression {self.formula}", f"  {len(self.X)} rows, {self.model.likelihood!r}"]
        for term, gp in zip(self.terms, self.model.gps, strict=True):
            lines.append(f"  {term.text}: {gp.kernel!r}" + (f", mean {term.mean:.4g}" if term.mean else ""))
        return "\n".join(lines)


def _frame(data: Any) -> pd.DataFrame:
    frame = as_frame(data)
    if frame is None:
        raise ValueError(f"data must be a data frame of pandas, polars or pyarrow; got {type(data).__name__}.")
    return frame.to_pandas().reset_index(drop=True)


def _without_holes(frame: pd.DataFrame, formula: str, weights: Any, na_action: str) -> tuple[pd.DataFrame, np.ndarray]:
    """The rows with a value in each column that the formula names, and which they are."""
    # A name before a parenthesis is a function.
    used = [column for column in frame.columns if re.search(rf"(?<![\w.]){re.escape(column)}(?!\w|\s*\()", formula)]
    used += [weights] if isinstance(weights, str) and weights in frame.columns else []
    holes = frame[used].isna().to_numpy()
    keep = ~holes.any(axis=1)
    if keep.all():
        return frame, keep
    row, column = (int(place) for place in np.argwhere(holes)[0])
    what = f"{int((~keep).sum())} of {len(frame)} rows have no value in a column of the formula"
    where = f"(the first is row {row}, column {used[column]!r})"
    if na_action == "raise":
        raise ValueError(f"data: {what} {where}. Fill them in, or leave these rows out with na_action='drop'.")
    if not keep.any():
        raise ValueError(f"data: {what}, so that none is left {where}.")
    warn(f"formula: {what} and are left out {where}.", FormulaWarning)
    return frame[keep].reset_index(drop=True), keep


def _response(text: str, frame: pd.DataFrame, context: dict[str, Any]) -> Columns:
    """The columns of y."""
    if text.startswith("cbind"):
        raise ValueError("formula: cbind(successes, failures) is written p(successes, trials).")
    trials = re.fullmatch(r"(.+?)\s*\|\s*trials\((.+)\)", text)
    call = re.fullmatch(r"(?:p|Surv|c)\((.+)\)", text)
    if trials:
        return Numbers([trials[1].strip(), trials[2].strip()], frame, context, text)
    if call:
        return Numbers([part.strip() for part in call[1].split(",")], frame, context, text)
    if text in frame.columns and not pd.api.types.is_numeric_dtype(frame[text]):
        return _Labels(text, frame)
    if re.fullmatch(r"[A-Za-z_.]\w*", text):
        require_columns(frame, [text], "data", "the response")
    return Numbers([text], frame, context, text)


class _Labels(Columns):
    """A column of two labels, of which the last one is modelled."""

    def __init__(self, name: str, frame: pd.DataFrame):
        column, self.names = frame[name], (name,)
        levels = list(column.cat.categories) if hasattr(column, "cat") else sorted(column.dropna().unique())
        if len(levels) != 2:
            raise ValueError(f"formula: the response {name} must be numbers or have two levels; it has {levels!r}.")
        self.levels = levels

    def read(self, frame: pd.DataFrame, name: str = "data") -> np.ndarray:
        codes = {level: float(code) for code, level in enumerate(self.levels)}
        return np.array([[codes.get(value, np.nan)] for value in frame[self.names[0]]])


def _weights(weights: Any, frame: pd.DataFrame, rows: np.ndarray) -> np.ndarray | None:
    if weights is None:
        return None
    if isinstance(weights, str):
        require_columns(frame, [weights], "data", "weights")
        return frame[weights].to_numpy(dtype=np.float64)
    values = np.asarray(weights, dtype=np.float64)
    if values.shape != rows.shape:
        raise ValueError(f"weights must have shape {rows.shape}, one for each row of data; got {values.shape}.")
    check_finite(values[rows], "weights")
    return values[rows]
