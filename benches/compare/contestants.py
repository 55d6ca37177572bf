"""What is compared: gradwire's codecs, and what torch and papers have, each in its best form.

An encode takes a new gradient and the contestant's own residual, and produces the bytes to send and
the updated residual. All contestants do this whole job: a training loop cannot use a selection
alone. What selects in torch, on a CPU or a GPU, keeps one residual in place: add the gradient,
select, take the values, and set their positions to zero. Positions are sent as int32 and values as
float32, 8 bytes per entry, which is the least that their implementations send.

torch's own communication hooks for DDP run on a bucket of ours, and a process group of one rank
replaces the link, so that only the work of the hook is timed. It compresses, reduces and
decompresses in one call: all of that counts as its encode, and nothing remains to decode. Its bytes
are those that a rank sends in a ring all-reduce between two ranks.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

import gradwire
from gradwire.memory import Residual
from gradwire.presets import PRESETS, Preset
from gradwire.quantize import BFloat16, Float16

Array = NDArray[np.float32]


SEED, CHUNK = 20210405, 1 << 20
LAW = "student-t3"


def student(numel: int, step: int) -> Array:
    """Return Student's t with 3 degrees of freedom: tails as heavy as gradients have them."""
    generator = np.random.default_rng((SEED, step))
    out = np.empty(numel, np.float32)
    for start in range(0, numel, CHUNK):
        size = min(CHUNK, numel - start)
        out[start : start + size] = 1e-3 * generator.standard_t(3, size)
    return out


@functools.lru_cache(maxsize=1)
def gradients(numel: int) -> tuple[Array, ...]:
    """Return the gradients of two steps, kept for the cases that follow with the same ones."""
    return tuple(student(numel, step) for step in range(2))


class Contestant(ABC):
    """One way to compress, with its state for one tensor.

    ``setting`` says in a sentence how it was set up, and why that is its best fair form.
    """

    name: ClassVar[str]
    setting: ClassVar[str]

    def __init__(self, numel: int, ratio: float) -> None:
        self.numel = numel
        self.ratio = ratio
        self.target = max(1, int(numel * ratio))

    def settle(self, gradient: Array) -> None:  # noqa: B027
        """Run the steps that a long start-up needs, before any round."""

    def ready(self, gradient: Array) -> None:  # noqa: B027
        """Prepare for the encode of this gradient, outside the time measured."""

    @abstractmethod
    def encode(self, gradient: Array) -> Any:
        """Compress a gradient with error feedback and return the message to send."""

    @abstractmethod
    def decode_add(self, wire: Any, out: Array) -> None:
        """Add a received message to a dense tensor."""

    @abstractmethod
    def sent(self, wire: Any) -> tuple[int, int]:
        """Return the bytes to send, and how many entries that is."""


class Selecting(Contestant):
    """Error feedback around a selection in torch, with large buffers that are reused."""

    def __init__(self, numel: int, ratio: float, device: str = "cpu") -> None:
        super().__init__(numel, ratio)
        self.device = device
        self.residual = torch.zeros(numel, device=device)
        self.magnitude = torch.empty(numel, device=device)
        self.mask = torch.empty(numel, dtype=torch.bool, device=device)

    def select(self, magnitude: Tensor) -> Tensor:
        raise NotImplementedError

    def above(self, threshold: float | Tensor) -> Tensor:
        return torch.gt(self.magnitude, threshold, out=self.mask).nonzero().squeeze(1)

    def encode(self, gradient: Array | Tensor) -> tuple[Tensor, Tensor]:
        self.residual.add_(torch.as_tensor(gradient))
        indices = self.select(torch.abs(self.residual, out=self.magnitude))
        values = self.residual[indices]
        self.residual.index_fill_(0, indices, 0.0)
        return indices.to(torch.int32), values

    def decode_add(self, wire: tuple[Tensor, Tensor], out: Array | Tensor) -> None:
        torch.as_tensor(out).index_add_(0, *wire)

    def sent(self, wire: tuple[Tensor, Tensor]) -> tuple[int, int]:
        return 8 * wire[1].numel(), wire[1].numel()


class TorchTopK(Selecting):
    name = "torch.topk"
    setting = "torch.topk of the magnitudes, sorted=False, then a gather"

    def select(self, magnitude: Tensor) -> Tensor:
        return magnitude.topk(self.target, sorted=False).indices


class Sampling(Selecting):
    """Threshold from a sample (Lin et al., "Deep Gradient Compression", ICLR 2018)."""

    name = "DGC sampling"
    setting = (
        "1 % sample drawn with replacement (no permutation of n), threshold from its top entries, "
        "a second selection among the survivors when more than 1.3 k passed"
    )

    def select(self, magnitude: Tensor) -> Tensor:
        size = max(math.ceil(0.01 * self.numel), math.ceil(2 / self.ratio))
        if size >= self.numel:
            return magnitude.topk(self.target, sorted=False).indices
        sample = magnitude[torch.randint(self.numel, (size,), device=self.device)]
        threshold = sample.topk(math.ceil(size * self.ratio), sorted=False).values.min()
        for _ in range(10):
            indices = self.above(threshold)
            if len(indices) >= 0.8 * self.target:
                break
            threshold *= 0.8
        if len(indices) > 1.3 * self.target:
            indices = indices[magnitude[indices].topk(self.target, sorted=False).indices]
        return indices


