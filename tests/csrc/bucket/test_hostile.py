"""Bytes from outside, decoded on the device: the CPU's verdict on each, and nothing written."""

import struct

import numpy as np
import pytest

import gradwire
from gradwire.memory import NoMemory
from gradwire.presets import Preset
from gradwire.sparsify import All, ChunkTopK, RandomK, TopK
from tests.csrc.bucket.decoding import Verdict, by_the_cpu, decode, same_bits
from tests.csrc.parts import QUANTIZERS
from tests.presets.examples import frame_of, gradient, made_for_kernels, names, presets
from tests.support import CODINGS, forge, memory_for, name_of

X = gradient(61)
CODECS = [
    *(
        gradwire.Codec(sparsify=All(), quantize=quantize, memory=memory_for(quantize))
        for quantize in QUANTIZERS
    ),
    *(
        gradwire.Codec(
            sparsify=TopK(k=7),
            quantize=quantize,
            indices=CODINGS[i % len(CODINGS)],
            memory=memory_for(quantize),
        )
        for i, quantize in enumerate(QUANTIZERS)
    ),
    gradwire.Codec(sparsify=ChunkTopK(chunk=10, k=2)),
    gradwire.Codec(sparsify=RandomK(k=11), memory=NoMemory()),
    gradwire.Codec(sparsify=RandomK(k=11, block=True), memory=NoMemory()),
]
"""Every quantizer, in a dense frame and with positions; every coding."""
FRAMES = [bytes(codec.encode(X, codec.init_state(X.size))) for codec in CODECS]
STRIDE = 5
"""Of what is too much to try in full, one in so many is tried."""

every_frame = pytest.mark.parametrize("data", FRAMES, ids=[name_of(codec) for codec in CODECS])


def judged(many: list[bytes], numel: int) -> None:
    """Each gets the verdict of the CPU, and its bits; a call with a bad one writes nothing."""
    by_cpu = [by_the_cpu(data, numel) for data in many]
    outs = [np.full(numel, 7, np.float32) for _ in many]
    verdicts = decode([[data] for data in many], outs)
    assert verdicts == [verdict for verdict, _ in by_cpu]
    good = [i for i, verdict in enumerate(verdicts) if verdict is Verdict.GOOD]
    if len(good) < len(many):
        assert all((out == 7).all() for out in outs)
        if not good:
            return
        outs = [np.full(numel, 7, np.float32) for _ in good]
        decode([[many[i]] for i in good], outs)
        by_cpu = [by_cpu[i] for i in good]
    for out, (_, expected) in zip(outs, by_cpu, strict=True):
        same_bits(out, expected)


@every_frame
def test_prefixes_and_what_follows(data: bytes) -> None:
    lengths = [*range(50), *range(50, len(data) - 1, STRIDE)]
    cut = [data[:length] for length in lengths]
    judged([*cut, data[:-1], data + b"\0", data], X.size)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@every_frame
def test_flipped_bits(data: bytes) -> None:
    bits = range(0, 8 * len(data), STRIDE if len(data) < 100 else 4 * STRIDE)
    judged([flipped(data, bit) for bit in bits], X.size)


def test_every_flipped_bit_of_a_frame() -> None:
    data = min(FRAMES, key=len)
    judged([flipped(data, bit) for bit in range(8 * len(data))], X.size)


@every_frame
def test_forged_headers_with_a_right_checksum(data: bytes) -> None:
    forged = [
        forge(data, at, bytes([value]))
        for at in range(48)
        for value in (0, 1, 2, 7, 127, 128, 255)
        if not 12 <= at < 16
    ]
    forged += [
        forge(data, at, struct.pack("<Q", claim))
        for at in (16, 24, 32, 40)
        for claim in (0, 1, 10, 12, 60, 62, 2**16, 2**32 - 1, 2**32, 2**63, 2**64 - 1)
    ]
    judged(forged, X.size)


def forged_at_random(data: bytes, rng: np.random.Generator, least: int, count: int) -> list[bytes]:
    out: list[bytes] = []
    while len(out) < count:
        at = int(rng.integers(least, len(data)))
        if 12 <= at < 16:
            continue
        field = rng.integers(0, 256, int(rng.integers(1, 5)), np.uint8).tobytes()
        out.append(forge(data, at, field[: (12 - at if at < 12 else len(data) - at)]))
    return out


@every_frame
def test_forged_sections_with_a_right_checksum(rng: np.random.Generator, data: bytes) -> None:
    judged(forged_at_random(data, rng, 48, 500 // STRIDE), X.size)


@pytest.mark.parametrize("preset", presets, ids=names)
def test_forged_frames_of_every_preset(rng: np.random.Generator, preset: Preset) -> None:
    data = frame_of(preset, made_for_kernels)
    judged([data, *forged_at_random(data, rng, 4, 500 // STRIDE)], 192)


def test_tensors_of_other_lengths() -> None:
    data = FRAMES[0]
    for numel in (0, 1, X.size - 1, X.size + 1):
        judged([data], numel)


def test_one_bad_frame_of_many_keeps_every_tensor_as_it_was() -> None:
    data = FRAMES[0]
    outs = [np.full(X.size, 7, np.float32) for _ in range(5)]
    frames = [[data, data]] * 4 + [[data, data[:-1]]]
    assert decode(frames, outs) == [Verdict.GOOD] * 9 + [Verdict.TRUNCATED]
    assert all((out == 7).all() for out in outs)
