"""Frames that the kernels write, byte for byte beside those of the core."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
from numpy.typing import NDArray

import gradwire
from gradwire import memory, quantize, sparsify
from gradwire._codec import IndexCoding
from gradwire.quantize import Quantizer
from tests.csrc import parts
from tests.csrc.emulated.kernels import Kernels
from tests.csrc.frame.writing import CODINGS, Entries, Written, draws, key, write

EXTRA = [
    quantize.Uniform(bits=2, block=7),
    quantize.Uniform(bits=5, block=5000),
    quantize.Uniform(bits=7, block=513, norm="max"),
    quantize.Codebook(bits=3),
    quantize.TwoMeans(column=1500),
    quantize.Float8(format="e5m2", rounding="stochastic", block=None),
]
QUANTIZERS: list[Quantizer] = [
    each
    for each in [*parts.QUANTIZERS, *EXTRA]
    if getattr(each, "scale", None) not in ("bin-max", "threshold")
]
VALUES = ("normal", "zero", "equal", "subnormal", "huge", "mixed", "negative")


def made_values(kind: str, count: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Values of a kind that quantizers have trouble with."""
    x = rng.standard_normal(count)
    match kind:
        case "zero":
            x = np.where(x < 0, -0.0, 0.0)
        case "equal":
            x = np.full(count, 0.25)
        case "subnormal":
            x = x * 1e-40
        case "huge":
            x = np.clip(x * 3e38, -3.4e38, 3.4e38)
        case "mixed":
            x = np.clip(x * 10.0 ** rng.uniform(-44, 38, count), -3.4e38, 3.4e38)
            x[::7] = 0.0
        case "negative":
            x = -np.abs(x)
    return x.astype(np.float32)


def made_positions(numel: int, count: int, rng: np.random.Generator) -> NDArray[np.uint32]:
    return np.sort(rng.choice(numel, count, replace=False)).astype(np.uint32)


def codec(
    quantizer: Quantizer, sparsifier: sparsify.Sparsifier, indices: IndexCoding = "auto"
) -> gradwire.Codec:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gradwire.Codec(
            sparsify=sparsifier, quantize=quantizer, memory=memory.NoMemory(), indices=indices
        )


def core_frame(tensor: Entries) -> bytes:
    """The frame that the core makes of the same entries."""
    x = np.zeros(tensor.numel, np.float32)
    if tensor.positions is None:
        each = codec(tensor.quantizer, sparsify.All())
        return bytes(each.encode(tensor.values, each.init_state(tensor.numel)))
    x[tensor.positions] = tensor.values
    chosen: sparsify.Sparsifier = sparsify.TopK(k=1)
    if tensor.chunks is not None:
        chosen = sparsify.ChunkTopK(chunk=tensor.chunks[0], k=tensor.chunks[1])
    each = codec(tensor.quantizer, chosen, tensor.indices)
    return bytes(each.encode_at(x, each.init_state(tensor.numel), tensor.positions))


def check(written: Written, tensor: Entries, expected: bytes) -> None:
    assert written.frame == expected, first_difference(written.frame, expected)
    sent = gradwire.decode(expected, max_numel=tensor.numel)
    assert written.decoded.tobytes() == sent.tobytes()


def first_difference(got: bytes | None, expected: bytes) -> str:
    if got is None:
        return "no frame"
    if len(got) != len(expected):
        return f"{len(got)} bytes, not {len(expected)}: {got[:48].hex()} {expected[:48].hex()}"
    at = [i for i, (a, b) in enumerate(zip(got, expected, strict=True)) if a != b]
    return f"bytes {at[:20]} of {len(got)}: {got[:48].hex()} {expected[:48].hex()}"


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=repr)
def test_a_bucket_of_sparse_frames_is_that_of_the_core(
    kernels: Kernels, rng: np.random.Generator, quantizer: Quantizer
) -> None:
    tensors = [
        Entries(
            numel,
            made_values(kind, count, rng),
            quantizer,
            made_positions(numel, count, rng),
            indices,
        )
        for kind in VALUES
        for indices in CODINGS
        for numel, count in ((0, 0), (1, 0), (1, 1), (5, 3), (300, 299), (4000, 129), (9000, 4101))
    ]
    for tensor, written in zip(tensors, write(kernels, tensors), strict=True):
        check(written, tensor, core_frame(tensor))


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=repr)
def test_a_bucket_of_dense_frames_is_that_of_the_core(
    kernels: Kernels, rng: np.random.Generator, quantizer: Quantizer
) -> None:
    tensors = [
        Entries(numel, made_values(kind, numel, rng), quantizer)
        for kind in VALUES
        for numel in (0, 1, 31, 33, 1000, 4097, 9001)
    ]
    for tensor, written in zip(tensors, write(kernels, tensors), strict=True):
        check(written, tensor, core_frame(tensor))
        assert written.peak == np.abs(tensor.values).max(initial=0)