class SidcoInTorch(Selecting):
    """The exponential variant, which is the fastest (Abdelmoniem et al., MLSys 2021)."""

    name = "SIDCo in torch"
    setting = (
        "SIDCo-E as published: exponential fit, a quarter kept by the first stage, later stages "
        "on the survivors alone, the number of stages adapted every 5 steps"
    )
    FIRST, EVERY, TOLERANCE = 0.25, 5, 0.2
    SETTLE_ON, SETTLE_STEPS = 1 << 18, 60

    def __init__(self, numel: int, ratio: float, device: str = "cpu") -> None:
        super().__init__(numel, ratio, device)
        self.stages, self.steps, self.achieved = 1, 0, 0.0

    def settle(self, gradient: Array | Tensor) -> None:
        # The law decides the number of stages, not the length: find it on a piece.
        piece = gradient[: self.SETTLE_ON]
        twin = SidcoInTorch(len(piece), self.ratio, self.device)
        for _ in range(self.SETTLE_STEPS):
            twin.encode(piece)
        self.stages = twin.stages

    def select(self, magnitude: Tensor) -> Tensor:
        single = self.stages == 1 or self.ratio >= self.FIRST
        first = self.ratio if single else self.FIRST
        threshold = float(magnitude.mean()) * math.log(1 / first)
        tail = magnitude[magnitude > threshold]
        if not single:
            share = (self.ratio / self.FIRST) ** (1 / (self.stages - 1))
            for _ in range(self.stages - 1):
                if not len(tail):
                    break
                threshold += (float(tail.mean()) - threshold) * math.log(1 / share)
                tail = tail[tail > threshold]
        indices = self.above(threshold)
        self._adapt(len(indices) / self.target)
        return indices

    def _adapt(self, achieved: float) -> None:
        self.steps += 1
        self.achieved += achieved
        if self.steps % self.EVERY == 0:
            mean, self.achieved = self.achieved / self.EVERY, 0.0
            if mean > 1 + self.TOLERANCE:
                self.stages -= 1
            elif mean < 1 - self.TOLERANCE:
                self.stages += 1
            highest = max(1, math.ceil(math.log(self.ratio) / math.log(0.5)))
            self.stages = min(max(self.stages, 1), highest)


POWER = 4
"""Rank of PowerSGD's factors: the largest that its authors try."""
SIDE = 1000  # of the square layers that a long tensor is made of


def layers(flat: Tensor) -> list[Tensor]:
    """Return views of a tensor as the layers of a model: square matrices, and a bias of the rest.

    Of a million entries and more the matrices are 1000 x 1000, of less there is one.
    """
    numel = flat.numel()
    side = min(SIDE, int(numel**0.5))
    number = numel // side**2
    whole = flat[: number * side**2].view(number, side, side)
    rest = flat[number * side**2 :]
    return [*whole.unbind(), *([rest] if len(rest) else [])]


class Bucket:
    """The methods of DDP's bucket that a hook calls."""

    def __init__(self, numel: int, device: str) -> None:
        self.flat = torch.zeros(numel, device=device)
        self.layers = layers(self.flat)

    def buffer(self) -> Tensor:
        return self.flat

    def gradients(self) -> list[Tensor]:
        return self.layers

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


def group(device: str) -> Any:
    """Return a new group of this process alone: of NCCL for a GPU, else of Gloo.

    Hooks go on in the threads of the group. They take over the number of threads that torch is set
    to when they begin, so every case needs threads of its own.
    """
    if not dist.is_initialized():
        transport = "gloo" if device == "cpu" else "nccl"
        dist.init_process_group(transport, store=HashStore(), rank=0, world_size=1)
    return dist.new_group([0])


class Hook(Contestant):
    """A hook of torch; DDP has put the gradient into the bucket before it is called."""

    def __init__(self, numel: int, ratio: float, device: str = "cpu") -> None:
        super().__init__(numel, ratio)
        self.group = group(device)
        self.bucket: Any = Bucket(numel, device)

    def ready(self, gradient: Array | Tensor) -> None:
        self.bucket.flat.copy_(torch.as_tensor(gradient))

    def decode_add(self, wire: Tensor, out: Array | Tensor) -> None:
        """Do nothing: the encode has left the result in the bucket."""


class HalfHook(Hook):
    name = "torch bf16 hook"
    setting = "bf16_compress_hook of torch, the whole of it but the link"

    def encode(self, gradient: Array | Tensor) -> Tensor:
        return default_hooks.bf16_compress_hook(self.group, self.bucket).wait()

    def sent(self, wire: Tensor) -> tuple[int, int]:
        return 2 * self.numel, self.numel


