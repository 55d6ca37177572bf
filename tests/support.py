"""What several tests share: codecs to try, naive oracles, forged frames, child processes."""

import os
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np

import gradwire
from gradwire.exchange import AllGather, AllReduce, Exchange, LeaderIndices
from gradwire.memory import Memory, NoMemory, Residual
from gradwire.quantize import (
    BFloat16,
    Codebook,
    Exponent,
    Float8,
    Float16,
    Float32,
    Quantizer,
)
from gradwire.sparsify import (
    SID,
    All,
    BinMax,
    ChunkTopK,
    Gaussian,
    RandomK,
    SampledTopK,
    Sparsifier,
    Threshold,
    TopK,
    Trimmed,
    TwoSided,
)

SPARSIFIERS: list[Sparsifier] = [
    All(),
    Threshold(0.5),
    TopK(ratio=0.01),
    TopK(k=7),
    SID(0.01),
    SID(0.01, distribution="exponential", stages="paper", band=None),
    SID(0.05, distribution="gamma", stages=2, band=(0.9, 1.1)),
    SampledTopK(0.01),
    SampledTopK(0.02, sample_ratio=0.05, strided=False, resample=False, upper=2, lower=0.5, seed=3),
    BinMax(),
    BinMax(50, soft=1.5),
    TwoSided(32),
    TwoSided(4.5, sample=None),
    Gaussian(0.01),
    Gaussian(0.05, rounds=0, band=(0.9, 1.1)),
    Trimmed(0.01),
    Trimmed(0.05, method="search", step=0.1),
    ChunkTopK(100),
    ChunkTopK(64, 5),
    RandomK(ratio=0.01, seed=3),
    RandomK(k=9, block=True),
]
QUANTIZERS: list[Quantizer] = [Float32(), BFloat16(), Float16(), Float16(scaled=False)]
FITTED: list[Quantizer] = [
    Float8(),
    Float8("e5m2", block=7),
    Float8("e5m2", rounding="stochastic", block=None, seed=3),
    Codebook(),
    Codebook(4),
    Exponent(),
    Exponent(seed=2),
]
"""Those that fit what a code stands for to the values of a block, or draw."""
MEMORIES: list[Memory] = [
    NoMemory(),
    Residual(),
    Residual(decay=0.9),
    Residual(decay=0.9, low_memory=True),
]
EXCHANGES: list[Exchange] = [
    AllGather(),
    AllGather(mean="senders"),
    AllReduce(),
    LeaderIndices(),
]
CODINGS = ["auto", "elias-fano", "rice", "bitmap"]

CODECS = [
    gradwire.Codec(sparsify=sparsify, quantize=quantize, memory=memory)
    for sparsify in SPARSIFIERS
    for quantize in QUANTIZERS
    for memory in MEMORIES
]
"""Every composition of parts, each with a few of its options."""

UNDOABLE = [codec for codec in CODECS if not getattr(codec.memory, "low_memory", False)]
"""Those whose states keep what an encode replaces."""


def name_of(codec: Any) -> str:
    """A short test id for a codec or a part."""
    return str(codec).replace("gradwire.", "").replace(" ", "")


def same_state(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two state dicts are equal to the last bit."""

    def plain(state: dict[str, Any]) -> dict[str, Any]:
        arrays = {name: state[name] for name in ("residual", "momentum")}
        return state | {
            name: None if array is None else array.tobytes() for name, array in arrays.items()
        }

    return plain(a) == plain(b)


def largest(x: np.ndarray, k: int) -> np.ndarray:
    """Positions of the k largest magnitudes, ascending; no zeros; ties to the lower position."""
    order = np.argsort(-np.abs(x), kind="stable")[:k]
    return np.sort(order[x[order] != 0]).astype(np.uint32)


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def forge(frame: bytes, at: int, field: bytes) -> bytes:
    """Overwrite bytes of a frame and make its checksum right again."""
    data = bytearray(frame)
    data[at : at + len(field)] = field
    data[12:16] = crc32c(bytes(data[:12] + data[16:])).to_bytes(4, "little")
    return bytes(data)


def run_python(source: str, *arguments: str, **environment: str) -> str:
    """Run a script in a fresh interpreter; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
