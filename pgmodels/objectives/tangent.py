"""The interface of lower bounds that are separable over the latents, for steps on some latents at a time."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from pgmodels.objectives.base import sites_of


class Tangent(ABC):
    """A lower bound of an objective with -p log S, where S = constant + Σ_c S_c(m_c, v_c) and S_c > 0.

    -log S >= 1 - S / S0 - log S0, equal where S = S0. Given log S0 of each datum, its ``log_scale``, the bound is
    ``rest`` + Σ_c ``terms``: a step on a subset of the latents needs only their terms. With a random scale its
    expectation is still a lower bound, below the objective by p E[S / S0 - 1 - log(S / S0)].

    ``size`` is the number of latents. Equal tangents share compiled code: a subclass must define __eq__ and __hash__.
    Methods take the means, variances and indices of a subset of the latents; the indices may differ between data.
    """

    size: int

    @abstractmethod
    def selected(self, y: Any, parameters: Mapping[str, Any]) -> tuple[Any, Any]:
        """Indices of the latents selected by the data, as y in f[y], (n, indices); and a mask, 0 at repetitions."""

    @abstractmethod
    def constant(self, y: Any, parameters: Mapping[str, Any]) -> Any:
        """The constant term of S, (n,)."""

    @abstractmethod
    def log_sums(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any], latents: Any) -> Any:
        """log S_c of a subset of latents, (n, latents)."""

    @abstractmethod
    def terms(self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any], latents: Any, log_scale: Any) -> Any:
        """The terms of the bound of a subset of latents, (n, latents)."""

    @abstractmethod
    def rest(self, y: Any, parameters: Mapping[str, Any], log_scale: Any) -> Any:
        """The term of the bound that is free of the latents, (n,)."""

    def sites(
        self, m: Any, v: Any, y: Any, parameters: Mapping[str, Any], latents: Any, log_scale: Any
    ) -> tuple[Any, Any]:
        """The sites of a subset of latents, (n, latents) each; see ``Objective.local_sites``."""
        return sites_of(lambda m, v: self.terms(m, v, y, parameters, latents, log_scale), m, v)
