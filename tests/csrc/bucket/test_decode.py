"""Decoding on the device: bit for bit what the CPU decodes, for every preset."""

from itertools import pairwise

import numpy as np
import pytest

import gradwire
from gradwire._codec import IndexCoding
from gradwire.memory import NoMemory
from gradwire.quantize import SignScale
from gradwire.sparsify import All, RandomK, TopK
from tests.csrc.bucket.decoding import Into, Verdict, decode, same_bits
from tests.csrc.emulated.kernels import Kernels
from tests.csrc.parts import QUANTIZERS
from tests.presets.examples import DEGENERATE, gradient, made_for_kernels, names, presets
from tests.support import CODINGS, memory_for

GOOD = Verdict.GOOD


def frames_of(preset, numel: int, ranks: int = 1) -> list[bytes]:
    codec = made_for_kernels(preset, (numel,)) if numel != 3072 else made_for_kernels(preset)
    return [bytes(codec.encode(gradient(numel, r), codec.init_state(numel))) for r in range(ranks)]


def expected(frames: list[bytes], numel: int) -> np.ndarray:
    out = np.empty(numel, np.float32)
    gradwire.decode(frames[0], out)
    return out


@pytest.mark.parametrize("preset", presets, ids=names)
def test_a_frame_of_every_preset_decodes_to_the_same_bits(kernels: Kernels, preset) -> None:
    numels = (0, 1, 2, 31, 192, 1001, 3072, 9000)
    frames = [frames_of(preset, numel) for numel in numels]
    for skew, _ in enumerate(kernels.orders()):
        outs = [np.full(numel, 7, np.float32) for numel in numels]
        verdicts = decode(frames, outs, skew=skew)
        assert set(verdicts) == {GOOD}
        for out, frame, numel in zip(outs, frames, numels, strict=True):
            same_bits(out, expected(frame, numel))


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_tensors_decode_to_the_same_bits(name: str) -> None:
    x = DEGENERATE[name]
    frames = []
    for preset in presets:
        codec = made_for_kernels(preset, (x.size,))
        frames.append([bytes(codec.encode(x, codec.init_state(x.size)))])
    outs = [np.full(x.size, 7, np.float32) for _ in presets]
    assert set(decode(frames, outs)) == {GOOD}
    for out, frame in zip(outs, frames, strict=True):
        same_bits(out, expected(frame, x.size))


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("k", [1, 40, 3000, 30_000, 39_999])
def test_positions_of_any_density_decode_to_the_same_bits(coding: IndexCoding, k: int) -> None:
    x = gradient(40_000)
    codecs = [
        gradwire.Codec(sparsify=TopK(k=k), quantize=q, indices=coding, memory=memory_for(q))
        for q in QUANTIZERS
    ]
    if k == 30_000:
        codecs = codecs[:2]
    frames = [[bytes(codec.encode(x, codec.init_state(x.size)))] for codec in codecs]
    outs = [np.full(x.size, 7, np.float32) for _ in codecs]
    assert set(decode(frames, outs)) == {GOOD}
    for out, frame in zip(outs, frames, strict=True):
        same_bits(out, expected(frame, x.size))


@pytest.mark.parametrize("coding", ["elias-fano", "rice", "bitmap"])
def test_positions_that_many_blocks_read_decode_to_the_same_bits(
    rng: np.random.Generator, coding: IndexCoding
) -> None:
    """An upper vector of more bits than a block examines, so that blocks look back."""
    x = rng.standard_normal(700_003, np.float32)
    codec = gradwire.Codec(sparsify=TopK(k=300_000), quantize=SignScale(), indices=coding)
    frame, out = [bytes(codec.encode(x, codec.init_state(x.size)))], np.empty_like(x)
    assert decode([frame], [out]) == [GOOD]
    same_bits(out, expected(frame, x.size))


@pytest.mark.parametrize("ratio", [0.0005, 0.01, 0.3, 0.8, 0.9999])
@pytest.mark.parametrize("run", [False, True])
def test_drawn_positions_are_drawn_again(ratio: float, run: bool) -> None:
    codec = gradwire.Codec(sparsify=RandomK(ratio=ratio, block=run), memory=NoMemory())
    numels = (1, 100, 4096, 20_011)
    frames = []
    for numel in numels:
        state = codec.init_state(numel)
        codec.encode(gradient(numel), state)
        frames.append([bytes(codec.encode(gradient(numel), state))])
    outs = [np.full(numel, 7, np.float32) for numel in numels]
    assert set(decode(frames, outs)) == {GOOD}
    for out, frame, numel in zip(outs, frames, numels, strict=True):
        same_bits(out, expected(frame, numel))


