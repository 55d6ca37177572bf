"""Where the operators of the extension are."""

from typing import Any

import torch

__all__ = ["are_for", "operators"]

_library, _device = "gradwire", "cuda"
"""The tests, which have no GPU, name a library of operators for the CPU."""


def operators() -> Any:
    """Return the operators of the extension, once it is loaded."""
    return getattr(torch.ops, _library)


def are_for(tensor: torch.Tensor) -> bool:
    """Tell whether the operators take a tensor, by the kind of its device."""
    return tensor.device.type == _device
