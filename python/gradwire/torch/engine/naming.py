"""Names of parameters, as checkpoints have them."""

from collections.abc import Mapping
from typing import TypeVar

__all__ = ["plain_names"]

T = TypeVar("T")


def plain_names(named: Mapping[str, T]) -> dict[str, T]:
    """Return parameters by names without the prefix that `torch.compile` adds.

    A checkpoint may be saved with `torch.compile` and loaded without it, or vice versa.
    """
    plain = {name.replace("_orig_mod.", ""): each for name, each in named.items()}
    return plain if len(plain) == len(named) else dict(named)
