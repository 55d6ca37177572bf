"""Which backend takes a tensor, and why."""

from dataclasses import dataclass

import torch

from gradwire.torch.backends import cpu, host
from gradwire.torch.backends.interface import Backend

__all__ = ["BackendInUse", "backend", "of"]

_IN_PLACE: Backend = cpu
_STAGED: Backend = host
_COPIES = "tensors are copied to the host, which encodes them"


@dataclass(frozen=True, slots=True)
class BackendInUse:
    """Which backend is used for a device.

    Attributes
    ----------
    name : str
        ``"cpu"`` or ``"host"``.
    reason : str
        Why this one.
    """

    name: str
    reason: str


def backend(device: torch.device | str | int) -> BackendInUse:
    """Return which backend is used for tensors on a device, and why.

    Parameters
    ----------
    device : torch.device, str or int
        As `torch.device` takes it. The device need not be there.

    Returns
    -------
    BackendInUse
        ``name`` is ``"cpu"`` where tensors are encoded in place, and ``"host"`` where they are
        copied to the host and encoded there.

    Raises
    ------
    ValueError
        Tensors of the device ``"meta"`` have no values to encode.
    RuntimeError
        torch knows no such device.
    """
    kind = torch.device(device).type
    if kind == "cpu":
        return BackendInUse(_IN_PLACE.name, "tensors on the CPU are read and written in place")
    if kind == "meta":
        raise ValueError("tensors on meta have no values to encode")
    why = f"gradwire has no backend for {kind}"
    if kind == "cuda":
        why = f"{why} by ROCm" if torch.version.hip else "no backend uses the CUDA extension yet"
    return BackendInUse(_STAGED.name, f"{why}: {_COPIES}")


def of(*tensors: object) -> Backend:
    """Return the backend for the tensors that a call was given; what is none does not count."""
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and not tensor.is_cpu:
            return _STAGED
    return _IN_PLACE
