"""Compare the throughput of encoding tensors of other types with float32.

By the bytes of the tensor alone a narrow type is slower if there is a residual: the residual is
always float32, and accounts for two thirds of the traffic of a float32 encode. So the same times
are also compared by all bytes moved: the tensor, the residual read and written, a dense frame.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.table import Table

import gradwire
import gradwire.torch
from gradwire.quantize import BFloat16

from . import plan
from .interleave import Tick, copying, interleave
from .laws import gradients
from .rounds import Spread, set_threads

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
AIM = 0.8

CODECS: dict[str, Callable[[], gradwire.Codec]] = {
    "topk, 0.001": lambda: gradwire.topk(ratio=0.001),
    "topk, 0.01": lambda: gradwire.topk(ratio=0.01),
    "sidco, 0.001": lambda: gradwire.sidco(ratio=0.001),
    "dense bf16": lambda: gradwire.dense(quantize=BFloat16()),
}


def measure(numel: int, threads: int, rounds: int, tick: Tick) -> dict[str, Any]:
    """Return for each codec and type the throughput in bytes, relative to float32."""
    set_threads(threads)
    tick("drawing gradients")
    gradient = gradients(plan.HEADLINE_LAW, numel)[0]
    tensors = {name(dtype): torch.from_numpy(gradient).to(dtype) for dtype in DTYPES}
    rows: list[dict[str, Any]] = []
    for codec_name, make in CODECS.items():
        # One codec at a time: every type has a state of its own, with two residuals.
        works = {dtype: _encode(make(), tensor) for dtype, tensor in tensors.items()}

        def told(what: str, codec: str = codec_name) -> None:
            tick(f"{codec}, {what}")

        copy, timings = interleave(works, copying(gradient), rounds, told)
        base = timings[name(torch.float32)].seconds.values
        for dtype, tensor in tensors.items():
            width = tensor.element_size() / torch.float32.itemsize
            paired = zip(timings[dtype].seconds.values, base, strict=True)
            speed = [reference / seconds for seconds, reference in paired]
            moved = traffic(codec_name, tensor.dtype) / traffic(codec_name, torch.float32)
            shares = {
                "share": Spread([width * times for times in speed]).record(),
                "share_moved": Spread([moved * times for times in speed]).record(),
            }
            row = {"codec": codec_name, "dtype": dtype} | shares
            rows.append(row | timings[dtype].record() | {"copy": copy.record()})
    return {"numel": numel, "threads": threads, "aim": AIM, "rows": rows}


def traffic(codec: str, dtype: torch.dtype) -> int:
    """Return the bytes per entry that an encode reads and writes."""
    return dtype.itemsize + (2 if codec.startswith("dense") else 2 * torch.float32.itemsize)


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _encode(codec: gradwire.Codec, tensor: torch.Tensor) -> Callable[[int], object]:
    state = codec.init_state(tensor.numel())
    # A frame of the same size in every round, in memory that is there already.
    out = np.zeros(codec.max_encoded_len(tensor.numel()), np.uint8)
    target = torch.from_numpy(out)
    return lambda _: gradwire.torch.encode_into(codec, tensor, state, target)


def table(measured: dict[str, Any]) -> Table:
    title = f"Bytes per second by dtype, float32 = 1: {measured['numel']:,} entries, threads: "
    table = Table(title=f"{title}{measured['threads']}", title_justify="left")
    table.add_column("codec")
    dtypes = [name(dtype) for dtype in DTYPES]
    for dtype in dtypes:
        table.add_column(dtype, justify="right")
    for codec in CODECS:
        rows = {row["dtype"]: row for row in measured["rows"] if row["codec"] == codec}
        cells = [
            f"{rows[dtype]['share']['median']:.2f}, {rows[dtype]['share_moved']['median']:.2f}"
            f" ({rows[dtype]['copies']['median']:.2f} copies)"
            for dtype in dtypes
        ]
        table.add_row(codec, *cells)
    table.caption = (
        "Bytes of the tensor, then all bytes moved; in parentheses the time in copies of the "
        f"float32 tensor. The aim is {measured['aim']}."
    )
    return table
