"""In the steady state no call takes memory that is new to the process: page faults are counted.

A fault brings 4 KiB, so what is given back and taken anew shows in each of the eight steps that
are counted: a frame of 1 MB as 256 of them, the candidates of SIDCo at 9 million entries as 6,000.
The limit is for what grows for once: candidates where a step has more of them than any before,
some MB of a large tensor, and the interpreter.
"""

import sys

import pytest

from gradwire.presets import PRESETS
from tests.support import run_python

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the kernel counts faults otherwise"
)

SMALL, LARGE = 1_000_000, 9_000_000
"""The allocator of glibc keeps what is given back up to 32 MiB; 9 million float32 are 34."""

PROGRAM = """
import resource
import sys

import numpy as np

import gradwire
from gradwire.presets import PRESETS

N, threads, names = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
STEPS, COUNTED = 40, 8
LIMIT = 100 if N <= 1_000_000 else 1_500
gradwire.set_num_threads(threads)
rng = np.random.default_rng(0)
gradients = [rng.standard_t(3, N).astype(np.float32) for _ in range(2)]
out = np.zeros(N, np.float32)


def faults(call):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    result = call()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, result


for name in names:
    preset, _, ratio = name.partition(":")
    options = {"ratio": float(ratio)} if ratio else PRESETS[preset].example
    codec = PRESETS[preset].build(**options).for_shape((N // 100, 100))
    state, frame = codec.init_state(N), b""
    buffer = np.ones(codec.max_encoded_len(N), np.uint8)
    totals = dict.fromkeys(("encode", "decode", "decode_add", "encode_into"), 0)
    for step in range(STEPS + 2 * COUNTED):
        x = gradients[step % 2]
        if step >= STEPS + COUNTED:
            into, _ = faults(lambda: codec.encode_into(x, state, buffer))
            totals["encode_into"] += into if step > STEPS + COUNTED else 0
            continue
        encoded, frame = faults(lambda: codec.encode(x, state))
        decoded, _ = faults(lambda: gradwire.decode(frame, out))
        added, _ = faults(lambda: gradwire.decode_add(frame, out))
        if step >= STEPS:
            totals["encode"] += encoded
            totals["decode"] += decoded
            totals["decode_add"] += added
    del state, frame
    assert max(totals.values()) <= LIMIT, (name, totals)
print("well")
"""


def none_in(numel: int, threads: int, *names: str) -> None:
    assert run_python(PROGRAM, str(numel), str(threads), *names).split() == ["well"]


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.full), 2])
def test_steps_of_a_million_entries_take_no_page_fault(threads: int) -> None:
    none_in(SMALL, threads, *PRESETS, "topk:0.1", "sidco:0.001", "sidco:0.1")


EVERY = [*PRESETS, "sidco:0.001", "sidco:0.1", "topk:0.1"]
"""Of a large tensor `make test` tries one, whose candidates are the most that a step takes."""


@pytest.mark.parametrize(
    "name", ["sidco:0.01", *(pytest.param(each, marks=pytest.mark.full) for each in EVERY)]
)
def test_large_steps_take_no_page_fault(name: str) -> None:
    none_in(LARGE, 2, name)
