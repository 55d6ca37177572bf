"""What choosing codes of a large layer takes: time in products of its matrices, and memory.

All take turns on one thread, as in ``make bench``, with torch's float32 product of the weight and
the Gram matrix, in which times are told.
"""

import gc
import multiprocessing
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gradwire
from benches.compare.timing import Tick, interleave, timed
from benches.harness import pages
from gradwire.quantize import Affine
from gradwire.torch.weights import pack
from gradwire.weights import COMQ, GPTQ, Gram, MagR, Solver

WIDTH, ROUNDS, STEPS = 4096, 5, 150
GRID = Affine(4, 64)
PRODUCT, MAGR = "float32 product", f"MagR, {STEPS} steps"
ONE, THREE, SWEEP = "COMQ from nearest, 1 sweep", "COMQ from nearest, 3 sweeps", "one COMQ sweep"
SOLVERS: dict[str, Solver] = {
    GPTQ.__name__: GPTQ(),
    ONE: COMQ(sweeps=1, start="nearest"),
    THREE: COMQ(sweeps=3, start="nearest"),
    "COMQ": COMQ(),
}
ALLOWED = {GPTQ.__name__: 2.0, SWEEP: 2.0, MAGR: 1.3 * STEPS}
"""Of products."""
MEMORY_ALLOWED = 3.0
"""Of the layer's bytes, beyond the model and the Gram matrix."""

Found = dict[str, Any]


def measure(quick: bool, tick: Tick) -> Found:
    """Return all times, and peaks of memory; with ``quick`` those of a single round."""
    threads = torch.get_num_threads(), gradwire.get_num_threads()
    torch.set_num_threads(1)
    gradwire.set_num_threads(1)
    try:
        return {"times": _times(quick, tick), "memory": _peaks(tick)}
    finally:
        torch.set_num_threads(threads[0])
        gradwire.set_num_threads(threads[1])


def layer(width: int) -> tuple[Tensor, Tensor]:
    """Return the weight of a layer, and the Gram matrix of inputs of which few are large."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(width, width, generator=generator) / width**0.5
    x = torch.randn(2 * width, width, generator=generator)
    x *= torch.arange(1, width + 1).rsqrt()
    x += x.roll(1, 1) / 2
    gram = (x.t() @ x).double()
    return weight, (gram + gram.t()) / 2


def _times(quick: bool, tick: Tick) -> list[Found]:
    weight, gram = layer(WIDTH)
    rows, matrix, narrow = weight.numpy(), gram.numpy(), gram.float()
    out = torch.empty(WIDTH, WIDTH)

    def product() -> None:
        torch.mm(weight, narrow, out=out)

    def solving(solver: Solver) -> Callable[[int], Any]:
        return lambda _: solver.solve(rows, matrix, GRID)

    solvers = {name: solving(each) for name, each in SOLVERS.items()}
    shrinking = {MAGR: lambda _: MagR(steps=STEPS).prepare(rows, matrix, GRID)}
    found: list[Found] = []
    for works, rounds in ((solvers, 1 if quick else ROUNDS), ({} if quick else shrinking, 1)):
        warm_up = int(rounds > 1)
        products, timings = interleave(works, product, rounds, tick, warm_up=warm_up, clock=timed)
        if not found:
            found.append({"name": PRODUCT, **products.record()})
        found += [{"name": name, **timing.record()} for name, timing in timings.items()]
        if SWEEP not in {row["name"] for row in found}:
            found.append(_sweep({row["name"]: row for row in found}))
    return found


def _sweep(rows: Mapping[str, Found]) -> Found:
    """Return what two sweeps more take, for one."""
    units = ("seconds", "copies")
    each = {unit: (rows[THREE][unit] - rows[ONE][unit]) / 2 for unit in units}
    return {"name": SWEEP, **{unit: float(f"{value:.5g}") for unit, value in each.items()}}


def _peaks(tick: Tick) -> list[Found]:
    """Return what packing takes at most, each in a process of its own."""
    if not Path("/proc/self/clear_refs").exists():
        return []
    found = []
    for name in (GPTQ.__name__, "COMQ"):
        tick(f"memory of {name}")
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found.append({"name": name, "layers": pool.apply(peak, (name, WIDTH))})
    return found


def peak(name: str, width: int) -> float:
    """Return what packing a layer takes at most beside it and its Gram matrix, in its bytes."""
    gradwire.set_num_threads(1)
    torch.set_num_threads(1)
    weight, gram = layer(width)
    model = nn.Sequential(nn.Linear(width, width, bias=False, device="meta"))
    model[0].weight = nn.Parameter(weight)
    seen = {"0.weight": Gram(gram.numpy(), 2 * width, np.zeros(width))}
    small = nn.Sequential(nn.Linear(64, 64))  # what is imported and made at a first call
    pack(small, {"*": GRID}, rounding=SOLVERS[name], calibration={"0.weight": _identity(64)})
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", "utf-8")
    before = _resident("VmRSS")
    pack(model, {"*": GRID}, rounding=SOLVERS[name], calibration=seen)
    return float(f"{(_resident('VmHWM') - before) / weight.nbytes:.3g}")


def _identity(width: int) -> Gram:
    return Gram(np.eye(width), width, np.zeros(width))


def _resident(field: str) -> int:
    status = Path("/proc/self/status").read_text("utf-8")
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    assert found is not None
    return 1024 * int(found[1])


def table(found: Found) -> str:
    """Return all times and peaks."""
    memory = {row["name"]: f"{row['layers']:.2f}" for row in found["memory"]}
    rows = [
        [
            row["name"],
            pages.span(row["seconds"]),
            f"{row['copies']:.2f}",
            memory.get(row["name"], ""),
        ]
        for row in found["times"]
    ]
    title = f"**{WIDTH} × {WIDTH} layer, one thread**"
    headings = ("", "time", "time / product", "memory / layer")
    return "\n\n".join([title, pages.table(headings, rows)])


def targets(found: Found) -> list[str]:
    """Return a line for each target of times and memory."""
    said = []
    for row in found["times"]:
        if (allowed := ALLOWED.get(row["name"])) is not None:
            what = f"{row['name']} on a {WIDTH} × {WIDTH} layer: {row['copies']:.2f} times the time"
            said.append(pages.judged(f"{what} of a matrix product", row["copies"], allowed))
    for row in found["memory"]:
        what = f"{row['name']}: {row['layers']:.2f} times the memory of the layer, in addition to"
        what += " the model and the Gram matrix"
        said.append(pages.judged(what, row["layers"], MEMORY_ALLOWED))
    return said
