"""What was decided for each compressed parameter."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ParameterPlan"]


@dataclass(frozen=True, slots=True, eq=False)
class ParameterPlan:
    """How each compressed parameter is sent.

    Attributes
    ----------
    ratios : mapping of str to (float or None)
        Share of the entries that is sent, of which codecs without one take no notice; None if it is
        dense.
    owned : frozenset of str
        Those whose sums go through owners of ranges, where all of their bucket do.
    """

    ratios: Mapping[str, float | None]
    owned: frozenset[str] = frozenset()

    @property
    def codes(self) -> bool:
        """Whether anything is compressed."""
        return any(each is not None for each in self.ratios.values())

    def equals(self, other: "ParameterPlan") -> bool:
        """Tell whether everything is sent as with another one."""
        return self.ratios == other.ratios and self.owned == other.owned
