"""What a run measures: each section in interleaved rounds with a copy, and checked before.

CUDA's events take the time of the device, with all of the work queued before it starts. What was
never checked is not timed: frames are compared with the core's first, and who fails is left out and
written down.
"""

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import gradwire
from benches.compare.contestants import call, layer
from benches.compare.laws import HEADLINE, gradients
from benches.compare.peers import TORCH, Contestant, TorchTopK
from benches.compare.timing import Clock, Tick, interleave
from gradwire.presets import PRESETS, Preset
from gradwire.quantize import BFloat16
from gradwire.torch.backends import cuda

from . import kernels
from .kernels import Kernels, contestant

LEAD = 4_000_000
"""Cycles that the device waits before the work: two milliseconds, in which all is queued."""


@dataclass(frozen=True)
class Sizes:
    """Entries of the tensors; of the bucket, how many parameters they are shared out to."""

    large: int
    bucket: int
    parameters: int
    small: int


FULL = Sizes(large=100_000_000, bucket=25_000_000, parameters=300, small=1_000_000)
QUICK = Sizes(large=25_000_000, bucket=25_000_000, parameters=300, small=1_000_000)


@dataclass(frozen=True)
class Setup:
    """How a run is made.

    Attributes
    ----------
    device : str
        ``"cuda"``; the tests, which have no GPU, take ``"cpu"`` with emulated kernels.
    clock
        Times what the device does in a call.
    sizes, rounds, warm_up
        Of the tensors; rounds that count, and those before.
    """

    device: str
    clock: Clock
    sizes: Sizes
    rounds: int
    warm_up: int


def by_events(work: Callable[[], Any], before: Callable[[], object]) -> tuple[float, Any]:
    """Return the seconds that the device takes for a call after another one, and what it gave.

    The device is kept busy first, so that launches do not wait for Python; a call that waits for
    the device itself pays for that.
    """
    before()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda._sleep(LEAD)  # type: ignore[no-untyped-call]
    begin.record()
    answer = work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3, answer