class PowerSGD(Hook):
    """powerSGD_hook with its error feedback and warm start (Vogels et al., NeurIPS 2019)."""

    name = f"torch PowerSGD, rank {POWER}"
    setting = (
        "powerSGD_hook of torch, error feedback and warm start, layers of 1000 x 1000 one by one; "
        "the whole hook but the link. Every entry is sent, approximately"
    )

    def __init__(self, numel: int, ratio: float, device: str = "cpu") -> None:
        super().__init__(numel, ratio, device)
        self.state = power_state(self.group, POWER, batched=device != "cpu")
        # The hook leaves the first steps alone, for DDP's sake.
        self.state.iter = self.state.start_powerSGD_iter

    def encode(self, gradient: Array | Tensor) -> Tensor:
        return powerSGD_hook.powerSGD_hook(self.state, self.bucket).wait()

    def sent(self, wire: Tensor) -> tuple[int, int]:
        factors = self.state.p_memory_dict[0].numel() + self.state.q_memory_dict[0].numel()
        matrices = sum(layer.numel() for layer in self.bucket.layers if layer.dim() > 1)
        return int(4 * (factors + self.numel - matrices)), self.numel


def power_state(
    process_group: Any, rank: int, *, batched: bool = False
) -> powerSGD_hook.PowerSGDState:
    """Return the setting in which PowerSGD does best here, the same end to end.

    Stacking layers of one shape copies them all twice, which costs more on a CPU than it saves; a
    GPU would have a hundred small products to start instead.
    """
    return powerSGD_hook.PowerSGDState(
        process_group,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=2,
        batch_tensors_with_same_shape=batched,
    )


PEERS: tuple[type[Contestant], ...] = (TorchTopK, Sampling, SidcoInTorch, HalfHook, PowerSGD)


class Ours(Contestant):
    """A codec in its steady state, after a few steps."""

    make: ClassVar[Callable[[float, int], gradwire.Codec]]
    cold: ClassVar[bool]

    def __init__(self, numel: int, ratio: float) -> None:
        super().__init__(numel, ratio)
        self.codec = type(self).make(ratio, numel)
        self.state = self.codec.init_state(numel)
        # Reserved for the worst case; only what a frame fills is ever mapped.
        self.buffer = np.zeros(self.codec.max_encoded_len(numel), np.uint8)

    def ready(self, gradient: Array) -> None:
        if self.cold:
            self.state.reset()

    def encode(self, gradient: Array) -> Any:
        return self.buffer[: self.codec.encode_into(gradient, self.state, self.buffer)]

    def decode_add(self, wire: Any, out: Array) -> None:
        gradwire.decode_add(wire, out)

    def sent(self, wire: Any) -> tuple[int, int]:
        return len(wire), int((self.state.last or {"count": self.numel})["count"])


def ours(name: str, setting: str, make: Callable[[float, int], gradwire.Codec]) -> type[Ours]:
    made = {"name": f"gradwire {name}", "setting": setting, "make": staticmethod(make)}
    return type(name, (Ours,), made | {"cold": name == COLD})


COLD = "topk, first step"

OURS = tuple(
    ours(name, setting, make)
    for name, setting, make in (
        ("topk", "exact, float32 values", lambda r, _: gradwire.topk(ratio=r)),
        (COLD, "the same, each time with a new state", lambda r, _: gradwire.topk(ratio=r)),
        ("topk, bf16 residual", "the residual in bfloat16, rounded by chance",
         lambda r, _: gradwire.topk(ratio=r, memory=Residual(low_memory=True))),
        ("topk bf16", "bfloat16 values, the rounding kept in the residual",
         lambda r, _: gradwire.topk(ratio=r, quantize=BFloat16())),
        ("adam", "steps of local Adam, exact top-k, a sign and one of two magnitudes",
         lambda r, _: gradwire.adam(ratio=r)),
        ("sidco", "generalized Pareto, adaptive stages", lambda r, _: gradwire.sidco(ratio=r)),
        ("sidco tracking", "the tail above a tracked bound alone, in one read",
         lambda r, _: gradwire.sidco(ratio=r, stages="tracking")),
        ("sidco, 2 stages", "the published two-stage fit without history, corrected to the band",
         lambda r, _: gradwire.sidco(ratio=r, stages=2)),
        ("dense bf16", "every entry as bfloat16; no residual",
         lambda *_: gradwire.dense(quantize=BFloat16())),
        ("dense f16", "the same as float16, unscaled",
         lambda *_: gradwire.dense(quantize=Float16())),
    )
)  # fmt: skip


def layer(preset: Preset, numel: int) -> gradwire.Codec:
    """Return the codec of a preset's example, for a layer of that many entries."""
    shape = (numel // SIDE, SIDE) if numel % SIDE == 0 else (numel,)
    return preset.build(**preset.example).for_shape(shape)


def call(preset: Preset) -> str:
    return f"gradwire.{preset.build.__name__}{preset.call.removeprefix(preset.name)}"


def presets() -> Iterator[type[Ours]]:
    for preset in PRESETS.values():
        yield ours(f"preset {preset.name}", call(preset), lambda _, n, p=preset: layer(p, n))  # type: ignore[misc]
