"""Sizes and speeds of checkpoints without loss, and of differences between them.

Times a copy, zstd, zipnn where it is installed, and gradwire on bfloat16 and float32 drawn as the
layers of a large model, one after the other, in rounds. Then trains a text transformer by AdamW at
a rate that falls along a cosine and at a constant one, and saves weights and moments as they differ
from those 1, 10, 100 and 1000 steps before.
"""

import importlib
import importlib.util
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import gradwire
from benches.accuracy.tasks.text import Text
from benches.harness import pages
from benches.harness.command import progress
from gradwire import _native, weights
from gradwire.weights import coding

ENTRIES = 48 << 20
ROUNDS = 12
STEPS, RATE = 2400, 0.002
EVERY = (1, 10, 100, 1000)
MIDDLE = 1200
AT_ONCE = "zipnn, all at once"
FORMATS = {"bfloat16": "BF16", "float32": "F32"}

Bytes = NDArray[np.uint8]
Clock = Callable[[], float]
Arrays = dict[str, NDArray[Any]]


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


class Ours:
    """Codes as files hold them."""

    def __init__(self, dtype: str) -> None:
        self._format = coding.FORMATS[FORMATS[dtype]]
        self._coder = coding.Coder(FORMATS[dtype], None)

    def compress(self, data: Bytes) -> Bytes:
        return self._coder.encode(data)

    def decompress(self, codes: Bytes, out: Bytes) -> None:
        _native.lossless_decode(self._format, codes, out, False)


class Zstd:
    """Standard compression, which knows nothing of floats."""

    def __init__(self, level: int) -> None:
        zstandard: Any = importlib.import_module("zstandard")
        self._out, self._in = zstandard.ZstdCompressor(level), zstandard.ZstdDecompressor()

    def compress(self, data: Bytes) -> bytes:
        codes: bytes = self._out.compress(data.data)
        return codes

    def decompress(self, codes: bytes, out: Bytes) -> None:
        self._in.decompress(codes, len(out))


class ZipNN:
    """Huffman codes of exponents; it overwrites its input, of which it gets a copy."""

    def __init__(self, dtype: str) -> None:
        zipnn: Any = importlib.import_module("zipnn")
        self._zipnn = zipnn.ZipNN(bytearray_dtype=dtype, threads=1)

    def compress(self, data: Any) -> bytes:
        codes: bytes = self._zipnn.compress(data)
        return codes

    def decompress(self, codes: bytes, out: Bytes) -> None:
        self._zipnn.decompress(codes)


def contestants(dtype: str) -> dict[str, Any]:
    """Return what there is to time, by name."""
    found: dict[str, Any] = {}
    if importlib.util.find_spec("zstandard"):
        found |= {f"zstd, level {level}": Zstd(level) for level in (1, 3)}
    if importlib.util.find_spec("zipnn"):
        found |= {"zipnn": ZipNN(dtype), AT_ONCE: ZipNN(dtype)}
    return found | {"gradwire": Ours(dtype)}


def times(coder: Any, data: Bytes, out: Bytes, step: int, clock: Clock) -> tuple[float, ...]:
    """Return seconds to compress and to decompress, and the size relative to the data.

    It goes by pieces, as files are written and read, so that memory serves again.
    """
    took = back = size = 0.0
    for at in range(0, len(data), step):
        piece: Any = data[at : at + step]
        if isinstance(coder, ZipNN):
            piece = bytearray(piece)
        begin = clock()
        codes = coder.compress(piece)
        middle = clock()
        coder.decompress(codes, out[at : at + step])
        took, back, size = took + middle - begin, back + clock() - middle, size + len(codes)
    return took, back, size / len(data)


def speeds(entries: int, rounds: int) -> list[dict[str, Any]]:
    """Time all on one thread, and gradwire on two by the clock."""
    gradwire.set_num_threads(1)
    values = layers(entries)
    rows = []
    for dtype in FORMATS:
        data: Bytes = (narrowed(values) if dtype == "bfloat16" else values).view(np.uint8)
        data, step = data[: 2 * entries], coding.PIECE * (2 if dtype == "bfloat16" else 4)
        out = np.zeros_like(data)
        found: dict[str, list[tuple[float, ...]]] = {"copy": []}
        for _ in range(rounds):
            begin = time.process_time()
            np.copyto(out, data)
            took = time.process_time() - begin
            found["copy"].append((took, took, 1.0))
            for name, coder in contestants(dtype).items():
                piece = len(data) if name == AT_ONCE else step
                taken = times(coder, data, out, piece, time.process_time)
                found.setdefault(name, []).append(taken)
        for name, each in found.items():
            took, back, size = (min(column) for column in zip(*each, strict=True))
            about = {"dtype": dtype, "name": name, "size": size}
            rates = {"compress": len(data) / took / 1e9, "decompress": len(data) / back / 1e9}
            rows.append({**about, **rates})
        rows.append(two_threads(dtype, data, step, rounds))
    return rows


def two_threads(dtype: str, data: Bytes, step: int, rounds: int) -> dict[str, Any]:
    """Return how much faster two threads are than one, by the clock."""
    out, coder = np.zeros_like(data), Ours(dtype)
    taken: dict[int, list[tuple[float, ...]]] = {1: [], 2: []}
    for _ in range(rounds):
        for threads, each in taken.items():
            gradwire.set_num_threads(threads)
            each.append(times(coder, data, out, step, time.perf_counter))
    gradwire.set_num_threads(1)
    one, two = ([min(column) for column in zip(*each, strict=True)] for each in taken.values())
    return {"dtype": dtype, "name": "two threads", "gains": [one[0] / two[0], one[1] / two[1]]}


