"""Patches are what docs/delta-format.md says, and stay that."""

import json
from pathlib import Path

import numpy as np
import pytest

from gradwire import delta
from gradwire.weights import RawTensor
from tests.delta import plain_reader

GOLDEN = Path(__file__).parents[1] / "golden" / "deltas"
SIZES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I64": 8, "F64": 8}


def tensors(kinds, data):
    return {
        name: RawTensor(dtype, tuple(shape), np.frombuffer(bytearray(data[name]), np.uint8))
        for name, dtype, shape in kinds
    }


def noise(count, seed):
    """Numbers of 32 bits that no library can change."""
    mixed = np.arange(count, dtype=np.uint64) * 0x9E3779B1 + seed * 0x85EBCA77 & 0xFFFFFFFF
    for shift in (15, 13):
        mixed = (mixed ^ mixed >> shift) * 0xC2B2AE3D & 0xFFFFFFFF
    return (mixed ^ mixed >> 16).astype(np.uint32)


def drawn(share, numel=700, sizes=SIZES):
    """Kinds, a base, and a result in which this share of the entries has moved a few steps."""
    kinds = [(f"{dtype}.{i}", dtype, [numel + i]) for dtype in sizes for i in range(2)]
    base, new = {}, {}
    for seed, (tensor, dtype, (count,)) in enumerate(kinds):
        # Floats from 2**-12 to 16: their exponents are sums, so that large ones are fewer.
        exponents = 115 + sum(noise(count, 9 * seed + i) >> 30 for i in range(5))
        bits = noise(count, 9 * seed + 5) & 0x807FFFFF | exponents.astype(np.uint32) << 23
        size = SIZES[dtype]
        whole = (bits >> 16).astype("<u2") if size == 2 else bits.astype("<u4")
        data = np.resize(whole.view(np.uint8), size * count).reshape(count, size).copy()
        base[tensor] = data.tobytes()
        moves = noise(count, 9 * seed + 6) < share * 2**32
        data[moves, 0] ^= (1 + noise(count, 9 * seed + 7)[moves] % 8).astype(np.uint8)
        data[: 3 if share else 0, -1] ^= 0x81  # some change their sign and their class
        new[tensor] = data.tobytes()
    return kinds, base, new


CASES = {"none": 0.0, "few": 0.01, "some": 0.3, "all": 1.0}


@pytest.mark.parametrize("name", CASES)
def test_a_reader_of_the_page_alone_reads_patches(name):
    kinds, base, new = drawn(CASES[name])
    patch = delta.encode(tensors(kinds, base), tensors(kinds, new))
    assert plain_reader.read(patch, kinds, base) == (new, delta.digests(patch))
    assert delta.digest(tensors(kinds, new)) == delta.digests(patch)[1]


@pytest.mark.parametrize("name", CASES)
def test_patches_of_this_version_are_read_for_ever(name):
    kinds, base, new = drawn(CASES[name])
    patch = (GOLDEN / f"{name}.gwdl").read_bytes()
    model = tensors(kinds, base)
    delta.apply(model, patch)
    assert {tensor: bytes(each.data) for tensor, each in model.items()} == new
    assert list(delta.digests(patch)) == json.loads((GOLDEN / "digests.json").read_text())[name]


@pytest.mark.full
def test_blocks_go_across_tensors():
    kinds, base, new = drawn(0.02, (1 << 19) + 3, ["BF16"])
    patch = delta.encode(tensors(kinds, base), tensors(kinds, new))
    assert plain_reader.read(patch, kinds, base)[0] == new
