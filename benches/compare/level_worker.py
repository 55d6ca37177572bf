"""The process of one SIMD level: a round for each line on its standard input."""

import json
import sys
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

import gradwire
from gradwire.quantize import BFloat16

from . import plan
from .contestant import Array
from .laws import gradients
from .rounds import timed

Works = dict[str, Callable[[], gradwire.Frame | None]]


def works(numel: int) -> tuple[Array, Works]:
    """Return the tensor that is copied, and what is timed beside it."""
    gradient = gradients(plan.HEADLINE_LAW, numel)[0]
    codecs = {
        "topk, 0.001": gradwire.topk(ratio=0.001),
        "topk, 0.01": gradwire.topk(ratio=0.01),
        "topk, 0.1": gradwire.topk(ratio=0.1),
        "sidco, 0.001": gradwire.sidco(ratio=0.001),
        "sidco, 0.01": gradwire.sidco(ratio=0.01),
        "dense bf16": gradwire.dense(quantize=BFloat16()),
    }
    states = {name: codec.init_state(numel) for name, codec in codecs.items()}
    found: Works = {
        name: lambda codec=codec, state=states[name]: codec.encode(gradient, state)  # type: ignore[misc]
        for name, codec in codecs.items()
    }
    frame = codecs["topk, 0.01"].encode(gradient, codecs["topk, 0.01"].init_state(numel))
    out = np.zeros_like(gradient)
    found["decode and add, 0.01"] = lambda: gradwire.decode_add(frame, out)
    return gradient, found


def main(numel: int, threads: int) -> None:
    gradwire.set_num_threads(threads)
    print(json.dumps({"level": gradwire.simd_level()}), flush=True)
    gradient: Array | None = None
    for _ in sys.stdin:
        if gradient is None:  # not before it is clear that this level is wanted
            gradient, todo = works(numel)
            copied = np.zeros_like(gradient)
            for work in todo.values():
                work()
        print(json.dumps(_round(gradient, copied, todo)), flush=True)


def _round(gradient: Array, copied: Array, todo: Works) -> dict[str, Any]:
    """Return the times of everything once, and check sums of the frames."""
    copy, _ = timed(lambda: np.copyto(copied, gradient))
    seconds, sums = {}, {}
    for name, work in todo.items():
        seconds[name], frame = timed(work)
        if frame is not None:
            sums[name] = zlib.crc32(frame)
    return {"copy": copy, "seconds": seconds, "sums": sums}


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
