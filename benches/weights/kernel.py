"""Times of packed weights: rows through a layer, and packing.

All take turns, on one thread, as in ``make bench``; a round goes through several layers, so that
weights come from memory and not from a cache.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

import gradwire.torch.weights
from benches.compare.timing import Tick, interleave, one_thread, timed
from benches.harness import pages
from benches.harness.pages import span
from gradwire import weights
from gradwire.quantize import Affine

WIDTH, LAYERS = 4096, 4
ROWS = (1, 8, 64, 256)
ROUNDS = 9
USUAL = Affine(4, 64)
COPY = "copy of the packed bytes"

Found = dict[str, Any]
Work = Callable[[int], Any]


@torch.no_grad()
def measure(quick: bool, tick: Tick) -> Found:
    """Return all times; with ``quick`` those of one row."""
    with one_thread():
        matrix = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0)) / 64
        found: Found = {"rows": _rows(matrix, (1,) if quick else ROWS, tick)}
        return found if quick else {**found, "packing": _packing(matrix, tick)}


def _packed(matrix: Tensor, activations: str) -> nn.Module:
    layer = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False, device="meta"))
    layer[0].weight = nn.Parameter(matrix.clone())
    gradwire.torch.weights.pack(layer, {"0.weight": Affine(4, 64, "range")})
    layer[0].activations = activations  # type: ignore[assignment]
    return layer


def _int4(matrix: Tensor) -> Callable[[Tensor], Tensor]:
    """Return torch's own product by four bits for a CPU, which takes codes and bfloat16 grids."""
    codes = torch.randint(0, 16, matrix.shape, dtype=torch.int32)
    held = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 2)
    grids = torch.ones(WIDTH // 64, WIDTH, 2, dtype=torch.bfloat16)
    fitted: dict[torch.dtype, Tensor] = {
        each: grids.to(each) for each in (torch.float32, torch.bfloat16)
    }

    def multiply(x: Tensor) -> Tensor:
        y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, held, 64, fitted[x.dtype])
        return y

    return multiply


def _through(layers: Sequence[Callable[[Tensor], Tensor]], x: Tensor) -> Work:
    def work(turn: int) -> None:
        for layer in layers:
            layer(x)

    return work


def _rows(matrix: Tensor, counts: Sequence[int], tick: Tick) -> list[Found]:
    """Return a row for everyone with each number of rows of x, in seconds a layer."""

    def several(make: Callable[[Tensor], Any]) -> list[Any]:
        return [make(matrix) for _ in range(LAYERS)]

    ours = several(partial(_packed, activations="float32"))
    rounded = several(partial(_packed, activations="int8"))
    dense, half = several(Tensor.clone), several(Tensor.bfloat16)
    int4 = several(_int4)
    frames = [np.frombuffer(weights.pack(matrix.numpy(), USUAL).frame, np.uint8) for _ in dense]
    targets = [np.zeros_like(frame) for frame in frames]  # a single one would stay in the cache

    def copy() -> None:
        for target, frame in zip(targets, frames, strict=True):
            np.copyto(target, frame)

    found = []
    for count in counts:
        x = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(count))
        halved = x.bfloat16()
        works: dict[str, Work] = {
            "torch, float32": _through([partial(linear, weight=each) for each in dense], x),
            "torch, bfloat16": _through([partial(linear, weight=each) for each in half], halved),
            "torch int4, bfloat16 x": _through(int4, halved),
            "packed, float32 x": _through(ours, x),
            "packed, bfloat16 x": _through(ours, halved),
        }
        if count == 1:
            works["torch int4, float32 x"] = _through(int4, x)
        if count <= 16:
            works["packed, int8 x"] = _through(rounded, x)
        copies, timings = interleave(works, copy, ROUNDS, tick, warm_up=2, clock=timed)
        for name, timing in {COPY: copies, **timings}.items():
            record = timing.record()
            seconds = record["seconds"] / LAYERS
            found.append({"x": count, "name": name, **record, "seconds": seconds})
    return found


def _packing(matrix: Tensor, tick: Tick) -> list[Found]:
    """Return a row for packing by each fit and for unpacking, beside a copy of the matrix."""
    array = matrix.numpy()
    target = np.empty_like(array)
    packed = weights.pack(array, USUAL)

    def by(fit: Any) -> Work:
        return lambda _: weights.pack(array, Affine(4, 64, fit))

    works: dict[str, Work] = {f'pack, `"{fit}"`': by(fit) for fit in ("range", "zero", "squares")}
    works["unpack to float32"] = lambda _: packed.unpack(out=target)
    copies, timings = interleave(
        works, lambda: np.copyto(target, array), ROUNDS, tick, warm_up=1, clock=timed
    )
    rows = {"copy of the matrix": copies, **timings}
    return [{"name": name, **timing.record()} for name, timing in rows.items()]


def table(found: Mapping[str, Any]) -> str:
    counts = sorted({row["x"] for row in found["rows"]})
    names = list(dict.fromkeys(row["name"] for row in found["rows"]))
    at = {(row["name"], row["x"]): row["seconds"] for row in found["rows"]}
    rows = [
        [name, *(f"{1e3 * at[name, x]:.2f}" if (name, x) in at else "" for x in counts)]
        for name in names
    ]
    title = f"**{WIDTH} × {WIDTH} layer, one thread, time in ms by number of rows in x**"
    parts = [title, pages.table(["", *map(str, counts)], rows)]
    if "packing" in found:
        rows = [
            [row["name"], span(row["seconds"]), f"{row['copies']:.2f}"] for row in found["packing"]
        ]
        title = f"**Packing {4 * WIDTH * WIDTH / 1e6:.0f} MB of float32 to 4 bits, one thread**"
        parts += [title, pages.table(["", "time", "time / copy"], rows)]
    return "\n\n".join(parts)
