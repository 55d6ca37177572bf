"""The bytes of torch tensors, for `gradwire.delta`."""

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.delta.tensors import Remote
from gradwire.weights import RawTensor
from gradwire.weights.header import DTYPE_NAMES


class DeviceBytes(Remote):
    """The bytes of a tensor on a device."""

    def __init__(self, dtype: str, tensor: torch.Tensor) -> None:
        self.dtype, self.shape, self.nbytes = dtype, tuple(tensor.shape), tensor.nbytes
        self.place = str(tensor.device), tensor.data_ptr()
        self._bytes = _flat(tensor)

    def buffer(self, nbytes: int) -> NDArray[np.uint8]:
        """Return memory of the host that is fast to copy to and from."""
        pinned = self._bytes.is_cuda
        memory: NDArray[np.uint8]
        memory = torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned).numpy()
        return memory

    def read(self, start: int, out: NDArray[np.uint8]) -> None:
        """Copy bytes from a position on to the host."""
        torch.from_numpy(out).copy_(self._bytes[start : start + len(out)])

    def write(self, start: int, data: NDArray[np.uint8]) -> None:
        """Copy bytes from the host to a position."""
        self._bytes[start : start + len(data)].copy_(torch.from_numpy(data))


def bytes_of(tensor: torch.Tensor, name: str) -> RawTensor | DeviceBytes:
    """Return the bytes of a tensor, in its own memory.

    Raises a TypeError for a tensor of a subclass or of a dtype without a name in files, and a
    ValueError for one that is not contiguous, or on meta.
    """
    known = {each: dtype for dtype, each in DTYPE_NAMES.items()}
    dtype = known.get(str(tensor.dtype).removeprefix("torch."))
    if dtype is None or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(
            f"{name!r} is a {type(tensor).__name__} of {tensor.dtype}: give plain tensors, as "
            "to_local() of sharded ones, of a dtype that safetensors files can hold"
        )
    strange = tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg()
    if strange or tensor.is_meta or not tensor.is_contiguous():
        raise ValueError(f"{name!r} is not contiguous, or has no values: give its contiguous()")
    if tensor.device.type != "cpu":
        return DeviceBytes(dtype, tensor)
    return RawTensor(dtype, tuple(tensor.shape), _flat(tensor).numpy())


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)
