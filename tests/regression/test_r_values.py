"""Regressions beside R: glmmTMB 1.1.5, lme4 1.1, mgcv 1.8-41, survival 3.5 and MASS 7.3, of R 4.2.2.

Estimates there are of maximum likelihood, or REML for Gaussian responses, without priors; here they are posterior means
with the default ones, which are wide. Data are of these packages, in the folder r of PGMODELS_DATA.
"""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import pgmodels as pgm

FOLDER = Path(os.environ.get("PGMODELS_DATA", "")) / "r"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="the folder r of PGMODELS_DATA is not there"),
]


def factors(*names):
    return lambda frame: frame.assign(**{name: frame[name].astype(str) for name in names})


OWLS = "SiblingNegotiation ~ FoodTreatment * SexParent + offset(log(BroodSize)) + (1|Nest)"
FOOD, MALE = "FoodTreatment[T.Satiated]", "SexParent[T.Male]"
SITES = "count ~ mined + cover + (1|site)"
LUNG = "Surv(time, status == 2) ~ age + sex"


def named(*names):
    return lambda *pairs: dict(zip(names, pairs, strict=True))


owls = named("Intercept", FOOD, MALE, f"{FOOD}:{MALE}")
sites = named("Intercept", "mined[T.yes]", "cover")
times = named("Intercept", "age", "sex")
positive = lambda frame: frame[frame["count"] > 0]  # noqa: E731


def ovary(frame):
    t = 2.0 * np.pi * frame["Time"]
    place = frame.groupby("Mare").cumcount().astype(float)
    return frame.assign(s=np.sin(t), c=np.cos(t), place=place, Mare=frame["Mare"].astype(str))


def four_weeks(frame):
    frame = factors("Rat", "Diet")(frame[frame["Time"].isin([1, 22, 43, 64])])
    return frame.assign(day=frame["Time"].astype(str).str.zfill(2))


