"""The systems of five papers under their own names, each a model and a call of the package's engines.

Source: Wenzel et al. 2019; Galy-Fajou et al. 2019; Liu et al. 2019; Passerello 2021; Izmailov and Kropotov 2017.
"""

from pgmodels.systems.galy_fajou import logistic_softmax, multinomial_probit, robust_max, softmax
from pgmodels.systems.izmailov import svi, vi_jj, vi_jj_full, vi_jj_hybrid, vi_taylor
from pgmodels.systems.liu import gpc_1, gpc_2, gpc_3, gpc_sm
from pgmodels.systems.passerello import hgpr, merged, pgpr, sgpr, svgp
from pgmodels.systems.wenzel import svgpc, x_gpc

__all__ = [
    "gpc_1",
    "gpc_2",
    "gpc_3",
    "gpc_sm",
    "hgpr",
    "logistic_softmax",
    "merged",
    "multinomial_probit",
    "pgpr",
    "robust_max",
    "sgpr",
    "softmax",
    "svgp",
    "svgpc",
    "svi",
    "vi_jj",
    "vi_jj_full",
    "vi_jj_hybrid",
    "vi_taylor",
    "x_gpc",
]
