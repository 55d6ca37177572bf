"""What a run measures: each section in interleaved rounds with a copy, and checked before.

CUDA's events take the time of the device, with all of the work queued before it starts. What was
never checked is not timed: frames are compared with the core's first, and who fails is left out and
written down.
"""

import hashlib
import os
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

import gradwire
from benches.compare.contestants import PEERS, Contestant, TorchTopK, call, gradients, layer
from benches.compare.timing import Clock, Tick, in_turn, interleave
from benches.harness import results
from gradwire.presets import PRESETS
from gradwire.quantize import Lossless
from gradwire.torch.backends.cuda.encoding import ADD
from gradwire.torch.backends.cuda.operators import EncodePlan, operators, takes
from gradwire.torch.backends.cuda.states import DeviceState, on_device
from gradwire.torch.cuda import status

LEAD = 4_000_000
"""Cycles that the device waits before the work: two milliseconds, in which all is queued."""


@dataclass(frozen=True)
class Setup:
    """How a run is made: device, clock, entries of the tensors, rounds that count and those before.

    The tests, which have no GPU, take the device ``"cpu"`` with emulated kernels.
    """

    device: str
    clock: Clock
    numel: int
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


Wire = tuple[Tensor, Tensor]
"""Frames one after another, and the table of outcomes that ``encode_bucket`` returns."""

NBYTES, COUNT = 1, 2  # columns of the table, as csrc/bucket/piece.h numbers them


class WrongBytesError(AssertionError):
    """Kernels give another frame than the core."""


class Kernels(Contestant):
    """A codec by the operators, which wait for nothing: what the device does in a step."""

    make: ClassVar[Callable[[int], gradwire.Codec]]

    def __init__(self, numel: int, ratio: float, device: str) -> None:
        super().__init__(numel, ratio)
        self.device = torch.device(device, 0) if device == "cuda" else torch.device(device)
        self.codec = type(self).make(numel)
        if not takes(self.codec):
            raise NotImplementedError(f"kernels do not take {self.codec!r}")
        self.states = [DeviceState(self.codec, numel, name="w")]
        self.plan = EncodePlan([self.codec], [0, numel], torch.empty(0, device=self.device))
        self.room = torch.empty(sum(self.plan.most), dtype=torch.uint8, device=self.device)

    def encode(self, gradient: Any) -> Wire:
        with on_device(self.states, self.device, self.plan.shared):
            table = self.plan.encode(gradient, self.plan.most, self.plan.shared, 1.0, self.room)
        return self.room, table

    def frame(self, wire: Wire) -> bytes:
        return wire[0][: int(wire[1][0, NBYTES])].cpu().numpy().tobytes()

    def check(self, gradient: Tensor) -> None:
        """Encode a first step, and compare the frame with the core's."""
        frame, codec = self.frame(self.encode(gradient)), self.codec
        if isinstance(codec.quantize, Lossless):
            codec = codec.replace(quantize=codec.quantize.plain)
        state = codec.init_state(self.numel, name="w")
        if frame != bytes(codec.encode(gradient.cpu().numpy(), state)):
            raise WrongBytesError(repr(codec))

    def decode_add(self, wire: Wire, out: Any) -> None:
        raise NotImplementedError  # the section `receive` times it by itself

    def sent(self, wire: Wire) -> tuple[int, int]:
        return int(wire[1][:, NBYTES].sum()), int(wire[1][:, COUNT].sum())


def decode_add(data: Tensor, out: Tensor) -> None:
    """Add a frame to a tensor by the operator, which waits for nothing."""
    ends, sizes = [0, out.numel()], [data.numel()]
    operators().decode_bucket(out, data, ends, [0], sizes, 1, ADD, 1.0, False, 0)


def contestant(name: str, setting: str, make: Callable[[int], gradwire.Codec]) -> type[Kernels]:
    return type(name, (Kernels,), {"name": name, "setting": setting, "make": staticmethod(make)})


RATIO = 0.01
FRAMES = 8
TOGETHER = 4  # presets at a time: each keeps a few times the memory of the tensor

Failed = dict[str, str]

AIMS: dict[type[Kernels], tuple[float, int]] = {
    contestant("topk", "float32, residual", lambda _: gradwire.topk(ratio=RATIO)): (1.8, 12),
    contestant("sidco", "float32, residual", lambda _: gradwire.sidco(ratio=RATIO)): (2.2, 12),
    contestant(
        "adam",
        "topk, float32, residual and second moment",
        lambda _: gradwire.topk(ratio=RATIO, memory=gradwire.memory.AdamCorrection()),
    ): (2.6, 20),
}
"""How many copies an encode may take, and the bytes that its read of every entry loads and stores,
of which a copy has 8."""


