"""gradwire's kernels as contestants: the operators alone, and what the core makes of the same."""

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

import torch
from torch import Tensor

import gradwire
from benches.compare.contestant import Contestant
from gradwire.torch.backends.cuda.kernels import ADD
from gradwire.torch.backends.cuda.operators import EncodePlan, operators, takes
from gradwire.torch.backends.cuda.states import DeviceState

Wire = tuple[Tensor, Tensor]
"""Frames one after another, and the table of outcomes that ``encode_bucket`` returns."""

NBYTES, COUNT = 1, 2  # columns of the table, as csrc/bucket/gather.h numbers them


class WrongBytesError(AssertionError):
    """Kernels give another frame than the core."""


class Kernels(Contestant):
    """A codec by the operators, which wait for nothing: what the device does in a step."""

    make: ClassVar[Callable[[int], gradwire.Codec]]

    def __init__(
        self, numel: int, ratio: float, device: str, numels: Sequence[int] | None = None
    ) -> None:
        super().__init__(numel, ratio)
        self.numels = [numel] if numels is None else list(numels)
        self.device = torch.device(device, 0) if device == "cuda" else torch.device(device)
        self.codecs = [type(self).make(each) for each in self.numels]
        left = [codec for codec in self.codecs if not takes(codec)]
        if left:
            raise NotImplementedError(f"kernels do not take {left[0]!r}")
        self.states = [
            DeviceState(codec, each, name=f"w{i}")
            for i, (codec, each) in enumerate(zip(self.codecs, self.numels, strict=True))
        ]
        stops = list(itertools.accumulate(self.numels))
        self.ends = [
            end for stop, n in zip(stops, self.numels, strict=True) for end in (stop - n, stop)
        ]
        self.plan = EncodePlan(self.codecs, self.ends, torch.empty(0, device=self.device))
        self.room = torch.empty(sum(self.plan.most), dtype=torch.uint8, device=self.device)

    def encode(self, gradient: Any) -> Wire:
        with ExitStack() as stack:
            states = [stack.enter_context(state.on_device(self.device)) for state in self.states]
            table = self.plan.encode(gradient, self.plan.most, states, 1.0, self.room)
        return self.room, table

    def frames(self, wire: Wire) -> list[bytes]:
        """Return the frames on the host."""
        sizes = wire[1][:, NBYTES].tolist()
        whole = wire[0][: sum(sizes)].cpu().numpy().tobytes()
        stops = itertools.accumulate(sizes)
        return [whole[stop - size : stop] for stop, size in zip(stops, sizes, strict=True)]

    def check(self, gradient: Tensor) -> None:
        """Encode a first step, and compare the frames with the core's."""
        host = gradient.cpu().numpy()
        frames = self.frames(self.encode(gradient))
        for i, (codec, frame) in enumerate(zip(self.codecs, frames, strict=True)):
            state = codec.init_state(self.numels[i], name=f"w{i}")
            begin, end = self.ends[2 * i : 2 * i + 2]
            if frame != bytes(codec.encode(host[begin:end], state)):
                raise WrongBytesError(f"parameter {i} of {len(frames)}: {codec!r}")

    def decode_add(self, wire: Wire, out: Any) -> None:
        for i, frame in enumerate(self.frames(wire)):
            data = torch.frombuffer(bytearray(frame), dtype=torch.uint8).to(self.device)
            decode_add(data, out[self.ends[2 * i] : self.ends[2 * i + 1]])

    def nbytes(self, wire: Wire) -> int:
        return int(wire[1][:, NBYTES].sum())

    def count(self, wire: Wire) -> int:
        return int(wire[1][:, COUNT].sum())


class FirstStep(Kernels):
    """The same with a new state each time."""

    def __init__(self, numel: int, ratio: float, device: str) -> None:
        super().__init__(numel, ratio, device)
        with self.states[0].on_device(self.device) as state:
            self.new = state.clone()

    def ready(self, gradient: Any) -> None:
        with self.states[0].on_device(self.device) as state:
            state.copy_(self.new)


def decode_add(data: Tensor, out: Tensor) -> None:
    """Add a frame to a tensor by the operator, which waits for nothing."""
    ends, sizes = [0, out.numel()], [data.numel()]
    operators().decode_bucket(out, data, ends, [0], sizes, 1, ADD, 1.0, False)


def contestant(
    name: str, setting: str, make: Callable[[int], gradwire.Codec], kind: type[Kernels] = Kernels
) -> type[Kernels]:
    """Return a codec as a contestant."""
    return type(name, (kind,), {"name": name, "setting": setting, "make": staticmethod(make)})
