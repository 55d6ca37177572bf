"""Sizes and speeds of checkpoints without loss, and of differences between them.

Times a copy, what is installed of zstd and zipnn, and gradwire on bfloat16 and float32 drawn as the
layers of a large model, one after the other, in rounds. Then trains a text transformer by AdamW at
a rate that falls along a cosine and at a constant one, and saves weights and moments as they differ
from those 1, 10, 100 and 1000 steps before.
"""

import importlib
import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import gradwire
from benches.accuracy.tasks.text import Text
from benches.compare.timing import Tick, one_thread
from benches.harness import pages
from gradwire import _native, weights
from gradwire.weights import coding

ENTRIES, ROUNDS = 48 << 20, 12
STEPS, RATE = 2400, 0.002
EVERY = (1, 10, 100, 1000)
ZIPNN, AT_ONCE = "zipnn", "zipnn, all at once"
FORMATS = {"bfloat16": "BF16", "float32": "F32"}
KINDS = ("weights", "exp_avg", "exp_avg_sq")
WHERE = {"whole": "complete", "middle": "mid-training, {} step", "end": "at the end, {} step"}

Bytes = NDArray[np.uint8]
Arrays = dict[str, NDArray[Any]]
Row = dict[str, Any]
Coder = tuple[Callable[[Any], Any], Callable[[Any, Bytes], object]]


