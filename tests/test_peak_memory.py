"""How much memory a call takes at most, and what of it stays."""

import sys

import pytest

from tests.support import run_python

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the peak can be set back under Linux alone"
)

COMMON = """
import gc
import re
import sys

import numpy as np

import gradwire

N = 1 << 24
MIB = 1 << 20
gradwire.set_num_threads(1)


def resident(field="VmRSS"):
    with open("/proc/self/status") as file:
        return int(re.search(field + r":\\s+(\\d+) kB", file.read())[1]) * 1024


def growth(call):
    # What the call took at its peak, and what it left behind, without its result.
    gc.collect()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before, own = resident(), resident("RssAnon")  # pages of code come and go
    result = call()
    peak = resident("VmHWM") - before
    del result
    gc.collect()
    return peak / MIB, (resident("RssAnon") - own) / MIB


x = np.random.default_rng(1).standard_normal(N).astype(np.float32)
"""

DECODE = (
    COMMON
    + """
codec = gradwire.Codec(
    sparsify={
        "topk": gradwire.sparsify.TopK(ratio=0.4),
        "randomk": gradwire.sparsify.RandomK(ratio=0.4),
    }[sys.argv[1]],
    quantize=gradwire.quantize.SignScale(),
    indices=sys.argv[2],
    memory=gradwire.memory.NoMemory(),
)
frame = codec.encode(x, codec.init_state(N))
out = np.ones(N, np.float32)
drawn = 2 if sys.argv[1] == "randomk" else 0
for call in (
    lambda: gradwire.decode(frame, out),
    lambda: gradwire.decode_add(frame, out, 0.5),
    lambda: gradwire.decode(frame),
):
    peak, kept = growth(call)
    # All positions alone are 25 MiB.
    result = 64 if call() is not out and call() is not None else 0
    assert peak < result + 5 + drawn, (peak, kept)
    assert kept < 3, (peak, kept)
print("well")
"""
)


@pytest.mark.parametrize(
    ("sparsifier", "indices"),
    [("topk", "bitmap"), ("topk", "elias-fano"), ("topk", "rice"), ("randomk", "auto")],
)
def test_decoding_takes_no_memory_for_all_positions(sparsifier, indices):
    assert run_python(DECODE, sparsifier, indices).split() == ["well"]


ENCODE = (
    COMMON
    + """
# What is in the running here is the whole tensor.
codec = gradwire.threshold(0.0, memory=gradwire.memory.NoMemory())
codec.encode(x[:1000])
peak, kept = growth(lambda: codec.encode(x))
assert peak > 128, (peak, kept)
assert kept < 66, (peak, kept)
# One chunk of all, which took 16 bytes for each element.
codec = gradwire.Codec(
    sparsify=gradwire.sparsify.ChunkTopK(N, k=1000), memory=gradwire.memory.NoMemory()
)
peak, kept = growth(lambda: codec.encode(x))
assert peak < 20, (peak, kept)
print("well")
"""
)


def test_encoding_keeps_little_of_what_it_takes():
    assert run_python(ENCODE).split() == ["well"]


SPARE_FRAMES = (
    COMMON
    + """
codec = gradwire.natural()
long, short = codec.init_state(36 * MIB), codec.init_state(2 * MIB)
x = np.tile(x, 3)
for _ in range(3):  # each frame while the one before is there
    frame = codec.encode(x[: 36 * MIB], long)
del frame
before = resident("RssAnon")
for _ in range(20):
    codec.encode(x[: 2 * MIB], short)
assert before - resident("RssAnon") > 2 * 35 * MIB, before - resident("RssAnon")
print("well")
"""
)


def test_memory_of_long_frames_is_given_back_once_frames_are_short():
    assert run_python(SPARE_FRAMES).split() == ["well"]
