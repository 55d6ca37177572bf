"""What several tests share: codecs to try, naive oracles, forged frames, child processes."""

import os
import shutil
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
import pytest

import gradwire
from gradwire import exchange, memory, quantize, sparsify
from gradwire._codec import IndexCoding
from gradwire.exchange import Exchange
from gradwire.memory import Memory, NoMemory
from gradwire.quantize import Quantizer
from gradwire.sparsify import All, Sparsifier
from tests.examples_of_parts import EXAMPLES

P = TypeVar("P")


def examples(classes: Iterable[type[P]]) -> list[P]:
    """The examples of all parts of one sort, in the order of their registry."""
    return [part for cls in classes for part in EXAMPLES if type(part) is cls]


def rounds(quantizer: Quantizer) -> bool:
    """Whether values are rounded one by one, to within 2**-8 of themselves."""
    x = np.random.default_rng(0).standard_normal(500).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        codec = gradwire.Codec(sparsify=All(), quantize=quantizer, memory=NoMemory())
    sent = gradwire.decode(codec.encode(x, codec.init_state(x.size)))
    return np.allclose(sent, x, rtol=2**-8, atol=0)


def go_together(quantizer: Quantizer, kept_in: Memory) -> bool:
    """Whether a codec of both is neither refused nor warned of."""
    return quantizer.contracts if kept_in.keeps else not quantizer.needs_memory


def memory_for(quantizer: Quantizer) -> Memory:
    """A residual, where its error may go into one."""
    return memory.Residual() if quantizer.contracts else NoMemory()


def kept(values: np.ndarray) -> np.ndarray:
    """What a memory keeps of float32 values: zero of those below the smallest normal number."""
    return np.where(np.abs(values) < np.finfo(np.float32).smallest_normal, np.float32(0), values)


SPARSIFIERS: list[Sparsifier] = examples(sparsify.SPARSIFIERS)
_EVERY_QUANTIZER: list[Quantizer] = examples(quantize.QUANTIZERS)
QUANTIZERS = [each for each in _EVERY_QUANTIZER if rounds(each)]
FITTED = [each for each in _EVERY_QUANTIZER if each not in QUANTIZERS]
"""Those that fit what a code stands for to the values of a block, or draw."""
_EVERY_MEMORY: list[Memory] = examples(memory.MEMORIES)
ROUNDED = [each for each in _EVERY_MEMORY if getattr(each, "low_memory", False)]
"""Those that are kept in bfloat16."""
MEMORIES = [
    each
    for each in _EVERY_MEMORY
    if not each.keeps or (hasattr(each, "decay") and each not in ROUNDED)
]
"""Those that add what was not sent, or nothing, to the next tensor."""
FILTERS = [each for each in _EVERY_MEMORY if each not in MEMORIES]
"""Those that keep something else, also what was not sent to a rounding."""
EXCHANGES: list[Exchange] = examples(exchange.EXCHANGES)
CODINGS = get_args(IndexCoding)

CODECS = [
    gradwire.Codec(sparsify=sparsify, quantize=quantize, memory=MEMORIES[(i + j) % len(MEMORIES)])
    for i, sparsify in enumerate(SPARSIFIERS)
    for j, quantize in enumerate(QUANTIZERS)
]
"""Every two parts together, each with a few of its options; the core's tests have every three."""


def name_of(codec: Any) -> str:
    """A short test id for a codec or a part."""
    return str(codec).replace("gradwire.", "").replace(" ", "")


def same_state(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two state dicts are equal to the last bit."""

    def plain(state: dict[str, Any]) -> dict[str, Any]:
        names = ("residual", "momentum", "second_moment", "estimate")
        arrays = {name: state[name] for name in names if name in state}
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


MOUNT = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c"]
MOUNT += ['mount -t tmpfs -o size=256k tmpfs "$0" && exec "$@"']


def run_on_a_small_disk(source: str, folder: Path) -> str:
    """Run a script whose first argument is a folder with 256 KiB; skip where none can be made."""
    prefix = [*MOUNT, str(folder)]
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"]).returncode != 0:
        pytest.skip("this machine mounts no file system for a test")
    return run_python(source, str(folder), prefix=prefix)


def run_python(source: str, *arguments: str, prefix: Sequence[str] = (), **environment: str) -> str:
    """Run a script in a fresh interpreter; return what it prints."""
    done = subprocess.run(
        [*prefix, sys.executable, "-c", textwrap.dedent(source), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
