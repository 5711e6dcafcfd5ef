"""Regression by a formula: `formula`, and its files."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy
from numpy.typing import ArrayLike

from pgmodels.data.arrays import BOOLEAN, DATE, DURATION, NUMBER, ZONED, floats_in, kind_of_column
from pgmodels.inference.fit import fit
from pgmodels.inference.gibbs import gibbs
from pgmodels.inference.integrate import integrate
from pgmodels.inference.nuts import nuts
from pgmodels.inference.vi import cavi, gaussian_vi
from pgmodels.likelihoods.likelihood import Likelihood, check_weights, log_density
from pgmodels.likelihoods.modified import summed
from pgmodels.model import Model
from pgmodels.parameters.vector import trainable
from pgmodels.regression.grammar import Observed, Parsed, parse_all
from pgmodels.regression.response import (
    AdditivePredictor,
    FamilyArguments,
    FormulaResponse,
    NamedLatents,
    PredictorStart,
    check_response,
    family_of,
    has_value,
    read_predictor,
)
from pgmodels.regression.result import EngineResult, RegressionResult
from pgmodels.regression.terms import (
    DesignMatrix,
    FormulaTerm,
    Levels,
    LocationScale,
    Numbers,
    TrainingData,
    check_kinds,
    read_frame,
    require_columns,
    with_chain,
    with_plain_types,
)
from pgmodels.results.storage import faults_of, load, read_file, save_result
from pgmodels.runtime.io import decode
from pgmodels.runtime.messages import PgmodelsWarning, warn
from pgmodels.runtime.precision import DoublePrecision, double_precision


class FormulaWarning(PgmodelsWarning):
    """Rows of the data of a formula are left out."""


def formula(
    formula: str | Sequence[str],
    data: Any,
    *,
    family: Any = "gaussian",
    priors: Mapping[str, Any] | None = None,
    weights: str | ArrayLike | None = None,
    weights_kind: str = "frequency",
    missing: str = "raise",
    context: Mapping[str, Any] | None = None,
    link: str | None = None,
) -> "Regression":
    """Make a regression model from a formula of terms, as in R.

    Parameters
    ----------
    formula : str or sequence of str
        ``response ~ term + term``, such as ``"p(ill, n) ~ gp(lon, lat) + s(age) + treat * sex + (1|herd)"``. Further
        formulas model positive parameters with a log link, such as ``"sigma ~ x"``. Parameters have the names of brms
        ("shape", "phi", "disc" of "cumulative", "nu" above 1) or of the likelihood. Further latents of the family have
        formulas such as ``"zi ~ x"``, ``"hu ~ x"`` or ``"f[1] ~ s(t)"``. Without a formula each is constant.
    data : data frame
        A data frame of pandas, polars or pyarrow.
    family : str, Likelihood or likelihood family
        A likelihood of pgmodels, or one of these names:

        - Numbers: "gaussian", "student", "laplace", "lognormal", "gamma", "beta", "skew_normal" with the slant "alpha",
          "asym_laplace" with the "quantile" in ``priors``, "zero_one_inflated_beta".
        - Labels and trials: "bernoulli", "binomial", "beta_binomial".
        - Counts, with their variances: "poisson"; "negbinomial", mean + mean² / shape; "nbinom1", mean (1 + phi);
          "genpois", mean (1 + phi)².
        - Zeros: "zero_inflated", "hurdle" or "truncated" and an underscore before "poisson" or "negbinomial". There are
          also "zero_inflated_binomial", "hurdle_gamma" and "hurdle_lognormal". "zi" and "hu" are the logits of an
          excess zero and of a zero. "zoi" is the logit of an end, 0 or 1, and "coi" the logit of 1 given an end.
        - Levels: "categorical"; ordered "cumulative", "sratio" and "acat".
        - Times: "weibull", "loglogistic", "lognormal" and "cox".
    priors : dict, optional
        Priors by the text of a term, a coefficient or a parameter:

        - of a term, a dict: ``{"(1|herd)": {"variance": dist.LogNormal(0.0, 1.0)}}``;
        - of a coefficient, ``dist.Normal(mean, sd)``, or ``"flat"`` if the data alone determine it, or
          ``dist.StudentT(df, mean, scale)`` for ``integrate``, ``gibbs`` and ``nuts``;
        - of a parameter of the family, a distribution: ``"shape"``, or ``"sigma"`` for the scale of the noise.

        Names of terms in further formulas have a prefix: ``"f[1]: (1|herd)"``, ``"sigma: x"``.
    weights : str or array_like, shape (n,), optional
        A column or numbers: how often each row counts, in default priors too. The formula may name the column, as in
        ``"y | weights(w) ~ x"``. Rows of weight 0 are left out.
    weights_kind : {"frequency", "precision"}
        "precision" divides the variance of Gaussian noise by the weights, as R's lm does.
    missing : {"raise", "drop", "predict"}
        What to do with rows without a value in a column of the formula. "predict" keeps rows without a response.
    context : dict, optional
        Functions, kernels, matrices and other values that the formula names.
    link : str, optional
        "logit", "probit", "cloglog" or "cauchit" for "bernoulli", "binomial" and "cumulative"; "log" of the mean for
        "gaussian"; "softmax", "logistic_softmax" or "stick_breaking" for "categorical".

    Returns
    -------
    Regression
        The model and its arrays, with engines as methods. ``print`` shows terms and priors.

    Raises
    ------
    ValueError
        For a formula, data or priors that cannot be read.
    ImportError
        Without the package formulaic.

    Warns
    -----
    FormulaWarning
        If rows are dropped.

    Notes
    -----
    **Terms.** Each Gaussian process is a latent of its own. The sum of the terms is the predictor.

    - ``x``, ``x:z``, ``x * z``, ``log(x)``: columns, interactions and functions, with independent normal priors.
    - ``gp(x, z, by=, cov=, iso=, period=, k=, markov=)``: a Gaussian process, for each level if ``by`` is a factor. A
      Matérn process of one column with 5,000 values or more is a Markov process by default, with ``pgm.Markov()``.
    - ``s(x)``: a line plus a centred Matern52 process without this line. The line's coefficient is the trend. As a
      Markov process it is not centred. ``s(x, period=12)`` is periodic. ``s(x, z)`` and ``te(x, z)`` are surfaces
      with one lengthscale or several. ``ti(x, z)`` has no main effects.
    - ``s(x, by=g)``: a curve with its own lengthscale for each level. Curves are centred, so that g needs a term too.
      Levels of ``s(x, g, bs="fs")`` share their lengthscale.
    - ``(1|g)``, ``(0 + x|g)``, ``(x + z|g)``, ``(x||g)``, ``(1|a/b)``: effects of groups. ``(1|gr(g, cov=A))`` has
      covariances A of levels, ``(1|gr(g, by=h))`` a deviation for each h, ``(1|mm(g1, g2))`` members of several groups.
    - ``icar(area, W)``, ``bym2(area, W)``, ``car(area, W)``: areas with neighbours W. The ``rho`` of ``bym2`` is the
      share of the spatial part. ``car`` has precisions D - rho W. W is a matrix of 0 and 1, a data frame with labels,
      pairs of labels, a dict of lists or a GeoDataFrame. Spatial effects sum to 0 in each connected part.
    - ``rw1(t)``, ``rw2(t)`` plus a line, ``ar1(t)``: walks and autoregressions over the values in the data.
    - ``icar(area, W):ar1(t)``: a product of two processes. ``offset(x)``: a known part of the predictor.

    The sd of ``icar`` is the sd given the neighbours, times the root of their number. The sd of ``bym2`` is the sd of
    an effect. The sd of a walk is the sd of a step over 1.

    **Responses.** ``y``; ``log(y)``; ``p(successes, trials)``; ``y | se(sd)`` with known noise; ``c(y, a)`` with more
    columns of y; and R's times:

    - ``Surv(time, event)``, right-censored if the event is 0; ``Surv(time, event, type="left")``;
    - ``Surv(entry, exit, event)`` for rows that are in the data because their time is above the entry;
    - ``Surv(lower, upper, type="interval2")``, with NaN or infinity for an open end;
    - ``Surv(time, time2, code, type="interval")`` with R's codes.

    Levels of a text column are sorted. The last of two levels is modelled, or the one named as in ``died['no']``.

    **Functions** of NumPy, with or without ``np.``: ``log``, ``log1p``, ``log2``, ``log10``, ``exp``, ``expm1``,
    ``exp2``, ``sqrt``, ``cbrt``, ``square``, ``abs``, ``sign``, ``floor``, ``ceil``, ``sin``, ``cos``, ``tan``,
    ``arcsin``, ``arccos``, ``arctan``, ``sinh``, ``cosh``, ``tanh``, ``minimum``, ``maximum``, ``hypot``, ``arctan2``,
    ``power``, ``where``, ``clip``. Of formulaic: ``C``, ``I``, ``center``, ``scale``, ``standardize``, ``poly``,
    ``bs``, ``cr``, ``cs``, ``cc``, and the contrasts ``contr.treatment``, ``contr.sum``, ``contr.helmert``,
    ``contr.diff``, ``contr.poly``, ``contr.SAS``. Nothing else in a formula is evaluated, except functions of
    ``context``. Arithmetic is in ``I()``. Powers are ``**``. Names of columns that are not names of Python are in
    backticks.

    **Default priors** are for rows whose y is not censored. The scale s is the standard deviation of y if the latent
    has the units of y. If the latent is a logarithm, s is the standard deviation of log y, at least 1. Otherwise s = 1.

    - Coefficients: Normal(0, 2.5 s / sd(x)).
    - The intercept at the means of the columns: Normal(m, 6.25 s), with m the mean of y, its logarithm, or 0. Levels of
      a factor without an intercept also have the mean m. A prior that you give is at the origin of the columns.
    - Standard deviations of groups, smooths, processes and noise: the positive half of StudentT(3, 0, 2.5 s), for
      slopes over sd(x). Parameters are variances, with ``pgm.sd(...)`` of these priors.
    - Precisions, dispersions and shapes: log-normal with a log-sd of 3. Correlations: LKJ(1).
    - Lengthscales: log-normal. 98 % are between the 2 % quantile of distances (a tenth of the range for ``s``) and the
      range.

    Examples
    --------
    >>> import pandas as pd
    >>> import pgmodels as pgm
    >>> data = pd.DataFrame({"y": [1.0, 2.1, 2.9, 4.2], "x": [0.0, 1.0, 2.0, 3.0]})
    >>> pgm.formula("y ~ x", data).fit().summary().loc["x", "mean"].round(1)
    np.float64(1.0)
    """
    if missing not in ("raise", "drop", "predict"):
        raise ValueError(f"missing must be 'raise', 'drop' or 'predict'; got {missing!r}.")
    if priors is not None and not (isinstance(priors, Mapping) and all(isinstance(name, str) for name in priors)):
        raise ValueError(f"priors must be a dict by the text of a term, a coefficient or a parameter; got {priors!r}.")
    if weights_kind not in ("frequency", "precision"):
        raise ValueError(f"weights_kind must be 'frequency' or 'precision'; got {weights_kind!r}.")
    (read, parsed), names, unused = parse_all(formula), dict(context or {}), dict(priors or {})
    texts = [formula] if isinstance(formula, str) else list(formula)
    if read.weights is not None and weights is not None:
        raise ValueError(f"weights: {read.text} has weights too: give one of both.")
    weights = weights if read.weights is None else read.weights
    used = [name for one in parsed.values() for name in one.names] + ([weights] if isinstance(weights, str) else [])
    frame = read_frame(data, "data", {*used, *read.names})
    powers = _weights(weights, frame)
    frame, rows = _without_holes(frame, powers != 0.0, used, read, names, missing)
    powers = powers[rows]
    chosen = family_of(family, link)
    observed = has_value(read, frame, names)
    is_precise = weights_kind == "precision"
    if is_precise and (weights is None or family != "gaussian" or link == "log" or read.kind != "column"):
        raise ValueError(
            "weights_kind='precision' needs weights, family='gaussian' and a column as the response; other families "
            "have a parameter of their own, as in 'shape ~ offset(log(w))'."
        )
    counts = np.where(observed, 1.0 if is_precise else powers, 0.0)
    if not observed.any():
        raise ValueError(f"data: no row has a value of the response {read.text}.")
    training = TrainingData(frame, names, counts)
    response = FormulaResponse(read, TrainingData(frame[observed], names, counts[observed]), chosen.has_levels)
    y = np.full((len(frame), len(response.columns.names)), np.nan)
    y[observed] = response.read(frame[observed])
    if response.kind != "Surv":
        y[~observed, 1:] = response.covariates(frame[~observed], y.shape[1] - 1, "data")
    num_levels = check_response(chosen, family, response, y[observed])
    scale, level = chosen.start(y[observed], counts[observed])
    named = [name for name in parsed if name in unused]
    if named:
        raise ValueError(
            f"priors has {named[0]!r}, which has a formula: name its terms, as in '{named[0]}: Intercept'."
        )
    if chosen.classes is not None and len(parsed) > 1:
        raise ValueError("formula: the classes of family 'categorical' have the same terms; give one formula.")
    seen = y[observed], counts[observed]
    made = chosen.make(FamilyArguments(scale, unused, response, num_levels, *seen, is_precise, parsed))
    first = PredictorStart(scale, level, not chosen.is_ordered)
    likelihood, by_number, latents, starts = NamedLatents.of(made, chosen, parsed, first)
    predictors = [
        read_predictor(by_number.get(number, Parsed()), number, name, start, training, unused)
        for number, (name, start) in enumerate(zip(latents, starts, strict=True))
        if number == 0 or chosen.classes is None
    ]
    if unused:
        known: list[str] = []
        for term in (term for predictor in predictors for term in predictor.terms):
            known += [term.prefix + name for name in term.columns[0].names] if term.is_linear else [term.name]
        name = next(iter(unused))
        of_group = "of the variance of its term, as in {'(1|g)': {'variance': pgm.sd(dist.HalfNormal(2.5))}}"
        raise ValueError(
            f"priors has {name!r}, which is not a term, a coefficient or a parameter; there are {known}."
            + f" A standard deviation needs a prior {of_group}." * ("sd" in name)
        )
    classes = [""] if chosen.classes is None else list(response.levels)[chosen.classes]
    index = np.asarray(data.index if isinstance(data, pd.DataFrame) else np.arange(len(rows)))[rows]
    read_of_new = {*used, *(read.names if response.has_covariates else ())}
    kinds = {name: kind_of_column(frame[name]) for name in frame.columns if name in read_of_new}
    return Regression(
        texts, likelihood, predictors, classes, response, frame,
        np.column_stack([y, powers]) if is_precise else y, None if weights is None or is_precise else powers, family,
        link, index, kinds, weights_kind,
    )  # fmt: skip


class Printed(NamedTuple):
    """The name of a hyperparameter in summaries, or one of each entry, and the function of its values they have."""

    name: str | tuple[str, ...]
    function: Callable[[Any], Any] = np.asarray

    def of(self, entries: Iterable[str]) -> list[str]:
        """Return the names of entries, "" for one that summaries leave out."""
        return [self.name + entry for entry in entries] if isinstance(self.name, str) else list(self.name)


def _correlations(roots: np.ndarray) -> np.ndarray:
    return roots @ np.swapaxes(roots, -1, -2)


class Regression(DoublePrecision):
    """A model of a formula: see ``pgmodels.formula``.

    ``model``, ``X``, ``y`` and ``weights`` are arguments for the engines. ``terms`` are the terms in the order of the
    latents, ``latents`` the numbers of each term's latents, and ``classes`` the classes of these latents. ``index`` has
    the labels of the rows: the index of a data frame of pandas, which files do not store. ``kinds`` are the kinds of
    the columns that new data need. Rows of weight 0 are left out of all arrays.
    """

    def __init__(
        self, formula: list[str], likelihood: Likelihood, predictors: list[AdditivePredictor], classes: list[Any],
        response: FormulaResponse, data: pd.DataFrame, y: np.ndarray, weights: np.ndarray | None, family: Any,
        link: str | None, index: np.ndarray, kinds: dict[str, str], weights_kind: str = "frequency",
    ):  # fmt: skip
        self.formula, self.response, self.data, self.weights = formula, response, data, weights
        self.kinds, self.weights_kind = kinds, weights_kind
        self.predictors, self.classes = predictors, classes
        self.family, self.link, self.index = family, link, index
        self.terms: list[FormulaTerm] = with_chain([term for predictor in predictors for term in predictor.terms], data)
        # Classes share the terms of one formula.
        size = len(classes)
        self.latents = [range(size * number, size * (number + 1)) for number in range(len(self.terms))]
        if any(not predictor.terms for predictor in predictors):
            raise ValueError(f"formula: {'; '.join(formula)!r} has a latent without a term.")
        arrays = [term.read(data) for term in self.terms]
        ends = np.cumsum([part.shape[1] for part in arrays]).tolist()
        # The columns of X of each term.
        self.blocks = [range(end - part.shape[1], end) for end, part in zip(ends, arrays, strict=True)]
        gps = [term.gp(block, size) for term, block in zip(self.terms, self.blocks, strict=True)]
        self.sums = [
            [self.latents[number][c] for number, term in enumerate(self.terms) if term.predictor == predictor]
            for predictor in range(len(predictors))
            for c in range(size)
        ]
        # Of the sums with an offset; classes have that of their predictor.
        self.offsets = [number for number in range(len(self.sums)) if predictors[number // size].has_offset]
        columns = [self._offset(number, data, "data") for number in self.offsets]
        self.model = Model(summed(likelihood, self.sums, self.offsets), gps)
        self.X = np.concatenate(arrays, axis=1)
        y = np.column_stack([y, *columns])
        self.y = y[:, 0] if y.shape[1] == 1 else y
        for number in range(len(self.terms)):
            _require_proper(self, number)

    def fit(self, **options: Any) -> RegressionResult:
        """Learn hyperparameters, with priors as penalties: see ``pgmodels.fit``."""
        return self._run(fit, options)

    def gaussian_vi(self, **options: Any) -> RegressionResult:
        """Run ``pgmodels.gaussian_vi``; hyperparameters keep their start values."""
        return self._run(gaussian_vi, options)

    def cavi(self, **options: Any) -> RegressionResult:
        """Run ``pgmodels.cavi``; hyperparameters keep their start values."""
        return self._run(cavi, options)

    def integrate(self, **options: Any) -> RegressionResult:
        """Integrate hyperparameters out: see ``pgmodels.integrate``."""
        return self._run(integrate, options)

    def gibbs(self, **options: Any) -> RegressionResult:
        """Draw latents and hyperparameters: see ``pgmodels.gibbs``."""
        return self._run(gibbs, options)

    def nuts(self, **options: Any) -> RegressionResult:
        """Draw latents and hyperparameters by NUTS: see ``pgmodels.nuts``."""
        return self._run(nuts, options)

    @property
    def compared(self) -> set[str]:
        """The columns whose values are levels for some term; columns of groups only if no term reads their numbers."""
        columns = [(place, part) for term in self.terms for place, part in enumerate(term.columns)]
        fixed = {name for _, part in columns if isinstance(part, DesignMatrix) for name in part.compared.values()}
        by = {name for place, part in columns if isinstance(part, Levels) and place for name in part.factors}
        groups = {name for _, part in columns if isinstance(part, Levels) for name in part.factors}
        numbers = {name for _, part in columns if isinstance(part, DesignMatrix | Numbers) for name in part.reads}
        return fixed | by | (groups - numbers)

    @cached_property
    def names(self) -> dict[str, Printed]:
        """Names and scales in summaries of the hyperparameters that are not fixed, by their names in the model."""
        return {name: self._printed(name) for name in trainable(self.model).names}

    def _printed(self, name: str) -> Printed:
        match = re.fullmatch(r"f\[(\d+)[^]]*\]\.(.*)", name)
        if match is None and "." not in name:
            # With a single latent names of kernels have no number; those of the likelihood have no dot.
            return Printed("sigma" if name == "scale" and isinstance(self.family, str) else name)
        latent, text = (0, name) if match is None else (int(match[1]), match[2])
        term = next(term for term, latents in zip(self.terms, self.latents, strict=True) if latent in latents)
        field = text.rpartition(".")[2]
        if field not in term.names:
            return Printed(f"{term.name} {text}")
        shown = term.names[field]
        named = term.prefix + shown if isinstance(shown, str) else tuple(one and term.prefix + one for one in shown)
        return Printed(
            named, np.sqrt if field.endswith("variance") else _correlations if field == "root" else np.asarray
        )

    def read(self, newdata: Any) -> tuple[np.ndarray, pd.DataFrame]:
        """Return inputs (m, d) of new data, and the data as a frame of pandas."""
        frame = with_plain_types(read_frame(newdata, "newdata", self.kinds))
        check_kinds(frame, self.kinds, "newdata")
        return np.concatenate([term.read(frame, "newdata") for term in self.terms], axis=1), frame

    def covariates(self, frame: pd.DataFrame) -> np.ndarray | None:
        """Return the columns of y after the first for new data: 1 trial, offsets, and other response columns."""
        support = self.model.likelihood.support(self.model.num_latents)
        columns = [self.response.covariates(frame, support.num_covariates - len(self.offsets))]
        columns += [self._offset(number, frame)[:, None] for number in self.offsets]
        covariates = np.concatenate(columns, axis=1)
        return covariates if covariates.shape[1] else None

    def linear_predictor(self, frame: pd.DataFrame, f: np.ndarray, number: int) -> np.ndarray:
        """Return a predictor (draws, m) with its offset, from draws of the latents (draws, m, latents)."""
        total = f[:, :, self.sums[number]].sum(axis=2)
        return total + self._offset(number, frame) if number in self.offsets else total

    def _offset(self, number: int, frame: pd.DataFrame, name: str = "newdata") -> np.ndarray:
        return self.predictors[number // len(self.classes)].offset(frame, name)

    def _run(self, engine: Callable[..., EngineResult], options: dict[str, Any]) -> RegressionResult:
        likelihood = self.model.likelihood
        if engine is not nuts and likelihood.name == "Weibull" and "shape" not in likelihood.parameters:
            raise ValueError(
                "formula: the expected log density of a Weibull time with a varying shape is infinite under a "
                "Gaussian. Use nuts, or family='loglogistic'."
            )
        if np.isnan(self.y).any():
            options = {"missing": "predict"} | options
        return RegressionResult(self, engine(self.model, self.X, self.y, weights=self.weights, **options))

    def __repr__(self) -> str:
        lines = [f"Regression {'; '.join(self.formula)}", f"  {len(self.X)} rows, {self.model.likelihood!r}"]
        if self.response.levels:
            lines.append(f"  {self.response.text}: {', '.join(map(str, self.response.levels))}")
        for term, gp in zip(self.terms, self.model.gps, strict=True):
            lines.append(f"  {term.name}: {gp.kernel!r}" + (f", mean {term.mean:.4g}" if term.mean else ""))
        return "\n".join(lines)


def _without_holes(
    frame: pd.DataFrame, has_weight: np.ndarray, names: Sequence[str], response: Observed, context: dict[str, Any],
    missing: str,
) -> tuple[pd.DataFrame, np.ndarray]:  # fmt: skip
    """The rows with a weight, and a value in each column that is used and of the response, and which they are."""
    used = [name for name in dict.fromkeys(names) if name in frame.columns]
    holes = frame[used].isna().to_numpy()
    if missing != "predict":
        of_response = [name for name in dict.fromkeys(response.names) if name in frame.columns]
        is_missing = ~has_value(response, frame, context)[:, None]
        used, holes = used + of_response, np.concatenate([holes, frame[of_response].isna() & is_missing], axis=1)
    holes = holes.astype(bool) & has_weight[:, None]
    keep = has_weight & ~holes.any(axis=1)
    if holes.any():
        row, column = (int(place) for place in np.argwhere(holes)[0])
        what = f"{int(holes.any(axis=1).sum())} of {len(frame)} rows have no value in a column of the formula"
        where = f"(the first is row {row}, column {used[column]!r})"
        if missing != "drop":
            which = " other than the response" if missing == "predict" else ""
            raise ValueError(f"data: {what}{which} {where}. Fill them in, or leave these rows out with missing='drop'.")
        if not keep.any():
            raise ValueError(f"data: {what}, so that none is left {where}.")
        warn(f"formula: {what} and are left out {where}.", FormulaWarning)
    return with_plain_types(frame[keep].reset_index(drop=True)), keep


def _weights(weights: str | ArrayLike | None, frame: pd.DataFrame) -> np.ndarray:
    """The weights of the rows (n,), NaN where a column of them has none."""
    if weights is None:
        return np.ones(len(frame))
    if not isinstance(weights, str):
        return check_weights(weights, len(frame))
    require_columns(frame, [weights], "data", "weights")
    if kind_of_column(frame[weights]) not in (NUMBER, BOOLEAN):
        raise ValueError(f"weights: column {weights!r} must have numbers; it has {frame[weights].iloc[0]!r} in row 0.")
    values, is_hole = floats_in(frame[weights], f"data, column {weights!r},"), frame[weights].isna().to_numpy()
    return np.where(is_hole, np.nan, check_weights(np.where(is_hole, 1.0, values), len(frame)))


_ENTRY = "regression"


@double_precision
def save_formula(result: RegressionResult, path: str | PathLike[str]) -> Path:
    """Write the engine's result, the formula and the columns of the data to one file: see ``RegressionResult.save``.

    The file has both names of a hyperparameter, in the model and in summaries.
    """
    regression = result.regression
    response, predictors = parse_all(regression.formula)
    names = {*response.names, *(name for parsed in predictors.values() for name in parsed.names), response.weights}
    stored = {
        "formula": tuple(regression.formula),
        "family": regression.family if isinstance(regression.family, str) else None,
        "link": regression.link,
        "weights": regression.weights if regression.weights_kind == "frequency" else regression.y[:, 1],
        "weights_kind": regression.weights_kind,
        "names": {name: printed.name for name, printed in regression.names.items()},
        "columns": {name: _coded(regression.data[name]) for name in regression.data.columns if name in names},
        "priors": {
            term.prefix + name: tuple(value if np.isfinite(value) else None for value in prior)
            for term in regression.terms
            if term.coefficients is not None
            for name, prior in term.coefficients.priors.items()
        },
    }
    return save_result(result.result, path, **{_ENTRY: stored})


def load_formula(
    path: str | PathLike[str], *, context: Mapping[str, Any] | None = None, family: Any = None
) -> RegressionResult:
    """Load the result of a regression formula from a file written by its ``save``, with the same predictions.

    Parameters
    ----------
    path : str or path
        The file. It has the columns of the data that the formula reads.
    context : dict, optional
        The functions and kernels that the formula names, since files have no code.
    family : Likelihood or likelihood family, optional
        The family, if the formula had no family by name.

    Returns
    -------
    RegressionResult

    Raises
    ------
    ValueError
        For a file of another kind, or without a family that it needs.
    """
    path = Path(path)
    document, arrays = read_file(path)
    if _ENTRY not in document:
        raise ValueError(f"{path} has no result of a formula: load it with pgm.load.")
    with faults_of(path):
        stored = decode(document[_ENTRY], arrays)
        named, link, texts, weights = (stored[name] for name in ("family", "link", "formula", "weights"))
        frame = pd.DataFrame({name: _decoded(**column) for name, column in stored["columns"].items()})
        priors = {
            name: LocationScale(*(np.inf if value is None else value for value in values))
            for name, values in stored["priors"].items()
        }
    if named is None and family is None:
        raise ValueError(
            f"{path} has a likelihood without the name of a family: pass it, as in load_formula(path, family=)."
        )
    # The formula may need functions in context.
    with faults_of(path, unsuitable=ValueError):
        regression: Regression = formula(
            texts, frame, family=named or family, link=link, context=context, missing="predict", priors=priors,
            weights=None if parse_all(texts)[0].weights else weights, weights_kind=stored["weights_kind"],
        )  # fmt: skip
    result: Any = load(path, likelihood=regression.model.likelihood)
    with faults_of(path):
        if len(result.X) > len(regression.X) or result.X.shape[1] != regression.X.shape[1]:
            raise ValueError(f"X has the shape {result.X.shape}, and the columns of the data {regression.X.shape}")
    regression.model = result.model
    return RegressionResult(regression, result)


def _coded(column: pd.Series) -> dict[str, Any]:
    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_numeric_dtype(column):
        return {"kind": "number", "array": column.to_numpy()}
    kind = kind_of_column(column)
    if kind in (DATE, ZONED, DURATION):
        zone, unit = None, column.dt.unit
        if kind == ZONED:
            zone, column = str(column.dt.tz), column.dt.tz_convert(None)
        stored = {"array": column.to_numpy().astype(np.int64), "unit": unit}
        return stored | ({"kind": "duration"} if kind == DURATION else {"kind": "date", "zone": zone})
    is_category = hasattr(column, "cat")
    entries = column if is_category else column.astype("category")
    levels = tuple(level.item() if isinstance(level, np.generic) else level for level in entries.cat.categories)
    if not all(isinstance(level, bool | int | float | str) for level in levels):
        raise ValueError(f"save: the levels of column {column.name!r} are neither text nor numbers; use pickle.")
    kind, ordered = "category" if is_category else "text", bool(entries.cat.ordered)
    return {"kind": kind, "array": entries.cat.codes.to_numpy(), "levels": levels, "ordered": ordered}


def _decoded(
    kind: str, array: np.ndarray, levels: tuple = (), ordered: bool = False, unit: str = "", zone: str | None = None
) -> Any:
    if kind == "number":
        return array
    if kind == "date":
        times = pd.Series(array.astype(f"datetime64[{unit}]"))
        return times if zone is None else times.dt.tz_localize("UTC").dt.tz_convert(zone)
    if kind == "duration":
        return array.astype(f"timedelta64[{unit}]")
    column = pd.Series(pd.Categorical.from_codes(array, [*levels], ordered))
    return column if kind == "category" else column.astype(object)


# Flat priors.


def _require_proper(regression: Regression, number: int) -> None:
    """Raise ValueError if the data do not bound coefficients of a term with flat priors, in any of their directions."""
    term: FormulaTerm = regression.terms[number]
    if term.coefficients is None:
        return
    names = term.columns[0].names
    priors = term.coefficients.priors
    flat = [place for place, name in enumerate(names) if name in priors and priors[name].scale == np.inf]
    if not flat:
        return
    listed = [term.prefix + names[place] for place in flat]
    if len(regression.classes) > 1:
        raise ValueError(
            f"priors: the prior of {listed[0]} must not be flat, since the classes of {regression.family!r} have the "
            "same terms, which only a proper prior distinguishes. Give it dist.Normal(mean, sd)."
        )
    observed = ~np.isnan(regression.y.reshape(len(regression.X), -1)).any(axis=1)
    above, below = _tails(regression, number, observed)
    X = regression.X[observed][:, regression.blocks[number]][:, flat]
    rows = above | below
    norms = np.linalg.norm(X[rows], axis=0)
    normalised = X[rows] / np.where(norms > 0.0, norms, 1.0)
    # Smaller singular values of normalised columns are rounding, as are smaller entries of directions.
    kernel = scipy.linalg.null_space(np.linalg.qr(normalised, mode="r"), rcond=1e-10)
    if kernel.size:
        chosen = [name for name, row in zip(listed, kernel, strict=True) if np.abs(row).max() > 1e-6]
        raise ValueError(
            f"priors: the data do not determine {', '.join(chosen)} with flat priors: their columns are linearly "
            "dependent in the rows with information on them. Give one dist.Normal(mean, sd), or leave it out."
        )
    if _is_unbounded(normalised, above[rows], below[rows]):
        # Those without which the others are bounded; all if there is none.
        one_less = [_is_unbounded(np.delete(normalised, k, axis=1), above[rows], below[rows]) for k in range(len(flat))]
        chosen = [name for name, is_worse in zip(listed, one_less, strict=True) if not is_worse] or listed
        raise ValueError(
            f"priors: the data do not bound {', '.join(chosen)}, whose priors are flat: along a direction of them the "
            "likelihood falls in no row, as if a column separates y. Give one of them dist.Normal(mean, sd)."
            if len(chosen) > 1
            else f"priors: the data do not bound {chosen[0]}, whose prior is flat: in a direction of it the likelihood "
            "falls in no row, as if a column separates y. Give it dist.Normal(mean, sd)."
        )


def _tails(regression: Regression, number: int, observed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether the likelihood of each observed row falls as the term's latent goes up, and as it goes down."""
    # By nats, from a latent that is far from its prior mean, in units or deviations of y, to one twice as far.
    far, fall = 1e3, 1e-6
    model, y = regression.model, regression.y[observed]
    means = np.concatenate([np.full(gp.size, float(gp.mean.value)) for gp in model.gps])
    first = y if y.ndim == 1 else y[:, 0]
    distance = far * max(1.0, float(np.std(first)), float(np.max(np.abs(first - means[number]))))

    def at(step: float) -> np.ndarray:
        f = np.tile(means, (len(y), 1))
        f[:, number] += step
        with np.errstate(all="ignore"):
            values = np.asarray(log_density(model.likelihood, y, f))
        return np.where(np.isfinite(values), values, -np.inf)

    def falls(sign: float) -> np.ndarray:
        nearer, farther = at(sign * distance), at(2.0 * sign * distance)
        return np.isneginf(farther) | (farther < nearer - fall)

    return falls(1.0), falls(-1.0)


def _is_unbounded(X: np.ndarray, above: np.ndarray, below: np.ndarray) -> bool:
    """Whether there is a direction b along which no row's likelihood falls, and X b is not zero."""
    codes = np.unique(np.column_stack([X, above, below]), axis=0)
    above, below = codes[:, -2] > 0.0, codes[:, -1] > 0.0
    Q = np.linalg.qr(codes[:, :-2])[0] * np.sqrt(len(codes))
    # A row whose likelihood falls upwards alone allows X b <= 0; at most 1, to limit b.
    signs = np.where(above & ~below, -1.0, np.where(below & ~above, 1.0, 0.0))
    one_sided = signs != 0.0
    if not (one_sided.any() and Q.size):
        return False
    sided, others = signs[one_sided, None] * Q[one_sided], Q[~one_sided]
    limits = np.concatenate([np.ones(len(sided)), np.zeros(len(sided))])
    fixed = (others, np.zeros(len(others))) if len(others) else (None, None)
    A = np.concatenate([sided, -sided])
    solved = scipy.optimize.linprog(-sided.sum(axis=0), A, limits, *fixed, bounds=(None, None))
    # A smaller sum is rounding.
    return solved.x is not None and -solved.fun > 1e-6
