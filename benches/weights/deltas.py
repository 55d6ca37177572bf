"""Sizes and speeds of patches between versions of a model that are a few steps apart.

Draws weights as a large model has them, and moves float32 copies by AdamW; then trains a text
transformer in bfloat16 with float32 copies at falling rates, and takes a patch of each step. Beside
them is what others send: positions of 32 bits and values, XOR and zstd, and gaps of 16 bits with
XOR values and zstd, all as written here; and the entropy of which weights change and by how much,
given the exponents of the base.
"""

import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import gradwire
from benches.accuracy.tasks.text import Text
from benches.compare.timing import Tick, one_thread
from benches.harness import pages
from gradwire import delta

DRAWN = ((1e-6, 1), (3e-6, 1), (3e-6, 8), (1e-5, 1))
ENTRIES, BEFORE = 8 << 20, 20
LARGE, ROUNDS = 1 << 30, 5
RATES, VERSIONS, TRAINED = (1e-6, 1e-5, 1e-4, 1e-3), 100, 400

Bits = NDArray[np.uint16]
Row = dict[str, Any]


def drawn(rate: float, steps: int, entries: int) -> tuple[Bits, Bits]:
    """Return weights in bfloat16, and the same so many steps of AdamW later."""
    random = torch.Generator().manual_seed(0)
    layers = [
        torch.randn(1 << 20, generator=random)
        * (0.01 + 0.04 * float(torch.rand(1, generator=random)))
        for _ in range(entries >> 20)
    ]
    weights = torch.cat(layers).requires_grad_()
    optimizer = torch.optim.AdamW([weights], rate, weight_decay=0.01, fused=True)
    signal = torch.randn(entries, generator=random)
    base = np.empty(0, np.uint16)
    for step in range(BEFORE + steps):
        if step == BEFORE:
            base = bits_of(weights)
        weights.grad = torch.randn(entries, generator=random) + 0.3 * signal
        optimizer.step()
    return base, bits_of(weights)


def bits_of(weights: torch.Tensor) -> Bits:
    """Return the bits of the nearest bfloat16."""
    halves: Bits = weights.detach().bfloat16().view(torch.int16).numpy().view(np.uint16).copy()
    return halves


def tensor(bits: Bits) -> torch.Tensor:
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def order(bits: Bits) -> NDArray[np.int32]:
    """Return whole numbers in the order of the floats."""
    numbers = bits.astype(np.int32)
    return np.where(numbers & 0x8000, 0xFFFF - numbers, numbers | 0x8000)


def entropy(base: Bits, new: Bits) -> tuple[float, float]:
    """Return bits of steps, zero or not, by themselves and given the exponents of the base."""
    steps, exponents = order(new) - order(base), base.astype(np.int64) >> 7 & 0xFF
    alone = np.unique(steps, return_counts=True)[1]
    both = np.unique(exponents << 20 | steps + (1 << 17), return_counts=True)[1]
    kinds = np.bincount(exponents)
    return _bits(alone), _bits(both) - _bits(kinds[kinds > 0])


def _bits(counts: NDArray[Any]) -> float:
    return float((counts * np.log2(counts.sum() / counts)).sum())


def zstd(*parts: NDArray[Any]) -> int:
    compress = importlib.import_module("zstandard").ZstdCompressor(1).compress
    return sum(len(compress(np.ascontiguousarray(part))) for part in parts)


def gaps(base: Bits, new: Bits) -> tuple[Bits, Bits]:
    """Return how many weights lie between those that change, and XOR of their bits.

    A gap of 65,535 or more has entries in between that change nothing.
    """
    places = np.flatnonzero(base != new)
    between = np.diff(places, prepend=-1) - 1
    more, rest = np.divmod(between, 0xFFFF)
    ends = np.cumsum(more + 1) - 1
    steps, values = np.full(ends[-1] + 1, 0xFFFE, np.uint16), np.zeros(ends[-1] + 1, np.uint16)
    steps[ends], values[ends] = rest, (base ^ new)[places]
    return steps, values


def sizes(base: Bits, new: Bits) -> Row:
    """Return how many weights change, and bits of each of these as they are sent."""
    changed = int(np.count_nonzero(base != new))
    patch = delta.encode({"w": tensor(base)}, {"w": tensor(new)})
    alone, given = entropy(base, new)
    taken = {
        "raw": 48.0 * changed,
        "xor": 8.0 * zstd(base ^ new),
        "gaps": 8.0 * zstd(*gaps(base, new)),
        "entropy": alone,
        "given": given,
        "gradwire": 8.0 * len(patch),
    }
    return {"changed": changed / len(base), **{name: n / changed for name, n in taken.items()}}


