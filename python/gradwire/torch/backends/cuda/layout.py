"""What a state is on the device: bytes, with the struct that kernels keep and then buffers.

The residual comes first, then the moment beside it, as far as a memory has them; each twice, of
which one is current and the other one is for the next encode, or with ``low_memory`` once.
"""

import ctypes
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray

from gradwire.torch.backends.cuda import structs
from gradwire.torch.backends.cuda.plans import completed

if TYPE_CHECKING:
    from gradwire.codec import Codec

__all__ = ["Layout", "scalars_of", "struct_of"]

_ROOM, _ALIGN = 1024, 256  # as csrc/ops/pieces.h has them
_MOMENTS = {"momentum_correction": "momentum", "adam_correction": "second_moment"}
_TRACKED = ("bound", "threshold", "location")
_CONTROLLER = ("stages", "last", "sum", "seen", "aim", "misses", "rest", "rests")


class Layout:
    """Where the struct and the buffers are in the bytes of a state.

    Attributes
    ----------
    nbytes : int
        Of all.
    names : tuple of str
        The buffers that there are, as `gradwire.State.state_dict` calls them.

    Parameters
    ----------
    codec, numel
        As of `gradwire.State`.
    """

    def __init__(self, codec: "Codec", numel: int) -> None:
        memory = structs.memory_of(codec.memory)
        sides = 1 if memory.low_memory else 2
        dtypes = {"residual": torch.bfloat16 if memory.narrow else torch.float32}
        if codec.memory.kind in _MOMENTS:
            dtypes[_MOMENTS[codec.memory.kind]] = torch.float32
        if not codec.memory.keeps:
            dtypes = {}
        self.names = tuple(dtypes)
        self._views: dict[str, list[tuple[int, int, torch.dtype]]] = {}
        at = _ROOM
        for name, dtype in dtypes.items():
            nbytes = dtype.itemsize * numel
            self._views[name] = []
            for _ in range(sides):
                self._views[name].append((at, at + nbytes, dtype))
                at += -(-nbytes // _ALIGN) * _ALIGN
        self.nbytes = at

    def buffer(self, state: torch.Tensor, name: str, side: int) -> torch.Tensor | None:
        """Return a buffer, in what it is kept as, without a copy; None where there is none."""
        if name not in self._views:
            return None
        start, stop, dtype = self._views[name][side]
        return state[start:stop].view(dtype)

    def array(self, state: torch.Tensor, name: str, side: int) -> NDArray[Any] | None:
        """Return a copy of a buffer on the host, as a state dict has it: bfloat16 as its bits."""
        view = self.buffer(state, name, side)
        if view is None:
            return None
        bits = view.view(torch.uint16) if view.dtype == torch.bfloat16 else view
        array: NDArray[Any] = bits.to("cpu", copy=True).numpy()
        return array

    @staticmethod
    def struct(state: torch.Tensor) -> structs.State:
        """Return a copy of the struct on the host."""
        size = ctypes.sizeof(structs.State)
        return structs.State.from_buffer_copy(state[:size].cpu().numpy().data)

    @staticmethod
    def put_struct(state: torch.Tensor, struct: structs.State) -> None:
        """Write the struct."""
        data = torch.frombuffer(bytearray(struct), dtype=torch.uint8)
        state[: len(data)].copy_(data)

    @staticmethod
    def put_rate(state: torch.Tensor, rate: float) -> None:
        """Write the learning rate, without waiting for the device."""
        at = structs.State.rate.offset
        state[at : at + 8].view(torch.float64).fill_(rate)


def struct_of(
    codec: "Codec", numel: int, name: str | None, stream: int, step: int, scalars: dict[str, float]
) -> structs.State:
    """Return the struct of a state with these scalars of a state dict."""
    piece = structs.Piece.from_buffer_copy(completed([codec], [numel]).numpy().data)
    state = structs.State(step=step, tensor=structs.tensor_id(name), stream=stream)
    state.rate = scalars.get("learning_rate", 1.0)
    state.moment_steps = int(scalars.get("second_moment_steps", 0))
    state.tracked.sparsify = piece.sparsify
    tracker = state.tracked.tracker
    for each in _TRACKED:
        if each in scalars:
            setattr(tracker, each, structs.Maybe(scalars[each], 1))
    for each in _CONTROLLER:
        if (value := scalars.get(f"controller.{each}")) is not None:
            whole = each not in ("last", "sum", "aim")
            setattr(tracker.controller, each, int(value) if whole else value)
    return state


def scalars_of(codec: "Codec", state: structs.State, rate: float | None) -> dict[str, float]:
    """Return the scalars of a state dict from the struct."""
    scalars: dict[str, float] = {}
    if rate is not None:
        scalars["learning_rate"] = rate
        scalars["second_moment_steps"] = float(state.moment_steps)
    tracker = state.tracked.tracker
    for each in _TRACKED:
        kept = getattr(tracker, each)
        if kept.there:
            scalars[each] = kept.value
    if codec.sparsify.kind == "sid":
        for each in _CONTROLLER:
            scalars[f"controller.{each}"] = float(getattr(tracker.controller, each))
    return scalars
