"""Times of packed weights: rows through a layer, packing, and a large file.

All take turns, on one thread, as in ``make bench``; a round goes through several layers, so that
weights come from memory and not from a cache.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

import gradwire
import gradwire.torch.weights
from benches.compare.timing import Tick, interleave, timed
from benches.harness import pages
from benches.harness.pages import span
from gradwire import weights
from gradwire.quantize import Affine

from . import peers

WIDTH, LAYERS = 4096, 4
ROWS = (1, 8, 64, 256)
ROUNDS = 9
USUAL = Affine(4, 64)
FILE_BYTES = 1 << 30
COPY, BFLOAT16 = "copy of the packed bytes", "torch, bfloat16"
INT8, FLOAT32 = "packed, int8 x", "packed, float32 x"

Found = dict[str, Any]
Work = Callable[[int], Any]


def measure(quick: bool, tick: Tick) -> Found:
    """Return all times; with ``quick`` those of one row without other packages."""
    threads = torch.get_num_threads(), gradwire.get_num_threads()
    torch.set_num_threads(1)
    gradwire.set_num_threads(1)
    try:
        with torch.no_grad():
            matrix = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0)) / 64
            small = matrix[:256, :256]
            others = [] if quick else [p for p in peers.installed() if peers.works(p, small)]
            found: Found = {"rows": _rows(matrix, (1,) if quick else ROWS, others, tick)}
            if not quick:
                found["packing"] = _packing(matrix, others, tick)
                found["file"] = _file(matrix, tick)
            return found
    finally:
        torch.set_num_threads(threads[0])
        gradwire.set_num_threads(threads[1])


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


def _rows(
    matrix: Tensor, counts: Sequence[int], others: Sequence[peers.Peer], tick: Tick
) -> list[Found]:
    """Return a row for everyone with each number of rows of x, in seconds a layer."""

    def several(make: Callable[[Tensor], Any]) -> list[Any]:
        return [make(matrix) for _ in range(LAYERS)]

    ours = several(partial(_packed, activations="float32"))
    rounded = several(partial(_packed, activations="int8"))
    dense, half = several(Tensor.clone), several(Tensor.bfloat16)
    int4 = several(_int4)
    frames = [np.frombuffer(weights.pack(matrix.numpy(), USUAL).frame, np.uint8) for _ in dense]
    targets = [np.zeros_like(frame) for frame in frames]  # a single one would stay in the cache
    held = {peer: several(peer.pack) for peer in others if peer.multiply is not None}

    def copy() -> None:
        for target, frame in zip(targets, frames, strict=True):
            np.copyto(target, frame)

    found = []
    for count in counts:
        x = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(count))
        by = {torch.float32: x, torch.bfloat16: x.bfloat16()}
        halved = by[torch.bfloat16]
        works: dict[str, Work] = {
            "torch, float32": _through([partial(linear, weight=each) for each in dense], x),
            BFLOAT16: _through([partial(linear, weight=each) for each in half], halved),
            "torch int4, bfloat16 x": _through(int4, halved),
            FLOAT32: _through(ours, x),
            "packed, bfloat16 x": _through(ours, halved),
        }
        if count == 1:
            works["torch int4, float32 x"] = _through(int4, x)
        if count <= 16:
            works[INT8] = _through(rounded, x)
        for peer, each in held.items():
            if count == 1 and peer.multiply is not None:
                layers = [partial(peer.multiply, one) for one in each]
                works[peer.title] = _through(layers, by[peer.dtype])
        copies, timings = interleave(works, copy, ROUNDS, tick, warm_up=2, clock=timed)
        for name, timing in {COPY: copies, **timings}.items():
            record = timing.record()
            seconds = record["seconds"] / LAYERS
            found.append({"x": count, "name": name, **record, "seconds": seconds})
    return found


def _packing(matrix: Tensor, others: Sequence[peers.Peer], tick: Tick) -> list[Found]:
    """Return a row for packing by everyone and for unpacking, beside a copy of the matrix."""
    array = matrix.numpy()
    target = np.empty_like(array)
    packed = weights.pack(array, USUAL)

    def by(fit: Any) -> Work:
        return lambda _: weights.pack(array, Affine(4, 64, fit))

    works: dict[str, Work] = {f'pack, `"{fit}"`': by(fit) for fit in ("range", "zero", "squares")}
    works["unpack to float32"] = lambda _: packed.unpack(out=target)
    seen = set()
    for peer in others:
        name = peer.title.partition(",")[0]
        if name not in seen:
            works[f"pack, {name}"] = lambda _, peer=peer: peer.pack(matrix)  # type: ignore[misc]
        seen.add(name)
    copies, timings = interleave(
        works, lambda: np.copyto(target, array), ROUNDS, tick, warm_up=1, clock=timed
    )
    rows = {"copy of the matrix": copies, **timings}
    return [{"name": name, **timing.record()} for name, timing in rows.items()]


def _file(matrix: Tensor, tick: Tick) -> Found:
    """Return the seconds to open a large file and to unpack one tensor of it, and both sizes."""
    tick("writing a file")
    packed = weights.pack(matrix.numpy(), USUAL)
    count = FILE_BYTES // packed.nbytes + 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.safetensors"
        weights.save(path, dict.fromkeys(map(str, range(count)), packed))

        def opened() -> None:
            with weights.open(path):
                pass

        def read() -> None:
            with weights.open(path) as file:
                tensor = file["1"]
                assert isinstance(tensor, weights.Packed)
                tensor.unpack()

        works = {"open": lambda _: opened(), "read": lambda _: read()}
        _, timings = interleave(works, packed.unpack, ROUNDS, tick, warm_up=1, clock=timed)
        seconds = {name: timing.record()["seconds"] for name, timing in timings.items()}
        return {**seconds, "bytes": path.stat().st_size, "tensor": 4 * WIDTH * WIDTH}


def one_row(found: Mapping[str, Any]) -> float:
    """Return how much faster than bfloat16 one row is multiplied, by the faster activations."""
    seconds = {row["name"]: row["seconds"] for row in found["rows"] if row["x"] == 1}
    return float(seconds[BFLOAT16] / min(seconds[INT8], seconds[FLOAT32]))


def table(found: Mapping[str, Any]) -> str:
    """Return the tables of all times."""
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
    if "file" in found:
        file = found["file"]
        parts.append(
            f"Opening a {file['bytes'] / 1e9:.2f} GB file takes {span(file['open'])}; opening it "
            f"and decoding one {file['tensor'] / 1e6:.0f} MB tensor takes {span(file['read'])}."
        )
    return "\n\n".join(parts)
