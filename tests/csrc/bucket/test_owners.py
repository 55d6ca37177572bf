"""What owners of ranges do: headers are found, frames cut, and what is left of sums is kept."""

import ctypes as c
import itertools
import struct

import numpy as np
import pytest

import gradwire
from gradwire import _native, memory, quantize, sparsify
from gradwire.torch.backends.cuda import structs
from gradwire.torch.backends.cuda.states import COLUMNS, NBYTES

SELECTED = gradwire.sparsify.TopK(ratio=0.2)
QUANTIZERS = [
    quantize.Float32(),
    quantize.Float16(),
    quantize.Float8(block=64),
    quantize.Uniform(3, block=32, norm="max"),
    quantize.SignScale(),
    quantize.TwoMeans(column=50),
    quantize.TwoMeans(),
    quantize.Ternary(),
    quantize.Codebook(),
]


def made(codec, x):
    return bytes(codec.encode(x, codec.init_state(x.size)))


def values(numel, seed=1):
    drawn = np.random.default_rng(seed).standard_normal(numel)
    return drawn.astype(np.float32) * np.abs(drawn).astype(np.float32)


def exact(data):
    """Bytes with nothing behind them, so that sanitizers see what is read beyond."""
    return np.frombuffer(data, np.uint8).copy()


def room(nbytes):
    found = np.full(nbytes, 0xA5, np.uint8)
    assert found.ctypes.data % 16 == 0
    return found


