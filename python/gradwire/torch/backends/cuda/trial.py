"""The trial of a device: checks at first use that its kernels produce the bytes of the core.

The checksum of a frame is computed where its bytes are, so no receiver notices a kernel that is
wrong: models would train worse, or replicas drift apart. So the same steps, of codecs that have all
parts with kernels, are taken on the device and by the core, and compared bit for bit: frames, also
trimmed ones, cut by owner and merged, averages, and states, also after a rollback.
"""

import itertools
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from gradwire import presets
from gradwire._codec import Codec
from gradwire.errors import ExtensionError, GradwireError
from gradwire.exchange.frames import owners_for
from gradwire.frame import Frame
from gradwire.memory import Residual
from gradwire.quantize import BFloat16, Float8, Float16, Lossless
from gradwire.torch.backends import cpu, cuda
from gradwire.torch.backends.cpu import Bucket, held
from gradwire.torch.backends.cuda import encoding
from gradwire.torch.backends.cuda.operators import takes
from gradwire.torch.backends.staging import is_lost, lost, staging

PATIENCE = 10.0
"""Seconds without an answer after which a kernel is taken to hang. All are loaded before."""
EQUAL = "equal"
_LEAST = 64  # smallest limit of a frame in bytes: its header must fit
_SCALE = 0.5  # of what is decoded


LARGE, SMALL = 2 * 65536 + 37, 4099
"""More than two chunks of the kernels, so that blocks hand on to each other; and less than one."""


class Case(NamedTuple):
    """A codec, its name in the results, and the length of its tensor."""

    title: str
    codec: Codec
    numel: int


def cases() -> list[Case]:
    """Return the presets that kernels encode, and codecs with the parts that no preset has."""
    base = presets.topk(ratio=0.02)
    tried = [(preset.build(**preset.example), preset.call) for preset in presets.OWN]
    others: list[dict[str, Any]] = [
        *({"quantize": quantizer} for quantizer in (BFloat16(), Float16(), Float16(scaled=False))),
        *({"indices": coding} for coding in ("elias-fano", "rice", "bitmap")),
        *({"quantize": Float8("e5m2")}, {"memory": Residual(low_memory=True)}),
    ]
    tried += [(base.replace(**options), f"topk with {options}") for options in others]
    made, large = [Case("no entry", base, 0), Case("one entry", base, 1)], set[type]()
    for codec, title in tried:
        if isinstance(codec.quantize, Lossless):  # kernels write the floats themselves
            codec = codec.replace(quantize=codec.quantize.plain)
        codec = codec.for_shape((SMALL,))
        if takes(codec):
            first = type(codec.sparsify) not in large  # every sparsifier has a large tensor
            large.add(type(codec.sparsify))
            made.append(Case(title.replace("gradwire.", ""), codec, LARGE if first else SMALL))
    return made


def is_on() -> bool:
    """Tell whether devices are tested at first use."""
    return os.environ.get("GRADWIRE_CUDA_TRIAL") != "0"


@dataclass(frozen=True, slots=True)
class TrialRow:
    """The results of one codec with tensors of one dtype."""

    codec: str  #: or the part of `topk` that is another one
    steps: int  #: the last one that was compared, or the one with the difference
    dtype: str
    outcome: str  #: ``"equal"``, or what differs first


@dataclass(frozen=True, slots=True, repr=False)
class Trial:
    """The results of a device's kernels, compared with the core. Prints as a table."""

    device: str
    rows: tuple[TrialRow, ...]

    @property
    def failure(self) -> str | None:
        """The first difference, with codec, step and dtype; None if there is none."""
        for row in self.rows:
            if row.outcome != EQUAL:
                return f"{row.outcome} for {row.codec}, step {row.steps}, {row.dtype}"
        return None

    def __repr__(self) -> str:
        wide = max(len(row.codec) for row in self.rows)
        lines = [f"{'codec on ' + self.device:<{wide}} steps dtype    outcome"]
        lines += [
            f"{row.codec:<{wide}} {row.steps:>5} {row.dtype:<8} {row.outcome}" for row in self.rows
        ]
        return "\n".join(lines)