# By model: data, what is done to them, formulas, family, estimates with standard errors there, and parts of these by
# which means and deviations may differ. Where R's likelihood has its maximum at an end, or few groups bear on it, the
# posterior mean is elsewhere.
ROWS = {
    "owls poisson": ("Owls", None, OWLS, "poisson", owls(
        (0.65584, 0.09571), (-0.65612, 0.05614), (-0.03705, 0.04507), (0.13135, 0.07047))),
    "owls negative binomial": ("Owls", None, OWLS, "negbinomial", owls(
        (0.70835, 0.1347), (-0.76769, 0.1657), (-0.02586, 0.1461), (0.15773, 0.2056))),
    "owls nbinom1": ("Owls", None, OWLS, "nbinom1", owls(
        (0.67674, 0.1134), (-0.87038, 0.1396), (0.04469, 0.1071), (0.12173, 0.1752))),
    "owls generalised Poisson": ("Owls", None, OWLS, "genpois", owls(
        (0.68694, 0.1172), (-0.93165, 0.1377), (0.04626, 0.1042), (0.12733, 0.1726))),
    "owls zero-inflated": ("Owls", None, OWLS, "zero_inflated_poisson", owls(
        (0.87012, 0.07849), (-0.26853, 0.05922), (-0.07925, 0.04584), (0.09639, 0.07255))
        | {"f[1]: Intercept": (-1.053, 0.09378)}),
    "owls zero-inflated negative binomial": ("Owls", None, OWLS, "zero_inflated_negbinomial", owls(
        (0.85051, 0.0998), (-0.39447, 0.1376), (-0.07612, 0.1045), (0.13189, 0.1647))
        | {"f[1]: Intercept": (-1.264, 0.1203)}),
    "owls hurdle": ("Owls", None, OWLS, "hurdle_negbinomial", owls(
        (0.83933, 0.09588), (-0.25843, 0.126), (-0.07246, 0.1008), (0.08124, 0.1571))
        | {"f[1]: Intercept": (-1.0437, 0.0931)}),
    "salamanders poisson": ("Salamanders", None, SITES, "poisson", sites(
        (0.82509, 0.1898), (-2.3956, 0.3343), (-0.12042, 0.1645))),
    "salamanders negative binomial": ("Salamanders", None, SITES, "negbinomial", sites(
        (0.84859, 0.19), (-2.3868, 0.3351), (-0.11878, 0.1649))),
    "salamanders nbinom1": ("Salamanders", None, SITES, "nbinom1", sites(
        (0.7732, 0.1625), (-1.9586, 0.2921), (-0.07911, 0.1412))),
    "salamanders hurdle": ("Salamanders", None, [SITES, "hu ~ mined"], "hurdle_poisson", sites(
        (1.3453, 0.05582), (-1.1325, 0.1665), (-0.19922, 0.05743))
        | {"hu: Intercept": (-0.48551, 0.1123), "hu: mined[T.yes]": (2.1505, 0.1921)}),
    "salamanders truncated poisson": ("Salamanders", positive, SITES, "truncated_poisson", sites(
        (1.3453, 0.05582), (-1.1325, 0.1665), (-0.19922, 0.05743))),
    "salamanders truncated negative binomial": ("Salamanders", positive, SITES, "truncated_negbinomial", sites(
        (1.1014, 0.113), (-1.312, 0.2359), (-0.234, 0.08977))),
    "sleep": ("sleepstudy", factors("Subject"), "Reaction ~ Days + (Days|Subject)", "gaussian", {
        "Intercept": (251.41, 6.825), "Days": (10.467, 1.546)}),
    "sleep, independent": ("sleepstudy", factors("Subject"), "Reaction ~ Days + (Days||Subject)", "gaussian", {
        "Intercept": (251.41, 6.885), "Days": (10.467, 1.56)}),
    "sleep, deviations": ("sleepstudy", factors("Subject"), ["Reaction ~ Days + (1|Subject)", "sigma ~ Days"],
        "gaussian", {"Intercept": (252.83, 8.017), "Days": (10.093, 0.8029),
        "sigma: Intercept": (3.0347, 0.1269), "sigma: Days": (0.08319, 0.02548)}),
    "chicks": ("ChickWeight", factors("Chick", "Diet"), "weight ~ Time * Diet + (Time|Chick)", "gaussian", {
        "Intercept": (33.661, 2.92), "Time": (6.277, 0.7614), "Diet[T.3]": (-15.411, 5.011),
        "Time:Diet[T.2]": (2.3321, 1.304), "Time:Diet[T.3]": (5.1459, 1.304), "Time:Diet[T.4]": (3.255, 1.305)}),
    "rats": ("BodyWeight", factors("Rat", "Diet"), "weight ~ Time * Diet + (Time|Rat)", "gaussian", {
        "Intercept": (251.65, 13.09), "Time": (0.35964, 0.09114), "Diet[T.2]": (200.67, 22.68),
        "Time:Diet[T.2]": (0.60584, 0.1579), "Time:Diet[T.3]": (0.29834, 0.1579)}),
    "penicillin": ("penicillin", None, "diameter ~ 1 + (1|plate) + (1|sample)", "gaussian", {
        "Intercept": (22.972, 0.8086)}),
    "gasoline": ("gasbeta", factors("Sample"), "y ~ temp + (1|Sample)", "beta", {
        "Intercept": (-5.1823, 0.2405), "temp": (1.0829, 0.04937)}),
    "ticks": ("grouseticks", factors("YEAR", "BROOD", "INDEX", "LOCATION"),
        "TICKS ~ YEAR + cHEIGHT + (1|BROOD) + (1|INDEX) + (1|LOCATION)", "poisson", {
        "Intercept": (0.37278, 0.1964), "YEAR[T.96]": (1.1804, 0.2381), "YEAR[T.97]": (-0.9787, 0.2628),
        "cHEIGHT": (-0.023761, 0.003439)}),
    "follicles, ARMA(1, 1)": ("Ovary", ovary, "follicles ~ s + c + ar1(place, by=Mare)", "gaussian", {
        "Intercept": (12.0587, 0.83628), "s": (-2.88324, 0.50692), "c": (-0.80356, 0.5703)}),
    "rats, unstructured": ("BodyWeight", four_weeks, "weight ~ Diet + day + (0 + day|Rat)", "gaussian", {
        "Diet[T.2]": (221.076, 22.49), "Diet[T.3]": (263.609, 22.49), "day[T.22]": (13.3125, 2.5976),
        "day[T.43]": (20.0625, 3.6951), "day[T.64]": (38.125, 5.935)}),
    "rats, equal correlations": ("BodyWeight", four_weeks, "weight ~ Diet + day + (1|Rat)", "gaussian", {
        "Diet[T.2]": (220.031, 22.514), "Diet[T.3]": (261.594, 22.514), "day[T.64]": (38.125, 3.9266)}),
    "rats of litters": ("lirat", factors("grp"), "p(R, N) ~ grp", "beta_binomial", {
        "Intercept": (1.3458, 0.2481), "grp[T.2]": (-3.1143, 0.502), "grp[T.4]": (-3.9225, 0.668)}),
    "rats of litters, probit": ("lirat", None, "p(R, N) ~ hb", "binomial, probit", {
        "Intercept": (1.98566, 0.16098), "hb": (-0.30426, 0.023554)}),
    "rats of litters, cauchit": ("lirat", None, "p(R, N) ~ hb", "binomial, cauchit", {
        "Intercept": (4.94742, 0.62622), "hb": (-0.79249, 0.1027)}),
    "lung, Weibull": ("lung", None, LUNG, "weibull", times(
        (6.2749, 0.4814), (-0.012257, 0.006957), (0.38209, 0.1275))),
    "lung, log-normal": ("lung", None, LUNG, "lognormal", times(
        (6.408, 0.5929), (-0.023356, 0.008388), (0.51925, 0.1552))),
    "lung, log-logistic": ("lung", None, LUNG, "loglogistic", times(
        (5.9223, 0.5327), (-0.014005, 0.007714), (0.47751, 0.1404))),
    "lung, Cox": ("lung", None, LUNG, "cox", {"age": (0.017045, 0.009223), "sex": (-0.51322, 0.16746)}),
    "lung, Cox, late entries": ("lung", lambda frame: frame.assign(entry=np.maximum(frame["time"] - 200.0, 0.0)),
        "Surv(entry, time, status == 2) ~ age + sex", "cox", {"age": (0.016717, 0.009047), "sex": (-0.45334, 0.16862)}),
    "kidney, log-normal": ("kidney", None, "Surv(time, status) ~ age + sex", "lognormal", times(
        (2.0676, 0.6981), (-0.0052856, 0.009706), (1.3767, 0.3262))),
    "absences": ("quine", None, "Days ~ Sex + Age + Eth", "negbinomial", {
        "Intercept": (3.0079, 0.2193), "Sex[T.M]": (0.06357, 0.1596), "Age[T.F2]": (0.17951, 0.2317),
        "Eth[T.N]": (-0.56704, 0.1546)}),
    "ozone, logarithm of the mean": ("airquality", pd.DataFrame.dropna, "Ozone ~ Wind + Temp", "gaussian, log", {
        "Intercept": (1.355, 0.5922), "Wind": (-0.088565, 0.01535), "Temp": (0.039905, 0.006125)}),
    "ozone, gamma": ("airquality", pd.DataFrame.dropna, "Ozone ~ Wind + Temp", "gamma", {
        "Intercept": (0.3443, 0.5503), "Wind": (-0.064394, 0.01564), "Temp": (0.049399, 0.005837)}),
    "ozone, smooths": ("airquality", pd.DataFrame.dropna, "Ozone ~ s(Wind) + s(Temp) + Solar.R", "gaussian", {
        "Intercept": (30.281, 4.04), "Solar.R": (0.063948, 0.01986)}),
    "curves of levels": ("g4", factors("fac"), "y ~ fac + s(x2, by=fac) + s(x0)", "gaussian", {
        "Intercept": (1.0779, 0.2208), "fac[T.2]": (-1.5423, 0.3223), "fac[T.3]": (1.8983, 0.3057)}),
}  # fmt: skip
# Parts of standard errors by which means may differ, and by which these may: of few groups the posterior is wider.
MEAN, LOW, HIGH = 0.25, 0.9, 1.3