def test_a_dense_tensor_that_is_not_finite_shows_in_its_largest_magnitude(
    kernels: Kernels, rng: np.random.Generator
) -> None:
    for bad in (np.inf, -np.inf, np.nan):
        values = made_values("normal", 9001, rng)
        values[4567] = bad
        tensors = [Entries(values.size, values, quantizer) for quantizer in QUANTIZERS]
        for written in write(kernels, tensors):
            assert not np.isfinite(written.peak)


def test_what_a_draw_leaves_open_is_settled_as_by_the_core(kernels: Kernels) -> None:
    # One draw in 2^24 does: values are made so that many do.
    words = draws(key(0, ~0), 8000)
    unit = (words >> 8).astype(np.float64) * 2.0**-24
    levels = np.where(unit < 0.25, unit + 2.0**-25, 0.3).astype(np.float32)
    levels[0] = 1.0
    parts = (2**28 - 1 - (words >> 4)).astype(np.float64)
    steps = np.where(parts < 2**23, (parts + 0.5) * 2.0**-44, 2.0**-17).astype(np.float32)
    assert (unit < 0.25).sum() > 1000 < (parts < 2**23).sum() * 8
    tensors = [
        Entries(8000, levels, quantize.Ternary(clip=None)),
        Entries(8000, -levels, quantize.Uniform(bits=2, block=8000, norm="max")),
        Entries(8000, steps, quantize.Float8(format="e5m2", rounding="stochastic", block=None)),
    ]
    for tensor, written in zip(tensors, write(kernels, tensors), strict=True):
        check(written, tensor, core_frame(tensor))


LONG = [
    quantize.Float16(scaled=True),
    quantize.Uniform(bits=3, block=70_001),
    quantize.SignScale(),
    quantize.SignScale(scale="rms"),
    quantize.TwoMeans(),
    quantize.TwoMeans(column=66_000),
    quantize.Ternary(clip=1.5),
]


@pytest.mark.parametrize("quantizer", LONG, ids=repr)
@pytest.mark.parametrize("kind", ["normal", "mixed"])
def test_sums_over_many_chunks_are_those_of_the_core(
    kernels: Kernels, rng: np.random.Generator, quantizer: Quantizer, kind: str
) -> None:
    count = 2 * 65_536 + 4711
    values = made_values(kind, count, rng)
    tensors = [
        Entries(count, values, quantizer),
        Entries(3 * count, values, quantizer, made_positions(3 * count, count, rng), room=count),
    ]
    for tensor, written in zip(tensors, write(kernels, tensors), strict=True):
        check(written, tensor, core_frame(tensor))


def supports(rng: np.random.Generator) -> list[tuple[int, NDArray[np.uint32]]]:
    """Positions that codings have trouble with, and the elements of their tensors."""
    few = [(1, [0]), (2, [1]), (9, [0, 8]), (1000, [999]), (500_000, [0, 499_999])]
    random = [
        (numel, made_positions(numel, count, rng))
        for numel, count in ((100, 50), (5000, 40), (90_000, 8200), (9000, 8999), (9000, 4500))
    ]
    # All at one end, so that one tile has most of the zeros; and a run.
    clustered = np.r_[np.arange(4000), 400_000 - np.arange(200)[::-1]].astype(np.uint32)
    run = np.arange(7000, 12_000, dtype=np.uint32)
    return [
        *((numel, np.array(positions, np.uint32)) for numel, positions in few),
        *random,
        (400_001, clustered),
        (400_001, 400_000 - clustered[::-1]),
        (20_000, run),
    ]


@pytest.mark.parametrize("indices", CODINGS)
def test_positions_are_coded_as_by_the_core(
    kernels: Kernels, rng: np.random.Generator, indices: IndexCoding
) -> None:
    # The sections of values begin and end anywhere in a word.
    tensors = [
        Entries(numel, made_values("normal", positions.size, rng), quantizer, positions, indices)
        for numel, positions in supports(rng)
        for quantizer in (quantize.BFloat16(), quantize.Ternary())
    ]
    expected = [core_frame(tensor) for tensor in tensors]
    for _ in kernels.orders():
        for tensor, written, frame in zip(tensors, write(kernels, tensors), expected, strict=True):
            check(written, tensor, frame)


def chunked(numel: int, size: int, k: int, rng: np.random.Generator) -> NDArray[np.uint32]:
    """Positions of as many entries in every chunk."""
    starts = range(0, numel, size)
    picked = [
        start + made_positions(min(size, numel - start), min(k, numel - start), rng)
        for start in starts
    ]
    return np.concatenate(picked).astype(np.uint32)


