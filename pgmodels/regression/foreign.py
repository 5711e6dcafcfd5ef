"""Names of R, brms, mgcv, lme4, INLA, rstanarm and bambi that formulas do not have, and what to write for them."""

_BASIS = "write s(x), a Matern52 process beside a line, or a basis bs(x, df=5), cr(x, df=5) or cc(x, df=5)."
_FACTOR = "write C(g) among linear terms, and the name of the column alone in (1|g) and by=."
_SURFACE = "write gp(x, z, iso=False) for a surface, with a lengthscale of each column."
_GROUPS = "is not available; write an effect of each group, (1|g)."
_ORDINAL = "write the column as numbers in s(x), or as ordered categories in gp(x)."
_SERIES = "write ar1(t) for an autoregression in the predictor, or gp(t, cov='matern32')."
_SPACE = "is not available; write gp(x, z) of the coordinates of places, or (1|place)."
_ERRORS = "is not available: columns have no errors and no missing values."
_DATA = "compute it as a column of data."
_WEIGHTS = "is the argument weights of pgm.formula, as in weights='w'."
_CENSORED = (
    "write Surv(time, event) for right-censored times, Surv(entry, exit, event) for late entries and "
    "Surv(lower, upper, type='interval2') for intervals."
)
_TERM = (
    "gp, s, ar1, offset and (1|g) must be terms by themselves. For a function of each level use by=, as in gp(x, by=g)."
)
_RESPONSE = "is for the response, on the left of ~."

# What to write for a function.
REMEDIES: dict[str, str] = {
    **dict.fromkeys(("gp", "s", "ar1", "offset"), _TERM),
    **dict.fromkeys(("p", "Surv", "se", "trials"), _RESPONSE),
    **dict.fromkeys(("factor", "as.factor", "as_factor", "category", "ordered", "as.ordered", "relevel"), _FACTOR),
    **dict.fromkeys(("as.numeric", "as.integer", "as.character", "cut", "interaction", "hashed", "lag"), _DATA),
    **dict.fromkeys(("round", "rank", "ntile", "cumsum", "diff", "mean", "sd", "min", "max", "sum", "len"), _DATA),
    **dict.fromkeys(("pd.cut", "np.digitize", "np.round", "np.mean", "np.std", "np.log10p"), _DATA),
    **dict.fromkeys(("ns", "rcs", "rcspline", "ps", "lo", "loess", "lspline", "pspline", "spline"), _BASIS),
    **dict.fromkeys(("te", "ti", "t2"), _SURFACE),
    "hsgp": "write gp(x, k=20), with k inducing inputs.",
    "f": "write s(x) for INLA's rw2, ar1(t), gp(x, z) for spde, gp(t, period=12) for seasonal, and (1|g) for iid. A "
    "function f of your own is passed by context={'f': f}.",
    "fs": "write s(x, by=g).",
    **dict.fromkeys(("mm", "gr", "re", "car", "us", "diag", "cs_group", "fcor"), _GROUPS),
    **dict.fromkeys(("car", "sar", "mrf", "besag", "bym2", "mat", "exp_cov"), _SPACE),
    **dict.fromkeys(("ar", "ma", "arma", "cosy", "unstr", "ou", "AR1", "corAR1", "rw1", "rw2"), _SERIES),
    **dict.fromkeys(("mo",), _ORDINAL),
    **dict.fromkeys(("me", "mi", "subset"), _ERRORS),
    **dict.fromkeys(("weights", "weighted"), _WEIGHTS),
    **dict.fromkeys(("cens", "censored", "truncated", "trunc"), _CENSORED),
    "constrained": "is not available.",
    "rate": "write offset(log(exposure)) among the terms.",
    "cbind": "cbind(successes, failures) is written p(successes, trials).",
    "prop": "write p(successes, trials).",
    "proportion": "write p(successes, trials).",
    "ifelse": "write np.where(x > 2, 1, 0).",
    "case_when": "write np.where(x > 2, 1, 0).",
    "pmin": "write np.minimum(a, b).",
    "pmax": "write np.maximum(a, b).",
    "ln": "write log(x).",
    "np.max": "write np.maximum(a, b) of two columns.",
    "np.min": "write np.minimum(a, b) of two columns.",
    "num": "num(x) is for by=, as in gp(t, by=num(x)).",
    "logit": "write log(x / (1 - x)).",
    "plogis": "write 1 / (1 + exp(-x)).",
    "expit": "write 1 / (1 + exp(-x)).",
    "bf": "write a list of formulas, as in ['y ~ x', 'f[1] ~ z'].",
    "mvbind": "is not available: a formula has one response.",
}
# The name of a family.
FAMILIES: dict[str, str] = {
    "normal": "gaussian",
    "t": "student",
    "student_t": "student",
    "studentt": "student",
    "scat": "student",
    "asym_laplace": "laplace",
    "double_exponential": "laplace",
    "lognormal2": "lognormal",
    "log_normal": "lognormal",
    "logistic": "bernoulli",
    "binary": "bernoulli",
    "logit": "bernoulli",
    "betabinomial": "beta_binomial",
    "betar": "beta",
    "zero_one_inflated_beta": "beta",
    "nb": "negbinomial",
    "negative_binomial": "negbinomial",
    "negativebinomial": "negbinomial",
    "neg_binomial": "negbinomial",
    "neg_binomial_2": "negbinomial",
    "nbinom": "negbinomial",
    "nbinom2": "negbinomial",
    "quasipoisson": "negbinomial",
    "quasibinomial": "beta_binomial",
    "count": "poisson",
    "zip": "zero_inflated_poisson",
    "ziP": "zero_inflated_poisson",
    "zeroinflatedpoisson": "zero_inflated_poisson",
    "zinb": "zero_inflated_negbinomial",
    "zero_inflated_nb": "zero_inflated_negbinomial",
    "zero_inflated_negative_binomial": "zero_inflated_negbinomial",
    "zeroinflatednegativebinomial": "zero_inflated_negbinomial",
    "hurdle_negative_binomial": "hurdle_negbinomial",
    "hurdle_nb": "hurdle_negbinomial",
    "truncated_poisson": "hurdle_poisson",
    "multinomial": "categorical",
    "multinom": "categorical",
    "softmax": "categorical",
    "ordinal": "cumulative",
    "ordered": "cumulative",
    "ocat": "cumulative",
    "polr": "cumulative",
    "log_logistic": "loglogistic",
    "survival": "weibull",
    "exponential": "weibull",
}