def snapshots(falling: bool, steps: int) -> dict[int, Arrays]:
    """Train, and return weights and moments at the steps that are compared."""
    scale = steps / STEPS
    middle = round(MIDDLE * scale)
    at = {middle, steps, *(middle + n for n in EVERY), *(steps - n for n in EVERY)}
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
        for moment in ("exp_avg", "exp_avg_sq"):
            arrays[f"{moment}.{name}"] = optimizer.state[parameter][moment].numpy().copy()
    return arrays


def in_bfloat16(arrays: Arrays) -> Arrays:
    """Return all rounded."""
    dtype = weights.header.dtype_named("BF16")
    assert dtype is not None
    return {name: narrowed(array).view(dtype) for name, array in arrays.items()}


def shares(folder: Path, old: Arrays | None, new: Arrays) -> dict[str, float]:
    """Return the size of weights and of either moment, as codes, relative to what they are."""
    base, path = None, folder / "new.safetensors"
    if old is not None:
        base = folder / "old.safetensors"
        weights.save(base, old)
    weights.save(path, new, base=base, lossless=True)
    kinds = ("weights", "exp_avg", "exp_avg_sq")
    with weights.open(path) as file:
        found = {}
        for kind in kinds:
            names = [name for name in new if name.split(".")[0] == kind]
            codes = sum(len(file.data(name)) for name in names)
            found[kind] = codes / sum(new[name].nbytes for name in names)
    found["file"] = path.stat().st_size / sum(array.nbytes for array in new.values())
    return found


def bound(old: Arrays, new: Arrays) -> float:
    """Return the least size of differences of weights, by the bits that each has.

    That is the entropy of their number in each block, and the bits themselves.
    """
    found = total = 0.0
    for name in (name for name in new if name.startswith("weights.")):
        lengths = np.frexp(np.abs(_ordered(new[name]) - _ordered(old[name])).astype(float))[1]
        for at in range(0, lengths.size, 1 << 16):
            block = lengths[at : at + (1 << 16)]
            shares = np.bincount(block) / block.size
            entropy = -(shares[shares > 0] * np.log2(shares[shares > 0])).sum()
            found += block.size * entropy + block.sum()
        total += 8 * new[name].nbytes
    return found / total


def _ordered(floats: NDArray[Any]) -> NDArray[np.int64]:
    """Return whole numbers in the order of the floats, one apart where nothing is between these."""
    bits = floats.reshape(-1).view(f"u{floats.itemsize}").astype(np.int64)
    sign = 1 << (8 * floats.itemsize - 1)
    return np.where(bits & sign, 2 * sign - 1 - bits, bits | sign)


def sizes(steps: int) -> list[dict[str, Any]]:
    """Return what checkpoints and differences take."""
    rows = []
    scale = steps / STEPS
    middle = round(MIDDLE * scale)
    with tempfile.TemporaryDirectory() as name:
        for rate in ("falling", "constant"):
            progress(f"training at a {rate} rate")
            taken = snapshots(rate == "falling", steps)
            for dtype in FORMATS:
                kept = {
                    step: in_bfloat16(each) if dtype == "bfloat16" else each
                    for step, each in taken.items()
                }
                compared: list[tuple[str, int, int | None, int]] = [("whole", 0, None, steps)]
                compared += [("middle", n, middle, middle + n) for n in EVERY]
                compared += [("end", n, steps - n, steps) for n in EVERY]
                for where, every, old, new in compared:
                    found = shares(Path(name), None if old is None else kept[old], kept[new])
                    about = {"dtype": dtype, "rate": rate, "where": where, "every": every}
                    least = None if old is None else bound(kept[old], kept[new])
                    rows.append({**about, **found, "bound": least})
    return rows


def speed_table(rows: list[dict[str, Any]]) -> str:
    shown = [
        (
            row["dtype"],
            row["name"],
            f"{100 * row['size']:.1f}",
            f"{row['compress']:.2f}",
            f"{row['decompress']:.2f}",
        )
        for row in rows
        if "size" in row
    ]
    shown += [
        (
            row["dtype"],
            "gradwire, two threads vs one",
            "",
            *(f"× {gain:.2f}" for gain in row["gains"]),
        )
        for row in rows
        if "gains" in row
    ]
    return pages.table(("dtype", "", "size %", "compress GB/s", "decompress GB/s"), shown, texts=2)


def size_table(rows: list[dict[str, Any]]) -> str:
    named = {"whole": "complete", "middle": "mid-training, {} step", "end": "at the end, {} step"}
    shown = [
        (
            row["dtype"],
            row["rate"],
            named[row["where"]].format(row["every"]) + "s" * (row["every"] > 1),
            "" if row["bound"] is None else f"{100 * row['bound']:.1f}",
            *(f"{100 * row[kind]:.1f}" for kind in ("weights", "exp_avg", "exp_avg_sq")),
        )
        for row in rows
    ]
    kinds = ("weights: bound %", "weights %", "first moment %", "second moment %")
    return pages.table(("dtype", "rate", "what", *kinds), shown, texts=3)


def measure(quick: bool) -> dict[str, Any]:
    """Return all figures."""
    progress("speeds")
    timed = speeds(ENTRIES // 8 if quick else ENTRIES, 2 if quick else ROUNDS)
    return {"speeds": timed, "sizes": sizes(STEPS)}
