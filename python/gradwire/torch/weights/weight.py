"""The bytes of one packed weight, on its device."""

import copy
import math
import warnings
from functools import partial
from typing import Any

import torch

from gradwire.frame import Frame
from gradwire.torch.weights.ops import in_graph
from gradwire.torch.weights.view import WeightView
from gradwire.weights import Packed as Packed


class PackedWeight:
    """One packed tensor on a device. Modules whose weights are tied share one.

    Attributes
    ----------
    packed : Packed
        The tensor, on the host: it never changes.
    frame : torch.Tensor
        uint8: one frame of all of its bits, on the device. On the CPU it shares the memory of
        `packed`, which may be that of a file.
    grid : tuple of int
        Bits, block and exponent of the frame.
    """

    def __init__(self, packed: Packed, device: torch.device | str = "cpu") -> None:
        self.set(packed, device)

    def set(self, packed: Packed, device: torch.device | str) -> None:
        """Replace the tensor, or move to another device."""
        frame = as_tensor(packed.joined())
        exponent = int(frame[10:12].view(torch.int16))
        self.packed, self.frame = packed, frame.to(device)
        self.grid = (packed.bits, packed.block, exponent)

    def to(self, device: torch.device) -> None:
        """Move the bytes, for all modules that share them."""
        if device != self.frame.device:
            self.frame = as_tensor(self.packed.joined()).to(device)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the bytes for saving, by the suffix of the tensor's name."""
        every = {"": self.packed.frame}
        if self.packed.further is not None:
            every[".more.0"] = self.packed.further
        return {name: as_tensor(each).to(self.frame.device) for name, each in every.items()}

    def decoded(self, dtype: torch.dtype, row: int | None = None) -> torch.Tensor:
        """Return the decoded values, in the tensor's shape; or of one row, in ``shape[1:]``."""
        rows, cols = rows_of(self.packed.shape)
        indices = None if row is None else torch.tensor([row], device=self.frame.device)
        out: torch.Tensor = torch.ops.gradwire.packed_rows(
            self.frame, indices, rows, cols, self.grid, dtype
        )
        return out.view(self.packed.shape if row is None else self.packed.shape[1:])

    def read(self, dtype: torch.dtype, refusal: str) -> torch.Tensor:
        """Return the values as a module gives them out: read-only; see `WeightView`."""
        if in_graph():
            return self.decoded(dtype)
        meta = torch.empty(self.packed.shape, dtype=dtype, device="meta")
        now = copy.deepcopy(self)  # the bytes as they are, also if others are loaded later
        return WeightView(meta, self.frame.device, partial(now.decoded, dtype), refusal, self)

    def __str__(self) -> str:
        return f"bits={self.packed.bits}, block={self.packed.block}"

    def __deepcopy__(self, memo: object) -> "PackedWeight":
        # The bytes never change, so copies share them; moving one leaves the other.
        copied = object.__new__(PackedWeight)
        copied.__dict__.update(self.__dict__)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedWeight, (self.packed, self.frame.device)


def parse(bytes_of: list[torch.Tensor], like: Packed) -> Packed:
    """Return a packed tensor of saved bytes, which replaces one of the same shape and dtype."""
    for each in bytes_of:
        if each.dtype is not torch.uint8 or each.dim() != 1:
            raise TypeError(
                f"expected the bytes of a frame, torch.uint8 of one dimension, got {each.dtype} of "
                f"shape {tuple(each.shape)}; a packed module takes no dense weight"
            )
    own: list[Any] = [each.detach().cpu().clone().numpy() for each in bytes_of]
    Frame(memoryview(own[0]), max_numel=math.prod(like.shape))
    if len(own) == 1:
        return Packed(own[0], like.shape, like.dtype)
    # All codes but the checksum, of as many bits each.
    more = 8 * (own[1].nbytes - 4) // math.prod(like.shape)
    packed = Packed(own[0], like.shape, like.dtype, own[1], more)
    packed.joined()
    return packed


def name_of(dtype: torch.dtype) -> str:
    """Return a dtype's name in files."""
    return str(dtype).removeprefix("torch.")


def packed_name(dtype: torch.dtype) -> str:
    """Return the dtype of a packed tensor in files: float64 was rounded to float32."""
    return "float32" if dtype is torch.float64 else name_of(dtype)


def rows_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return a shape as (rows, columns)."""
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)


def as_tensor(data: Any) -> torch.Tensor:
    """Return bytes as a read-only tensor that shares their memory."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.frombuffer(data, dtype=torch.uint8)