class Reading:
    """What a call that reads one frame is given."""

    def __init__(self, kernels, data, numel, out=0):
        self.data = exact(data)
        self.frame = np.array([self.data.ctypes.data, self.data.size], np.uint64)
        self.target = np.array([out, numel, 0], np.uint64)
        self.tiles = np.zeros((2, 2), np.uint32)
        plan = kernels.function("gradwire_test_plan_decode", c.c_uint64)
        lens, numels = np.array([self.data.size], np.uint64), np.array([numel], np.uint64)
        nbytes = plan(lens, numels, 1, 1, True, self.tiles[0], self.tiles[1])
        self.workspace = np.full(nbytes // 8 + 1, 0xA5A5A5A5A5A5A5A5, np.uint64)
        self.failed, self.verdict = np.full(1, 99, np.uint32), np.full(1, 99, np.uint32)

    @property
    def given(self):
        return (
            *(self.frame, self.target, self.tiles[0], self.tiles[1]),
            *(self.failed, self.verdict, self.workspace),
        )


def split(kernels, codec, frame, numel, cuts):
    """Cut a frame by the kernels; the parts of each range, one after another."""
    count = len(cuts) - 1
    piece = structs.Piece(numel=numel)
    piece.sparsify = structs.sparsify_of(codec.sparsify)
    piece.quantize = structs.quantize_of(codec.quantize)
    ranges = np.array([(0, *pair) for pair in itertools.pairwise(cuts)], np.uint64)
    dense = codec.sparsify.kind == "all"
    entries = gradwire.Frame(frame).count
    parts, most = (structs.Piece * (2 * count))(), np.zeros(2 * count, np.uint64)
    sizes = np.zeros(3, np.uint64)
    kernels.call(
        "gradwire_test_split_layout",
        *((structs.Piece * 1)(piece), entries, ranges, count, parts, most, sizes),
    )
    table, scratch, slots = (room(int(n)) for n in sizes)
    selections, firsts = (structs.Selection * (2 * count))(), np.zeros(1, np.uint64)
    outcomes = np.full((2 * count, COLUMNS), -1, np.int64)
    positions, places = room(0 if dense else 4 * entries), room(32 * count)
    reading = Reading(kernels, frame, numel)
    kernels.call(
        "gradwire_test_split",
        *(*reading.given, ranges, count, parts, most, selections),
        *(places, positions, firsts, slots, outcomes, table, scratch),
    )
    assert reading.failed[0] == 0
    base = slots.ctypes.data
    found = [
        slots[part.frame - base :][: each.nbytes].tobytes() if each.status == 0 else b""
        for part, each in zip(parts, selections, strict=True)
    ]
    assert outcomes[:, NBYTES].tolist() == list(map(len, found))
    return [b"".join(pair) for pair in zip(found[::2], found[1::2], strict=True)]


@pytest.mark.parametrize("dense", [False, True], ids=["selected", "dense"])
@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=repr)
def test_parts_are_those_of_the_core(kernels, quantizer, dense):
    chosen = sparsify.All() if dense else SELECTED
    codec = gradwire.Codec(sparsify=chosen, quantize=quantizer, memory=memory.NoMemory())
    for numel in (1, 33, 130, 4500, 9001):
        for x in (values(numel), np.zeros(numel, np.float32)):
            frame = made(codec, x)
            for cuts in ([0, numel], [0, numel // 3, numel // 3, numel - numel // 4, numel]):
                owners = list(range(len(cuts) - 1))
                expected = _native.split_bucket(
                    np.frombuffer(frame, np.uint8), [len(frame)], [cuts], [owners], len(owners)
                )
                for _ in kernels.orders():
                    found = split(kernels, codec, frame, numel, cuts)
                    assert found == [each.tobytes() for each in expected]


@pytest.mark.parametrize("coding", ["elias-fano", "rice", "bitmap"])
def test_positions_of_every_coding_are_cut(kernels, coding):
    codec = gradwire.Codec(sparsify=SELECTED, indices=coding, memory=memory.NoMemory())
    frame = made(codec, values(5000))
    cuts = [0, 17, 2048, 5000]
    expected = _native.split_bucket(
        np.frombuffer(frame, np.uint8), [len(frame)], [cuts], [[0, 1, 2]], 3
    )
    assert split(kernels, codec, frame, 5000, cuts) == [each.tobytes() for each in expected]


def heads(kernels, messages, most):
    data = exact(b"".join(messages))
    stops = np.cumsum([len(each) for each in messages])
    bounds = np.stack([stops - [len(each) for each in messages], stops], 1).astype(np.int64)
    table = np.full((len(messages), most, 4), 9, np.int64)
    kernels.call("gradwire_test_heads", data, bounds, len(messages), most, table)
    return table, bounds


def test_headers_are_found_one_after_another(kernels):
    codec = gradwire.topk(0.2)
    frames = [[made(codec, values(n, n)) for n in own] for own in ((7, 300, 1), (), (45,))]
    messages = [b"".join(own) for own in frames]
    for _ in kernels.orders():
        table, bounds = heads(kernels, messages, 3)
        for rows, own, (at, _) in zip(table, frames, bounds, strict=True):
            for row, frame in zip(rows, own, strict=False):
                read = gradwire.Frame(frame)
                assert row.tolist() == [at, len(frame), read.numel, read.count]
                at += len(frame)
            assert not rows[len(own) :, 1].any()


def test_no_header_leads_beyond_its_message(kernels):
    frame = made(gradwire.topk(0.2), values(40))
    for at, length in ((32, 2**64 - 1), (40, 2**64 - 1), (32, 2**63), (40, len(frame)), (32, 999)):
        damaged = bytearray(frame)
        struct.pack_into("<Q", damaged, at, length)
        table, _ = heads(kernels, [bytes(damaged), frame], 2)
        assert not table[0, :, 1].any()
        assert table[1, :, 1].tolist() == [len(frame), 0]
    for short in (0, 1, 47, len(frame) - 1):
        assert not heads(kernels, [frame[:short]], 1)[0][0, :, 1].any()


@pytest.mark.parametrize("numel", [1, 130, 4097])
def test_what_is_left_of_sums_is_added_to_a_residual(kernels, numel):
    codec = gradwire.Codec(
        sparsify=SELECTED, quantize=quantize.BFloat16(), memory=memory.Residual()
    )
    start, whole = 5, numel + 8
    sums = values(numel)
    sums[::7] = 0
    frame = made(codec, sums)
    kept = values(whole, 3)
    kept[start] = -0.0
    kept[start + 1 :: 3][: numel // 4] *= np.float32(1e-38)
    left = sums - gradwire.decode(frame)
    expected = kept.copy()
    added = expected[start : start + numel] + left
    added[np.abs(added) < np.finfo(np.float32).smallest_normal] = 0
    np.copyto(expected[start : start + numel], added, where=left != 0)  # a negative zero stays
    for _ in kernels.orders():
        state = (structs.State * 1)(structs.State(current=1))
        buffers = [np.zeros(whole, np.float32), kept.copy()]
        piece = (structs.Piece * 1)()
        piece[0].numel, piece[0].state = whole, c.addressof(state)
        piece[0].memory = structs.memory_of(codec.memory)
        for side, buffer in enumerate(buffers):
            piece[0].residual[side] = buffer.ctypes.data
        outcome = np.array([0, 2**64 - 1], np.uint64)
        reading = Reading(kernels, frame, numel, sums.ctypes.data)
        kernels.call(
            "gradwire_test_absorb", *reading.given, piece, np.array([start], np.uint64), outcome
        )
        assert reading.failed[0] == 0
        assert buffers[1].tobytes() == expected.tobytes()
        assert not buffers[0].any()
        assert outcome.tolist() == [0, 2**64 - 1]
