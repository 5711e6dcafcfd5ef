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
    **dict.fromkeys(("mm", "gr", "re", "us", "diag", "cs_group", "fcor"), _GROUPS),
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
# What to write for an option of gp, s and ar1.
OPTIONS: dict[str, str] = {
    "bs": "s(x) is a Matern52 process beside a line; gp(x, period=12) is cyclic, gp(x, z) a surface, gp(x, by=g) a "
    "function of each level, and (1|g) an effect of each.",
    **dict.fromkeys(("m", "c", "df", "num_basis"), "Write k=20 for inducing inputs, which have no basis."),
    **dict.fromkeys(("kernel", "covfn", "cov_function"), "Write gp(x, cov='rbf')."),
    "model": "Write ar1(t), s(x) for rw2, gp(x, z) for spde, and (1|g) for iid.",
    "gr": "Equal rows share the value of a process already.",
    "scale": "Lengthscales are in the units of the columns.",
    **dict.fromkeys(("replicate", "group"), "Write by=g."),
    **dict.fromkeys(("p", "q", "time", "t"), "Write ar1(t), of first order, and by=g for a series of each group."),
    **dict.fromkeys(("fx", "sp", "id", "xt", "pc", "knots", "hyper", "prior"), "Priors are the argument priors."),
}
# A covariance of brms and others.
COVARIANCES: dict[str, str] = {
    **dict.fromkeys(("exp_quad", "se", "squared_exponential", "sqexp", "expquad", "gaussian", "RBF"), "rbf"),
    **dict.fromkeys(("exponential", "exp", "matern1/2", "matern0.5", "ou", "Matern12"), "matern12"),
    **dict.fromkeys(("matern", "matern15", "matern3/2", "matern1.5", "Matern32"), "matern32"),
    **dict.fromkeys(("matern25", "matern5/2", "matern2.5", "Matern52"), "matern52"),
    **dict.fromkeys(("cosine", "per", "Periodic"), "periodic"),
}
# A family, in lower case.
FAMILIES: dict[str, str] = {
    **dict.fromkeys(("normal", "norm"), "gaussian"),
    **dict.fromkeys(("t", "student_t", "studentt", "scat"), "student"),
    **dict.fromkeys(("double_exponential", "doubleexponential"), "laplace"),
    **dict.fromkeys(("log_normal", "lognorm"), "lognormal"),
    **dict.fromkeys(("logistic", "binary", "logit", "bernoulli_logit"), "bernoulli"),
    **dict.fromkeys(("betabinomial", "beta-binomial", "quasibinomial"), "beta_binomial"),
    "betar": "beta",
    **dict.fromkeys(("nb", "negative_binomial", "negativebinomial", "neg_binomial", "neg_binomial_2"), "negbinomial"),
    **dict.fromkeys(("nbinom", "nbinom2", "quasipoisson", "negative.binomial", "geometric"), "negbinomial"),
    **dict.fromkeys(("zip", "zeroinflatedpoisson", "zero_inflated"), "zero_inflated_poisson"),
    **dict.fromkeys(
        ("zinb", "zero_inflated_nb", "zero_inflated_negative_binomial", "zeroinflatednegativebinomial"),
        "zero_inflated_negbinomial",
    ),
    **dict.fromkeys(("hurdle", "truncated_poisson"), "hurdle_poisson"),
    **dict.fromkeys(("hurdle_negative_binomial", "hurdle_nb"), "hurdle_negbinomial"),
    **dict.fromkeys(("multinomial", "multinom", "softmax", "multinomial_logit"), "categorical"),
    **dict.fromkeys(("ordinal", "ordered", "ocat", "polr", "cumulative_logit", "ordered_logistic"), "cumulative"),
    **dict.fromkeys(("log_logistic", "log-logistic"), "loglogistic"),
    **dict.fromkeys(("exponential", "cox", "coxph", "survival"), "weibull"),
}