def run(device: torch.device, *, whole: bool = False) -> Trial:
    """Test a device, on its own stream and thread; raise an ExtensionError if it hangs.

    Raises a DeviceError if the device is lost. Stops at the first difference, unless `whole` is
    True.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # however long what it was given before may take
    begun: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    rows: dict[tuple[str, str], TrialRow] = {}
    work = threading.Thread(
        target=_try, args=(device, rows, begun.put, whole), name="gradwire-trial", daemon=True
    )
    work.start()
    now: str | None = "the first call"
    while now is not None:
        last = now
        try:
            now = begun.get(timeout=PATIENCE)
        except queue.Empty:
            raise ExtensionError(
                f"{device} hangs: the trial of its kernels had no answer for {PATIENCE:g} seconds "
                f"({last}). Such a kernel cannot be cleared within this process, which has to end; "
                "with GRADWIRE_CUDA_LIBRARY=none the host encodes instead. Please report this with "
                "what `gradwire info` prints"
            ) from None
    work.join()
    trial = Trial(str(device), tuple(rows.values()))
    if trial.failure is not None and is_lost(device):
        raise lost(
            device,
            f"after the trial of its kernels: {trial.failure}; with GRADWIRE_CUDA_LIBRARY=none "
            "the host encodes instead",
        )
    return trial


def _try(
    device: torch.device,
    rows: dict[tuple[str, str], TrialRow],
    begin: Callable[[str | None], object],
    whole: bool,
) -> None:
    """Compare all steps, and write the rows of codecs and dtypes, up to a first difference.

    `begin` is called with the next operation on the device, and with None at the end.
    """
    seeded, step, short = device in encoding._seeded, 0, ""
    try:
        with staging(device).writing():
            every = cases()
            alone = [max(every, key=lambda case: case.numel)]  # whose frame is not gathered
            for dtype, tried in itertools.product((torch.float32, torch.bfloat16), (every, alone)):
                short = str(dtype).removeprefix("torch.")
                core = _steps(cpu, torch.device("cpu"), dtype, tried, lambda act: None)
                for step, what, ours in _steps(cuda, device, dtype, tried, begin):
                    (_, _, theirs), titles = next(core), [case.title for case in tried]
                    titles = titles if len(ours) == len(titles) else ["all codecs"]
                    for title, one, other in zip(titles, ours, theirs, strict=True):
                        outcome = EQUAL if one == other else f"another {what}"
                        row = TrialRow(title, step, short, outcome)
                        if rows.setdefault((title, short), row).outcome == EQUAL:
                            rows[title, short] = row
                    if ours != theirs and not whole:
                        return
    except Exception as error:  # whatever it is, the kernels are not to be used
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        rows["all codecs", said] = TrialRow("all codecs", step, short, said)
    finally:
        if not seeded:  # that is for what the program decodes
            encoding._seeded.discard(device)
        begin(None)


def _steps(
    module: Any,
    device: torch.device,
    dtype: torch.dtype,
    tried: Sequence[Case],
    begin: Callable[[str], object],
) -> Iterator[tuple[int, str, list[object]]]:
    """Take steps of two ranks with a backend; yield the step, an act, and what came of it.

    That is a value for each case, or one for all.
    """
    codecs, numels = [case.codec for case in tried], [case.numel for case in tried]
    ends = encoding.ends_of(numels)
    states = [module.init_state(case.codec, case.numel, case.title, 3) for case in tried]
    bounds = [codec.max_encoded_len(n) for codec, n in zip(codecs, numels, strict=True)]
    positions = [np.arange(0, n, 99, dtype=np.uint32) if len(tried) == 1 else None for n in numels]
    steps: list[list[torch.Tensor]] = []

    def bucket(values: torch.Tensor) -> Bucket:
        made: Bucket = module.bucket(values, True)
        return made

    def parts(values: torch.Tensor) -> list[object]:
        data = values.cpu().view(torch.uint8)
        pieces = torch.split(data, [n * values.element_size() for n in numels])
        return [part.numpy().tobytes() for part in pieces]

    for step, again in ((1, False), (2, False), (2, True), (3, False)):
        if again:
            begin("a rollback")
            module.rollback(states)
        limits = list(bounds)
        if step == 3:  # trimmed ones
            for i, (case, frame) in enumerate(zip(tried, steps[1], strict=True)):
                if case.codec.sparsify.selects and case.numel > 1:
                    limits[i] = max(2 * frame.numel() // 3, _LEAST)
        begin(f"an encode of {len(tried)} tensors, step {step}, {dtype}")
        values = _values(ends[-1], step).to(device, dtype)
        out = torch.empty(sum(limits), dtype=torch.uint8, device=device)
        selected = positions if step == 2 else [None] * len(tried)
        table, error = bucket(values).encode(codecs, states, ends, limits, selected, out, 1.0)
        if error is not None:
            raise error
        rows = table.reshape(-1, 6)[:, :5].tolist()
        frames = list(torch.split(out.cpu()[: sum(row[0] for row in rows)], [r[0] for r in rows]))
        encoded = [(row, f.numpy().tobytes()) for row, f in zip(rows, frames, strict=True)]
        yield step, "frame", list(encoded)
        steps.append(frames)
    sent = [torch.cat(steps[0]), torch.cat(steps[1])]
    sizes = [[frame.numel() for frame in frames] for frames in steps[:2]]
    data, starts = torch.cat(sent).to(device), [0, sent[0].numel()]
    for wide in (torch.float32, torch.bfloat16):
        for senders in (False, True):
            begin(f"an average of {len(tried)} tensors to {wide}")
            out = torch.ones(ends[-1], dtype=wide, device=device)
            unused = [False] * len(tried)
            bucket(out).average(data, starts, sizes, ends, unused, senders, _SCALE)
            yield 3, f"average in {wide}", parts(out)
    out = torch.ones(ends[-1], device=device)
    begin(f"decodes of {len(tried)} frames")
    for frame, start, stop in zip(steps[0], ends[::2], ends[1::2], strict=True):
        module.decode(frame.to(device), out[start:stop], None)
        module.decode_add(frame.to(device), out[start:stop], _SCALE)
    yield 3, "decoded frame", parts(out)
    begin("a decode of a damaged frame")
    longest = max(range(len(tried)), key=lambda i: steps[0][i].numel())
    damaged = steps[0][longest].to(device, copy=True)
    damaged[len(damaged) // 2] ^= 1
    try:
        module.decode(damaged, torch.ones(numels[longest], device=device), None)
        verdict = "none"
    except GradwireError as refused:
        verdict = type(refused).__name__
    yield 3, "verdict on a damaged frame", [verdict]
    divided = [i for i, case in enumerate(tried) if _is_divided(case)]
    codecs, cuts = (
        [codecs[i] for i in divided],
        [[0, numels[i] * 2 // 5, numels[i]] for i in divided],
    )
    messages = []
    for frames in (steps[0], steps[3]):
        begin(f"a split of {len(divided)} frames")
        joined = torch.cat([frames[i] for i in divided]).to(device)
        counts = [Frame(frames[i].numpy()).count for i in divided]
        lens, whose = [frames[i].numel() for i in divided], [[0, 1]] * len(divided)
        owned = bucket(values).split(codecs, joined, lens, counts, cuts, whose, 2)
        yield 3, "cut frame", [[part.cpu().tolist() for part in owned]]
        messages.append(owned[0])
    begin(f"a merge of {len(divided)} ranges")
    n = messages[0].numel()
    merged, error, _ = bucket(values).merge(
        torch.cat(messages),
        [0, n, n, n + messages[1].numel()],
        codecs,
        [states[i] for i in divided],
        [end for cut in cuts for end in cut[:2]],
        [False] * len(divided),
    )
    if error is not None:
        raise error
    yield 3, "merged frame", [merged.cpu().tolist()]
    begin("a copy of the states")
    yield 3, "state", [held(state) for state in states]


def _values(numel: int, step: int) -> torch.Tensor:
    """Return random numbers with heavier tails than the normal distribution, as gradients have."""
    uniform = np.random.default_rng(step).random(numel, np.float32) * 2 - 1
    return torch.from_numpy(uniform * uniform * uniform)


def _is_divided(case: Case) -> bool:
    """Tell whether a codec supports the reduce-scatter."""
    codec = case.codec
    return case.numel > 1 and bool(owners_for(codec.sparsify, codec.quantize, codec.memory))