def layers(entries: int) -> NDArray[np.float32]:
    """Return weights as a large model has them: normal ones, each layer of its own width."""
    random = np.random.default_rng(0)
    each = 1 << 20
    drawn = [
        random.standard_normal(each, dtype=np.float32) * np.float32(random.uniform(0.005, 0.05))
        for _ in range(entries // each)
    ]
    return np.concatenate(drawn)


def narrowed(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bits of the nearest bfloat16."""
    bits = values.view(np.uint32)
    rounded: NDArray[np.uint16] = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return rounded


def coders(dtype: str) -> dict[str, Coder]:
    """Return what compresses, and what decompresses codes: gradwire into memory that it gets."""
    ours, form = coding.Coder(FORMATS[dtype], None), coding.FORMATS[FORMATS[dtype]]
    found: dict[str, Coder] = {}
    if importlib.util.find_spec("zstandard"):
        zstandard: Any = importlib.import_module("zstandard")
        back = zstandard.ZstdDecompressor().decompress
        for level in (1, 3):
            compress = zstandard.ZstdCompressor(level).compress
            found[f"zstd, level {level}"] = compress, lambda codes, out: back(codes, len(out))
    if importlib.util.find_spec("zipnn"):
        zipnn = importlib.import_module("zipnn").ZipNN(bytearray_dtype=dtype, threads=1)
        pair = zipnn.compress, lambda codes, _: zipnn.decompress(codes)
        found |= {ZIPNN: pair, AT_ONCE: pair}
    decode = _native.lossless_decode
    return found | {"gradwire": (ours.encode, lambda codes, out: decode(form, codes, out, False))}


def times(
    coder: Coder,
    data: Bytes,
    out: Bytes,
    step: int,
    clock: Callable[[], float] = time.process_time,
    take: Callable[[Bytes], Any] = np.asarray,
) -> tuple[float, ...]:
    """Return seconds to compress and to decompress, and the size relative to the data.

    It goes by pieces, as files are written and read, so that memory serves again.
    """
    compress, decompress = coder
    took = back = size = 0.0
    for at in range(0, len(data), step):
        piece = take(data[at : at + step])
        begin = clock()
        codes = compress(piece)
        middle = clock()
        decompress(codes, out[at : at + step])
        took, back, size = took + middle - begin, back + clock() - middle, size + len(codes)
    return took, back, size / len(data)


def least(taken: Iterable[tuple[float, ...]]) -> list[float]:
    """Return the least of each column."""
    return [min(column) for column in zip(*taken, strict=True)]


def speeds(entries: int, rounds: int) -> list[Row]:
    """Time all on one thread, and gradwire on two by the clock."""
    values, rows = layers(entries), []
    for dtype in FORMATS:
        data: Bytes = (narrowed(values) if dtype == "bfloat16" else values).view(np.uint8)
        data, step = data[: 2 * entries], coding.PIECE * (2 if dtype == "bfloat16" else 4)
        out, by_threads = np.zeros_like(data), (1, 2)
        found: dict[Any, list[tuple[float, ...]]] = {"copy": []}
        for _ in range(rounds):
            begin = time.process_time()
            np.copyto(out, data)
            took = time.process_time() - begin
            found["copy"].append((took, took, 1.0))
            for name, coder in coders(dtype).items():
                piece = len(data) if name == AT_ONCE else step
                # zipnn overwrites its input, of which it gets a copy.
                take: Any = bytearray if name in (ZIPNN, AT_ONCE) else np.asarray
                taken = times(coder, data, out, piece, take=take)
                found.setdefault(name, []).append(taken)
            for threads in by_threads:
                gradwire.set_num_threads(threads)
                taken = times(coders(dtype)["gradwire"], data, out, step, time.perf_counter)
                found.setdefault(threads, []).append(taken)
            gradwire.set_num_threads(1)
        one, two = (least(found.pop(threads)) for threads in by_threads)
        for name, each in found.items():
            took, back, size = least(each)
            rates = {"compress": len(data) / took / 1e9, "decompress": len(data) / back / 1e9}
            rows.append({"dtype": dtype, "name": name, "size": size, **rates})
        gains = [one[0] / two[0], one[1] / two[1]]
        rows.append({"dtype": dtype, "name": "two threads", "gains": gains})
    return rows


def moments(steps: int) -> list[tuple[str, int, int, int]]:
    """Return what is saved: where, how far apart, and the steps of a checkpoint and its base."""
    scale = steps / STEPS
    middle = round(STEPS // 2 * scale)
    return [
        ("whole", 0, steps, steps),
        *(("middle", n, middle + n, middle) for n in EVERY),
        *(("end", n, steps, steps - n) for n in EVERY),
    ]


def snapshots(falling: bool, steps: int) -> dict[int, Arrays]:
    """Train, and return weights and moments at the steps that are compared."""
    at = {step for _, _, *both in moments(steps) for step in both}
    task = Text()
    model = task.model(0)
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if falling else None
    found = {}
    batches = task.batches(0, 1, 0)
    for step in range(1, max(at) + 1):
        optimizer.zero_grad()
        task.loss(model, next(batches)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if schedule is not None and step < steps:
            schedule.step()
        if step in at:
            found[step] = state(model, optimizer)
    return found


def state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Arrays:
    """Return copies of weights and moments."""
    arrays = {}
    for name, parameter in model.named_parameters():
        arrays[f"weights.{name}"] = parameter.detach().numpy().copy()
        for moment in KINDS[1:]:
            arrays[f"{moment}.{name}"] = optimizer.state[parameter][moment].numpy().copy()
    return arrays


def shares(folder: Path, old: Arrays | None, new: Arrays) -> dict[str, float]:
    """Return the size of weights and of either moment, as codes, relative to what they are."""
    base, path = None, folder / "new.safetensors"
    if old is not None:
        base = folder / "old.safetensors"
        weights.save(base, old)
    weights.save(path, new, base=base, lossless=True)
    with weights.open(path) as file:
        found = {}
        for kind in KINDS:
            names = [name for name in new if name.split(".")[0] == kind]
            codes = sum(len(file.data(name)) for name in names)
            found[kind] = codes / sum(new[name].nbytes for name in names)
    found["file"] = path.stat().st_size / sum(array.nbytes for array in new.values())
    return found


def sizes(steps: int, tick: Tick) -> list[Row]:
    """Return what checkpoints and differences take."""
    rows, half = [], weights.header.dtype_named("BF16")
    assert half is not None
    with tempfile.TemporaryDirectory() as name:
        for rate in ("falling", "constant"):
            tick(f"training at a {rate} rate")
            taken = snapshots(rate == "falling", steps)
            for dtype in FORMATS:
                kept = taken
                if dtype == "bfloat16":
                    kept = {
                        at: {name: narrowed(each).view(half) for name, each in arrays.items()}
                        for at, arrays in taken.items()
                    }
                for where, every, new, old in moments(steps):
                    base = kept[old] if every else None
                    about = {"dtype": dtype, "rate": rate, "where": where, "every": every}
                    found = shares(Path(name), base, kept[new])
                    rows.append({**about, **found})
    return rows


def speed_table(rows: list[Row]) -> str:
    shown = []
    for row in rows:
        if "gains" in row:
            cells = [
                "gradwire, two threads vs one",
                "",
                *(f"× {gain:.2f}" for gain in row["gains"]),
            ]
        else:
            rates = (f"{row[name]:.2f}" for name in ("compress", "decompress"))
            cells = [row["name"], f"{100 * row['size']:.1f}", *rates]
        shown.append(["gains" in row, row["dtype"], *cells])
    shown.sort(key=lambda cells: bool(cells[0]))
    headings = ("dtype", "", "size %", "compress GB/s", "decompress GB/s")
    return pages.table(headings, [cells[1:] for cells in shown], texts=2)


def size_table(rows: list[Row]) -> str:
    shown = [
        (
            row["dtype"],
            row["rate"],
            WHERE[row["where"]].format(row["every"]) + "s" * (row["every"] > 1),
            *(f"{100 * row[kind]:.1f}" for kind in KINDS),
        )
        for row in rows
    ]
    kinds = ("weights %", "first moment %", "second moment %")
    return pages.table(("dtype", "rate", "what", *kinds), shown, texts=3)


def measure(quick: bool, tick: Tick) -> dict[str, Any]:
    """Return all figures."""
    tick("speeds")
    with one_thread():
        timed = speeds(ENTRIES // 8 if quick else ENTRIES, 2 if quick else ROUNDS)
    return {"speeds": timed, "sizes": sizes(STEPS, tick)}