def by_calls(setup: Setup, work: Callable[[], object]) -> float:
    """Return the median seconds from a call to its return, the device's work included."""
    seconds = []
    for _ in range(setup.warm_up + setup.rounds):
        finish(setup)
        began = time.perf_counter()
        work()
        finish(setup)
        seconds.append(time.perf_counter() - began)
    return sorted(seconds[setup.warm_up :])[setup.rounds // 2]


def finish(setup: Setup) -> None:
    """Wait for the device."""
    if setup.device == "cuda":
        torch.cuda.synchronize()


RATIO, RECEIVED = 0.001, 0.01
FRAMES = 8
TOGETHER = 4  # presets at a time: each keeps a few times the memory of the tensor

TOPK = contestant(
    "gradwire topk",
    "exact, float32 values, frame with checksum",
    lambda _: gradwire.topk(ratio=RATIO),
)
SIDCO = contestant(
    "gradwire sidco",
    "generalized Pareto, adaptive stages, float32 values",
    lambda _: gradwire.sidco(ratio=RATIO),
)
COLD = contestant(
    "gradwire topk, first step",
    "the same with a new state each time: no history, an empty residual",
    lambda _: gradwire.topk(ratio=RATIO),
    kernels.FirstStep,
)
DENSE = contestant(
    "gradwire dense bf16",
    "every entry as bfloat16; no residual",
    lambda _: gradwire.dense(quantize=BFloat16()),
)
OURS = (TOPK, COLD, SIDCO, DENSE)
Failed = dict[str, str]


def steps(setup: Setup, numel: int) -> list[Tensor]:
    """Return the gradients of two steps on the device."""
    drawn = gradients(HEADLINE, numel)
    return [torch.from_numpy(each).to(setup.device) for each in drawn]


def contest(setup: Setup, tick: Tick, failed: Failed) -> dict[str, Any]:
    """Encodes with a residual, ours and what torch has."""
    given = steps(setup, setup.sizes.large)
    return race(setup, [*OURS, *TORCH], given, tick, failed) | {"ratio": RATIO}


def presets(setup: Setup, tick: Tick, failed: Failed) -> dict[str, Any]:
    """A row for every preset."""
    given = steps(setup, setup.sizes.large)
    kinds = [_preset(preset) for preset in PRESETS.values()]
    found: dict[str, Any] = {"numel": setup.sizes.large, "rows": []}
    for first in range(0, len(kinds), TOGETHER):
        part = race(setup, kinds[first : first + TOGETHER], given, tick, failed)
        found = {**part, "rows": found["rows"] + part["rows"]}
    return found


def _preset(preset: Preset) -> type[Kernels]:
    return contestant(preset.name, call(preset), lambda numel: layer(preset, numel))


def receive(setup: Setup, tick: Tick, failed: Failed) -> dict[str, Any]:
    """Decode and add: one frame, several, and the entries of one in torch."""
    numel = setup.sizes.large
    given = steps(setup, numel)[0]
    sent = TorchTopK(numel, RECEIVED, setup.device)
    entries = sent.encode(given)
    codec = gradwire.topk(ratio=RECEIVED, memory=gradwire.memory.NoMemory())
    host = given.cpu().numpy()
    frames = [
        torch.frombuffer(bytearray(bytes(codec.encode(rolled))), dtype=torch.uint8).to(setup.device)
        for rolled in (np.roll(host, i * numel // FRAMES) for i in range(FRAMES))
    ]
    out = torch.zeros_like(given)

    def decoded(number: int) -> Callable[[int], object]:
        def work(_: int) -> None:
            for frame in frames[:number]:
                kernels.decode_add(frame, out)

        return work

    works = {
        "1 frame": decoded(1),
        f"{FRAMES} frames": decoded(FRAMES),
        "torch index_add": lambda _: sent.decode_add(entries, out),
    }
    with guarded(failed, "receive"):
        decoded(1)(0)
        expected = gradwire.decode(frames[0].cpu().numpy())
        if not np.array_equal(out.cpu().numpy(), expected):
            raise kernels.WrongBytesError("a decoded frame")
    return {**_timed(setup, works, given), "numel": numel, "ratio": RECEIVED}


def bucket(setup: Setup, tick: Tick, failed: Failed) -> dict[str, Any]:
    """A bucket of many parameters, and one tensor with as many entries."""
    numel, number = setup.sizes.bucket, setup.sizes.parameters
    given = steps(setup, numel)
    found = {}
    for name, numels in ((ONE, [numel]), (MANY, parameters(numel, number))):
        with guarded(failed, name):
            found[name] = TOPK(numel, RATIO, setup.device, numels)
            found[name].check(given[0])
    works = {name: _encodes(entrant, given) for name, entrant in found.items()}
    return {**_timed(setup, works, given[0]), "numel": numel, "parameters": number}


ONE, MANY = "one tensor", "a bucket"


def parameters(numel: int, number: int) -> list[int]:
    """Return the lengths of parameters, in layers of two matrices and two short vectors."""
    shares = [(1.0, 0.25, 1 / 256, 1 / 256)[i % 4] for i in range(number)]
    numels = [int(share * numel / sum(shares)) for share in shares]
    numels[0] += numel - sum(numels)
    return numels


def small(setup: Setup, tick: Tick, failed: Failed) -> dict[str, Any]:
    """A short tensor: what the device takes, and a whole call from Python."""
    numel = setup.sizes.small
    given = steps(setup, numel)
    kinds = {kind.name: kind for kind in (TOPK, SIDCO)}
    found = race(setup, list(kinds.values()), given, tick, failed)
    for row in found["rows"]:  # those that did not fail
        kind = kinds[row["name"]]
        tick(f"{kind.name}, called")
        with guarded(failed, f"{kind.name}, called"):
            row["call"] = by_calls(setup, _call(kind.make(numel), given[0]))
    return found


def _call(codec: gradwire.Codec, gradient: Tensor) -> Callable[[], object]:
    state = cuda.init_state(codec, gradient.numel(), "w", 0)
    room = codec.max_encoded_len(gradient.numel())
    out = torch.empty(room, dtype=torch.uint8, device=gradient.device)
    return lambda: cuda.encode_into(codec, gradient, state, out, None)


def race(
    setup: Setup, kinds: Sequence[type[Any]], given: Sequence[Tensor], tick: Tick, failed: Failed
) -> dict[str, Any]:
    """Check everyone, then time them; who fails is left out and written down."""
    numel, entrants = given[0].numel(), {}
    for kind in kinds:
        tick(kind.name)
        with guarded(failed, kind.name):
            entrant = kind(numel, RATIO, setup.device)
            if isinstance(entrant, Kernels):
                entrant.check(given[0])
            entrant.settle(given[0])
            entrants[kind.name] = entrant
    works = {name: _encodes(entrant, given) for name, entrant in entrants.items()}
    before = {name: _readies(entrant, given) for name, entrant in entrants.items()}
    found = _timed(setup, works, given[0], before)
    for row in found["rows"]:
        entrant = entrants[row["name"]]
        entrant.ready(given[0])
        wire = entrant.encode(given[0])
        sent = {"nbytes": int(entrant.nbytes(wire)), "count": int(entrant.count(wire))}
        row |= {"setting": entrant.setting, **sent}
    return {**found, "numel": numel}


def _encodes(entrant: Contestant, given: Sequence[Any]) -> Callable[[int], object]:
    return lambda turn: entrant.encode(given[turn % len(given)])


def _readies(entrant: Contestant, given: Sequence[Any]) -> Callable[[int], object]:
    return lambda turn: entrant.ready(given[turn % len(given)])


def _timed(
    setup: Setup,
    works: Mapping[str, Callable[[int], object]],
    copied: Tensor,
    before: Mapping[str, Callable[[int], object]] | None = None,
) -> dict[str, Any]:
    out = torch.empty_like(copied)
    copy, timings = interleave(
        works,
        lambda: out.copy_(copied),
        setup.rounds,
        lambda _: None,
        warm_up=setup.warm_up,
        before=before,
        clock=setup.clock,
    )
    rows = [{"name": name, **timing.record()} for name, timing in timings.items()]
    return {"copy": copy.record(), "rows": rows}


@contextmanager
def guarded(failed: Failed, name: str) -> Iterator[None]:
    """Write down what goes wrong with one, and go on: a device is not at hand every day."""
    try:
        yield
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {error}"
        traceback.print_exc()


SECTIONS: dict[str, Callable[[Setup, Tick, Failed], dict[str, Any]]] = {
    "contest": contest,
    "bucket": bucket,
    "small": small,
    "receive": receive,
    "presets": presets,
}