@pytest.mark.parametrize("indices", ["auto", "rice"])
def test_positions_in_chunks_are_coded_as_by_the_core(
    kernels: Kernels, rng: np.random.Generator, indices: IndexCoding
) -> None:
    tensors = []
    for numel, size, k in ((231, 100, 2), (64_000, 64, 5), (100_001, 100, 1), (9, 8, 7)):
        full = chunked(numel, size, k, rng)
        moved = full.copy()
        if full.size > 600:
            moved[500:502] = moved[501] + np.arange(2)
        tensors += [
            Entries(
                numel,
                made_values("normal", positions.size, rng),
                quantize.BFloat16(),
                positions,
                indices,
                "chunk_topk",
                chunks=(size, k),
            )
            for positions in (full, full[1:], moved)
        ]
    for tensor, written in zip(tensors, write(kernels, tensors), strict=True):
        check(written, tensor, core_frame(tensor))


@pytest.mark.parametrize("block", [False, True])
def test_drawn_positions_are_sent_as_their_key(
    kernels: Kernels, rng: np.random.Generator, block: bool
) -> None:
    tensors, frames = [], []
    for numel, k in ((1000, 5), (20_000, 9000), (20_000, 1), (300, 299)):
        for quantizer in (quantize.Float32(), quantize.Float8(), quantize.Uniform(bits=3, block=8)):
            x = made_values("normal", numel, rng)
            each = codec(quantizer, sparsify.RandomK(k=k, seed=9, block=block))
            frame = each.encode(x, each.init_state(numel))
            tensors.append(
                Entries(
                    numel,
                    x[frame.indices()],
                    quantizer,
                    frame.indices(),
                    "auto",
                    "random_k",
                    drawn="run" if block else "subset",
                    seed=9,
                )
            )
            frames.append(bytes(frame))
    for tensor, written, sent in zip(tensors, write(kernels, tensors), frames, strict=True):
        check(written, tensor, sent)


def test_signs_have_the_magnitude_that_the_sparsifier_tells(
    kernels: Kernels, rng: np.random.Generator
) -> None:
    x = made_values("normal", 4000, rng)
    quantizer = quantize.SignScale(scale="threshold")
    each = codec(quantizer, sparsify.Threshold(1.5))
    frame = each.encode(x, each.init_state(x.size))
    at, told = frame.indices(), float(abs(frame.values()[0]))
    tensor = Entries(x.size, x[at], quantizer, at, "auto", "threshold", told=told)
    check(write(kernels, [tensor])[0], tensor, bytes(frame))


def test_a_frame_that_is_longer_than_its_limit_is_not_written(
    kernels: Kernels, rng: np.random.Generator
) -> None:
    positions = made_positions(5000, 300, rng)
    tensor = Entries(5000, made_values("normal", 300, rng), quantize.Float32(), positions)
    frame = core_frame(tensor)
    at_its_limit = dataclasses.replace(tensor, limit=len(frame))
    beyond = dataclasses.replace(tensor, limit=len(frame) - 1)
    first, second, third = write(kernels, [at_its_limit, beyond, at_its_limit])
    check(first, tensor, frame)
    check(third, tensor, frame)
    assert second.frame is None
    assert not second.decoded.any()


def test_the_number_of_launches_does_not_depend_on_the_number_of_tensors(
    kernels: Kernels, rng: np.random.Generator
) -> None:
    launches = []
    for count in (1, 3, 40):
        tensors = [
            Entries(
                numel,
                made_values("normal", numel // 3, rng),
                quantizer,
                made_positions(numel, numel // 3, rng),
                room=numel,
            )
            for numel in rng.integers(1, 3000, count).tolist()
            for quantizer in (quantize.SignScale(), quantize.Float32())
        ]
        before = kernels.launches
        for tensor, written in zip(tensors, write(kernels, tensors), strict=True):
            check(written, tensor, core_frame(tensor))
        launches.append(kernels.launches - before)
    assert launches[0] == launches[1] == launches[2] <= 5


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_frame_says_of_what_type_its_tensor_was(
    kernels: Kernels, rng: np.random.Generator, dtype: str
) -> None:
    positions = made_positions(500, 40, rng)
    values = made_values("normal", 40, rng).astype(np.float16).astype(np.float32)
    tensor = Entries(500, values, quantize.Float32(), positions, dtype=dtype)
    divided = dataclasses.replace(tensor, divisor=2.0)
    first, second = write(kernels, [tensor, divided])
    x = np.zeros(500, dtype)
    x[positions] = values
    each = codec(quantize.Float32(), sparsify.TopK(k=1))
    check(first, tensor, bytes(each.encode_at(x, each.init_state(500), positions)))
    check(second, divided, core_frame(tensor))
