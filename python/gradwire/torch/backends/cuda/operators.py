"""Where the operators of the extension are."""

from typing import Any

import torch

__all__ = ["operators"]

_library = "gradwire"
"""The tests, which have no GPU, name the library of operators that they have compiled."""


def operators() -> Any:
    """Return the operators of the extension, once it is loaded."""
    return getattr(torch.ops, _library)
