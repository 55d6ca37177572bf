"""Which GPUs a library has code for."""

from collections.abc import Sequence

import torch

__all__ = ["ALL", "Capability", "flags", "names", "of_devices", "runs_on"]

Capability = tuple[int, int]
"""What torch calls the capability of a GPU: (9, 0) is that of architecture 90."""

ALL = ("80", "90", "100", "120")
"""The architectures of a library for everyone; newer ones compile the last one's PTX."""


def flags(architectures: Sequence[str]) -> list[str]:
    """Return what tells nvcc to make machine code for all, and PTX for the last."""
    made = [f"-gencode=arch=compute_{each},code=sm_{each}" for each in architectures]
    last = architectures[-1]
    return [*made, f"-gencode=arch=compute_{last},code=compute_{last}"]


def of_devices() -> tuple[Capability, ...]:
    """Return the capabilities of the GPUs that torch sees. Begins to use CUDA in this process."""
    devices = range(torch.cuda.device_count())
    return tuple(sorted({torch.cuda.get_device_capability(device) for device in devices}))


def names(capabilities: Sequence[Capability]) -> tuple[str, ...]:
    """Return the architectures of GPUs."""
    return tuple(f"{major}{minor}" for major, minor in capabilities)


def runs_on(architectures: Sequence[str], capability: Capability) -> bool:
    """Tell whether a library that was made with `flags` has code for a GPU.

    Machine code runs on GPUs of the same major number from its minor number on, PTX on all later
    ones. What is for an architecture with a letter runs on that one alone.
    """
    if any(_machine_code_runs(each, capability) for each in architectures):
        return True
    last = architectures[-1]
    return last.isdecimal() and _number(last) <= capability


def _machine_code_runs(architecture: str, capability: Capability) -> bool:
    own = _number(architecture)
    if not architecture.isdecimal():
        return own == capability
    return own[0] == capability[0] and own <= capability


def _number(architecture: str) -> Capability:
    digits = architecture.rstrip("abcdefghijklmnopqrstuvwxyz")
    return int(digits[:-1]), int(digits[-1])