def trained(rate: float, versions: int) -> Iterator[tuple[Bits, Bits]]:
    """Train a text model in bfloat16 with float32 copies, and return each version and the next."""
    task = Text()
    model, batches = task.model(0), task.batches(0, 1, 0)
    copies = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(copies, 2e-3)
    before = np.empty(0, np.uint16)
    for step in range(TRAINED + versions + 1):
        optimizer.param_groups[0]["lr"] = 2e-3 if step < TRAINED else rate
        for parameter, copy in zip(model.parameters(), copies, strict=True):
            parameter.data = copy.detach().bfloat16().float()
            parameter.grad = None
        if step >= TRAINED:
            after = bits_of(torch.cat([copy.detach().flatten() for copy in copies]))
            if step > TRAINED:
                yield before, after
            before = after
        task.loss(model, next(batches)).backward()  # type: ignore[no-untyped-call]
        for parameter, copy in zip(model.parameters(), copies, strict=True):
            copy.grad = parameter.grad
        optimizer.step()


def speeds(entries: int, rounds: int) -> list[Row]:
    """Time a model of which five weights in a hundred change, and one that stays the same."""
    base, new = drawn(3e-6, 2, ENTRIES)
    base, new = (np.tile(bits, max(1, entries // ENTRIES)) for bits in (base, new))
    rows = []
    for target in (new, base.copy()):
        for threads in (1, 2):
            gradwire.set_num_threads(threads)
            taken = [timed(base, target) for _ in range(rounds)]
            rates = [2 * len(base) / min(column) / 1e9 for column in zip(*taken, strict=True)]
            size = len(delta.encode({"w": tensor(base)}, {"w": tensor(target)}))
            row: Row = dict(zip(("copy", "encode", "apply"), rates, strict=True))
            changed = float(np.count_nonzero(base != target)) / len(base)
            rows.append(
                {"threads": threads, "changed": changed, "bits": 8 * size / len(base)} | row
            )
    gradwire.set_num_threads(1)
    return rows


def timed(base: Bits, new: Bits) -> tuple[float, ...]:
    """Return seconds of a copy, of making a patch and of applying it."""
    out: Bits = np.empty_like(base)
    old, model = {"w": tensor(base)}, {"w": tensor(out)}
    patch: list[bytes] = []
    return (
        clock(lambda: np.copyto(out, base)),
        clock(lambda: patch.append(delta.encode(old, {"w": tensor(new)}))),
        clock(lambda: delta.apply(model, patch[0])),
    )


def clock(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def measure(quick: bool, tick: Tick) -> dict[str, Any]:
    """Return all figures."""
    rows, real = [], []
    with one_thread():
        for rate, steps in DRAWN:
            tick(f"patches of {steps} steps at {rate:g}")
            rows.append({"rate": rate, "steps": steps, **sizes(*drawn(rate, steps, ENTRIES))})
        for rate in RATES:
            tick(f"training at {rate:g}")
            found = [sizes(*pair) for pair in trained(rate, 5 if quick else VERSIONS)]
            mean = {name: float(np.mean([row[name] for row in found])) for name in found[0]}
            real.append({"rate": rate, "versions": len(found), **mean})
        tick("speeds of patches")
        fast = speeds(LARGE // 16 if quick else LARGE, 2 if quick else ROUNDS)
    return {"drawn": rows, "trained": real, "deltas": fast}


def size_table(found: Mapping[str, Any]) -> str:
    names = ("raw", "xor", "gaps", "entropy", "given", "gradwire")
    shown = [
        (
            f"drawn, {row['steps']} step{'s' * (row['steps'] > 1)}"
            if "steps" in row
            else "text, 1 step",
            f"{row['rate']:g}",
            f"{100 * row['changed']:.2f}",
            *(f"{row[name]:.2f}" for name in names),
        )
        for row in (*found["drawn"], *found["trained"])
    ]
    heads = ("weights", "rate", "changed %", "int32 and value", "XOR, zstd-1", "gaps, zstd-1")
    return pages.table((*heads, "entropy", "by exponent", "gradwire"), shown, texts=1)


def speed_table(found: Mapping[str, Any]) -> str:
    shown = [
        (
            f"{100 * row['changed']:.1f} % changed",
            str(row["threads"]),
            f"{row['bits']:.4f}",
            *(f"{row[name]:.2f}" for name in ("copy", "encode", "apply")),
        )
        for row in found["deltas"]
    ]
    heads = ("", "threads", "bits per weight", "copy GB/s", "encode GB/s", "apply GB/s")
    return pages.table(heads, shown, texts=1)