def test_without_room_for_drawn_positions_their_frames_are_told() -> None:
    codec = gradwire.Codec(sparsify=RandomK(ratio=0.1), memory=NoMemory())
    frame = bytes(codec.encode(gradient(5000), codec.init_state(5000)))
    out = np.full(5000, 7, np.float32)
    assert decode([[frame]], [out], seeded=False) == [Verdict.SEEDED]
    assert (out == 7).all()


@pytest.mark.parametrize("preset", presets, ids=names)
def test_frames_are_added_in_the_order_of_ranks(preset) -> None:
    numels, ranks = (1, 192, 5000), 3
    frames = [frames_of(preset, numel, ranks) for numel in numels]
    outs = [gradient(numel, 9) for numel in numels]
    wanted = [out.copy() for out in outs]
    for out, of_tensor in zip(wanted, frames, strict=True):
        for frame in of_tensor:
            gradwire.decode_add(frame, out, 0.3)
    verdicts = decode(frames, outs, into=Into.ADD, scale=float(np.float32(0.3)))
    assert set(verdicts) == {GOOD}
    for out, want in zip(outs, wanted, strict=True):
        same_bits(out, want)


def average(
    frames: list[list[bytes]], numels: tuple[int, ...], out: np.ndarray, scale: float, **how: bool
) -> None:
    """The average of a bucket by the CPU, all tensors in one buffer."""
    ranks = len(frames[0])
    rows = [b"".join(of_tensor[rank] for of_tensor in frames) for rank in range(ranks)]
    room = max(map(len, rows))
    data = np.frombuffer(b"".join(row.ljust(room, b"\0") for row in rows), np.uint8).copy()
    sizes = [[len(of_tensor[rank]) for of_tensor in frames] for rank in range(ranks)]
    ends = np.cumsum([0, *numels]).tolist()
    pairs = [end for pair in pairwise(ends) for end in pair]
    senders, bfloat16 = how["senders"], how["bfloat16"]
    gradwire._native.average_bucket(
        data,
        [rank * room for rank in range(ranks)],
        sizes,
        pairs,
        [False] * len(numels),
        out,
        scale,
        senders,
        bfloat16,
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("into", [Into.RANKS, Into.SENDERS])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("scale", [1.0, 4.0, 1.0 / 3.0])
def test_a_bucket_is_averaged_as_the_cpu_does(
    dtype: str, into: Into, ranks: int, scale: float
) -> None:
    bfloat16 = dtype == "bfloat16"
    numels = (300, 1, 5003)
    topk, signs = gradwire.topk(0.1), gradwire.signsgd()
    frames = []
    for numel, codec in zip(numels, (signs, topk, topk), strict=True):
        x = [gradient(numel, rank) * np.float32(1e5) for rank in range(ranks)]
        frames.append([bytes(codec.encode(g, codec.init_state(numel))) for g in x])
    element = np.dtype(np.uint16 if bfloat16 else dtype)
    whole = np.zeros(sum(numels), element)
    average(frames, numels, whole, scale, senders=into is Into.SENDERS, bfloat16=bfloat16)
    outs = [np.full(numel, 7, element) for numel in numels]
    verdicts = decode(frames, outs, into=into, scale=scale, bfloat16=bfloat16)
    assert set(verdicts) == {GOOD}
    same_bits(np.concatenate(outs), whole)


def test_launches_do_not_grow_with_frames_or_tensors(kernels: Kernels) -> None:
    codec = gradwire.Codec(sparsify=All(), memory=NoMemory())
    counts = set()
    for tensors, ranks in ((1, 1), (1, 8), (40, 1), (30, 3)):
        frame = bytes(codec.encode(gradient(50)))
        outs = [np.zeros(50, np.float32) for _ in range(tensors)]
        before = kernels.launches
        decode([[frame] * ranks] * tensors, outs, into=Into.RANKS, seeded=False)
        counts.add(kernels.launches - before)
    assert counts == {4}