@pytest.mark.parametrize("name", ROWS)
def test_estimates_and_errors_are_those_of_r(name):
    file, change, text, family, expected = ROWS[name]
    frame = (change or pd.DataFrame)(pd.read_csv(FOLDER / f"{file}.csv"))
    family, _, link = family.partition(", ")
    summary = pgm.formula(text, frame, family=family, link=link or None).fit(progress=False).summary()
    there, here = np.array([*expected.values()]), summary.loc[[*expected], ["mean", "sd"]].to_numpy(float)
    shifts, ratios = (here[:, 0] - there[:, 0]) / there[:, 1], here[:, 1] / there[:, 1]
    assert np.abs(shifts).max() < MEAN
    assert LOW < ratios.min() <= ratios.max() < HIGH


def test_where_the_likelihood_has_its_maximum_elsewhere_draws_decide():
    # glmmTMB's maximum has a deviation of the sites of 0.15, and mined -1.17 (0.19): the posterior is not about it.
    frame = pd.read_csv(FOLDER / "Salamanders.csv")
    regression = pgm.formula([SITES, "zi ~ mined"], frame, family="zero_inflated_poisson")
    fitted, drawn = (one.summary() for one in (regression.fit(), regression.nuts(seed=1, num_samples=400)))
    shifts = (fitted["mean"] - drawn["mean"])[:5].astype(float) / drawn["sd"][:5].astype(float)
    assert shifts.abs().max() < MEAN
