"""Where the operators of the extension are."""

from typing import Any

import torch

__all__ = ["are_for", "hindrance", "operators"]

_library, _device = "gradwire", "cuda"
"""The tests, which have no GPU, name a library of operators for the CPU."""


def operators() -> Any:
    """Return the operators of the extension, once it is loaded."""
    return getattr(torch.ops, _library)


def are_for(tensor: torch.Tensor) -> bool:
    """Tell whether the operators take a tensor, by the kind of its device."""
    return tensor.device.type == _device


def hindrance(device: torch.device) -> str | None:
    """Return why a device does not run the kernels, or None if it does.

    Starts one that does nothing, and waits for nothing: what is in the way, such as a driver that
    is too old, shows when a kernel is started.
    """
    try:
        operators().probe(torch.empty(0, device=device))
    except AttributeError:
        return "the library is of another version of gradwire"
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return None