def steps(setup: Setup, numel: int) -> list[Tensor]:
    drawn = gradients(numel)
    return [torch.from_numpy(each).to(setup.device) for each in drawn]


def aims(setup: Setup, tick: Tick, failed: Failed) -> dict[str, Any]:
    """Encodes with a residual, ours with their aims and the bytes of their read, and torch's."""
    found = race(setup, [*AIMS, *PEERS], steps(setup, setup.numel), tick, failed)
    by_name = {kind.name: aim for kind, aim in AIMS.items()}
    for row in found["rows"]:
        if row["name"] in by_name:
            copies, nbytes = by_name[row["name"]]
            row |= {"aim": copies, "bytes_per_entry": nbytes, "copies_by_bytes": nbytes / 8}
    return {**found, "ratio": RATIO}


def presets(setup: Setup, tick: Tick, failed: Failed) -> dict[str, Any]:
    given = steps(setup, setup.numel)
    kinds = [
        contestant(preset.name, call(preset), partial(layer, preset))
        for preset in PRESETS.values()
        if takes(layer(preset, setup.numel))
    ]
    found: dict[str, Any] = {"numel": setup.numel, "rows": []}
    for first in range(0, len(kinds), TOGETHER):
        part = race(setup, kinds[first : first + TOGETHER], given, tick, failed)
        found = {**part, "rows": found["rows"] + part["rows"]}
    return found


def receive(setup: Setup, tick: Tick, failed: Failed) -> dict[str, Any]:
    """Decode and add: one frame, several, and the entries of one in torch."""
    numel = setup.numel
    given = steps(setup, numel)[0]
    sent = TorchTopK(numel, RATIO, setup.device)
    entries = sent.encode(given)
    codec = gradwire.topk(ratio=RATIO, memory=gradwire.memory.NoMemory())
    host = given.cpu().numpy()
    frames = [
        torch.frombuffer(bytearray(bytes(codec.encode(rolled))), dtype=torch.uint8).to(setup.device)
        for rolled in (np.roll(host, i * numel // FRAMES) for i in range(FRAMES))
    ]
    out = torch.zeros_like(given)

    def decoded(number: int) -> Callable[[int], object]:
        def work(_: int) -> None:
            for frame in frames[:number]:
                decode_add(frame, out)

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
            raise WrongBytesError("a decoded frame")
    return {**_timed(setup, works, given), "numel": numel, "ratio": RATIO}


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
            entrants[kind.name] = entrant

    works = {name: in_turn(entrant.encode, given) for name, entrant in entrants.items()}
    before = {name: in_turn(entrant.ready, given) for name, entrant in entrants.items()}
    found = _timed(setup, works, given[0], before)
    for row in found["rows"]:
        entrant = entrants[row["name"]]
        entrant.ready(given[0])
        wire = entrant.encode(given[0])
        nbytes, count = entrant.sent(wire)
        row |= {"setting": entrant.setting, "nbytes": nbytes, "count": count}
    return {**found, "numel": numel}


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
    "aims": aims,
    "receive": receive,
    "presets": presets,
}


def facts(device: str) -> dict[str, Any]:
    chip: dict[str, Any] = {"chip": f"{device}, emulated", "driver": None}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        chip = {
            "chip": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory": properties.total_memory,
            "driver": driver(),
        }
    found = status()
    library: dict[str, Any] = {"reason": found.reason}
    if found.library is not None:
        data = found.library.read_bytes()
        library |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {**chip, "cuda": torch.version.cuda, "cores": os.cpu_count()},
        "versions": results.versions("numpy", "torch") | {"gradwire": gradwire.__version__},
        "library": library,
    }


def new_document(setup: Setup) -> dict[str, Any]:
    settings = {"numel": setup.numel, "rounds": setup.rounds}
    return {**facts(setup.device), **settings, "sections": {}, "failed": {}}


def default_path(document: dict[str, Any]) -> Path:
    chip = re.sub(r"[^a-z0-9]+", "-", document["machine"]["chip"].lower()).strip("-")
    return results.FOLDER / f"{document['date'][:10]}-{chip}.json"


def driver() -> str | None:
    version = Path("/proc/driver/nvidia/version")
    found = version.exists() and re.search(r"\s(\d+\.\d+[.\d]*)\s", version.read_text())
    return found[1] if found else None
