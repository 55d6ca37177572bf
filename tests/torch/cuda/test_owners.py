"""What owners of ranges do, by emulated kernels: cut, add up and encode again, byte for byte."""

import copy
import itertools

import numpy as np
import pytest
import torch

import gradwire
from gradwire import memory, quantize, sparsify
from gradwire.errors import CorruptFrameError, NonFiniteError
from gradwire.exchange.frames import owners_for
from gradwire.torch.backends import cpu, cuda
from gradwire.torch.backends.cuda import encoding, merging
from gradwire.torch.backends.cuda.states import init_state
from tests.csrc.emulated.operators import emulate
from tests.csrc.parts import QUANTIZERS, SPARSIFIERS
from tests.support import memory_for

N = 2603
DENSE = [
    gradwire.Codec(sparsify=sparsify.All(), quantize=each, memory=memory_for(each))
    for each in QUANTIZERS
]
SPARSE = [
    gradwire.Codec(sparsify=sparsify.TopK(ratio=0.1), quantize=each, memory=memory_for(each))
    for each in QUANTIZERS
    if each.contracts
] + [gradwire.Codec(sparsify=each) for each in SPARSIFIERS if each.selects]
CODECS = [each for each in DENSE + SPARSE if owners_for(each.sparsify, each.quantize, each.memory)]


@pytest.fixture(scope="module", autouse=True)
def emulated():
    emulate()


def values(seed, numel=N):
    drawn = np.random.default_rng(seed).standard_normal(numel).astype(np.float32)
    return torch.from_numpy(drawn * np.abs(drawn))


class Rank:
    """States of some tensors on either side, and frames that both have encoded."""

    def __init__(self, codecs, numels, stream):
        self.codecs, self.numels = codecs, numels
        names = [f"w{i}" for i in range(len(codecs))]
        self.there = [
            init_state(codec, numel, name, stream)
            for codec, numel, name in zip(codecs, numels, names, strict=True)
        ]
        self.here = [
            codec.init_state(numel, name=name, stream=stream)
            for codec, numel, name in zip(codecs, numels, names, strict=True)
        ]
        stops = list(itertools.accumulate(numels))
        self.ends = [end for pair in zip([0, *stops], stops, strict=False) for end in pair]

    def encode(self, flat):
        limits = [
            codec.max_encoded_len(numel)
            for codec, numel in zip(self.codecs, self.numels, strict=True)
        ]
        self.frames = torch.zeros(sum(limits), dtype=torch.uint8)
        rows = encoding.encode(self.codecs, self.there, self.ends, limits, flat, 1.0, self.frames)
        self.sizes, self.counts = rows[:, 0].tolist(), rows[:, 1].tolist()
        for i, (codec, state) in enumerate(zip(self.codecs, self.here, strict=True)):
            start, stop = self.ends[2 * i : 2 * i + 2]
            frame = codec.encode(flat[start:stop].numpy(), state)
            at = sum(self.sizes[:i])
            assert bytes(frame) == self.frames[at : at + self.sizes[i]].numpy().tobytes()

    def split(self, bounds, owners, ranks):
        given = self.codecs, self.frames, self.sizes, self.counts, bounds, owners, ranks
        found = merging.split(*given)
        expected = cpu.bucket(torch.empty(0)).split(*given)
        assert found is not None
        assert [each.numpy().tobytes() for each in found] == [
            each.numpy().tobytes() for each in expected
        ]
        return expected


def merged(messages, rank, ends, unused):
    """Merge on either side; the results, and what the states have become."""
    sent = torch.cat(messages)
    stops = list(itertools.accumulate(map(len, messages)))
    bounds = [end for pair in zip([0, *stops], stops, strict=False) for end in pair]
    ranges = merging.Ranges(rank.codecs, rank.there, ends, unused)
    found = merging.merge(sent, bounds, ranges)
    expected = cpu.bucket(torch.empty(0)).merge(sent, bounds, rank.codecs, rank.here, ends, unused)
    return found, expected


def check_equal(found, expected, rank):
    assert found[1] is None
    assert expected[1] is None
    assert found[0].numpy().tobytes() == expected[0].numpy().tobytes()
    for one, other in zip(rank.there, rank.here, strict=True):
        ours, theirs = one.state_dict()["residual"], other.state_dict()["residual"]
        assert (ours is None) == (theirs is None)
        assert ours is None or ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_parts_and_sums_are_those_of_the_core(codec):
    ranks = [Rank([codec], [N], stream) for stream in range(3)]
    bounds = [0, 37, 37, 901, 1800, N]
    for step in range(2):
        messages = []
        for i, rank in enumerate(ranks):
            rank.encode(values(10 * step + i))
            messages.append(rank.split([bounds], [[2, 3, 0, 1, 4]], 5))
        for rank, owner, ends in zip(
            ranks, (0, 1, 4), ((37, 901), (901, 1800), (1800, N)), strict=True
        ):
            check_equal(*merged([each[owner] for each in messages], rank, ends, [False]), rank)
    rank = ranks[0]
    cuda.rollback(rank.there)
    rank.here[0].rollback()
    check_equal((torch.empty(0), None, 0), (torch.empty(0), None, 0), rank)


@pytest.mark.parametrize("numel", [1, 2, 31, 4096, 4097, 9000])
def test_frames_of_any_length_are_cut_anywhere(numel):
    random = np.random.default_rng(numel)
    for codec in (
        gradwire.topk(0.3),
        gradwire.topk(1.0),
        gradwire.onebit(column=64),
        gradwire.qsgd(bits=3),
        gradwire.topk(0.3, quantize=quantize.Uniform(3, block=8, norm="max")),
    ):
        rank = Rank([codec], [numel], 0)
        rank.encode(values(1, numel))
        for ranges in (1, 2, 9):
            cuts = np.sort(random.integers(0, numel + 1, ranges - 1)).tolist()
            rank.split([[0, *cuts, numel]], [list(range(ranges))], ranges)
        rank.encode(torch.zeros(numel))
        rank.split([[0, numel // 2, numel]], [[1, 0]], 2)


def several():
    codecs = [gradwire.topk(0.05), gradwire.topk(0.2), gradwire.topk(0.05)]
    ranks = [Rank(codecs, [700, 5000, 90], stream) for stream in range(2)]
    bounds, owners = [[0, 300, 700], [0, 4100, 5000], [0, 90]], [[0, 1], [1, 0], [1]]
    messages = []
    for i, rank in enumerate(ranks):
        rank.encode(values(i, 5790))
        messages.append(rank.split(bounds, owners, 2))
    return ranks[1], [each[1] for each in messages], [300, 700, 0, 4100, 0, 90]


def test_ranges_of_several_tensors_are_merged_at_once_and_unused_ones_passed_over():
    rank, messages, ends = several()
    check_equal(*merged(messages, rank, ends, [False, False, False]), rank)
    rank, messages, ends = several()
    check_equal(*merged(messages, rank, ends, [False, True, False]), rank)
    rank, messages, ends = several()
    check_equal(*merged(messages, rank, ends, [True, True, True]), rank)


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda message: message[60:61].bitwise_xor_(1), CorruptFrameError),
        (lambda message: message[33:34].fill_(255), gradwire.GradwireError),
        (lambda message: message[16:17].add_(1), gradwire.GradwireError),
        (lambda message: message[16:24].zero_(), gradwire.GradwireError),
    ],
    ids=["values", "length", "elements", "none"],
)
def test_a_damaged_part_is_the_error_of_the_core_and_changes_nothing(damage, kind):
    rank, messages, ends = several()
    damage(messages[1])
    before = copy.deepcopy([each.state_dict()["residual"] for each in rank.there])
    found, expected = merged(messages, rank, ends, [False] * 3)
    assert isinstance(found[1], kind)
    assert str(found[1]) == str(expected[1])
    assert found[2] == expected[2]
    for one, state in zip(before, rank.there, strict=True):
        assert one.tobytes() == state.state_dict()["residual"].tobytes()


def test_lengths_that_wrap_around_to_those_of_the_range_are_an_error():
    rank, messages, ends = several()
    ((_, nbytes, numel, _),) = merging.heads(messages[0], [0, len(messages[0])], 1)[0]
    first = messages[0][:nbytes].clone()
    first[16:24].view(torch.int64).fill_(-5)
    messages[0][16:24].view(torch.int64).fill_(int(numel) + 5)
    messages[0] = torch.cat((first, messages[0]))
    found, expected = merged(messages, rank, ends, [False] * 3)
    assert isinstance(found[1], gradwire.GradwireError)
    assert str(found[1]) == str(expected[1])


def test_bytes_behind_the_parts_are_an_error():
    rank, messages, ends = several()
    messages[0] = torch.cat((messages[0], messages[0][:48]))
    found, expected = merged(messages, rank, ends, [False] * 3)
    assert "follow the frames" in str(found[1])
    assert str(found[1]) == str(expected[1])


def test_sums_and_residuals_that_are_not_finite_are_named():
    codec = gradwire.Codec(sparsify=sparsify.TopK(k=2), memory=memory.Residual())
    large = torch.zeros(50)
    large[[7, 20]] = torch.tensor([3e38, 1.0])
    ranks = [Rank([codec], [50], stream) for stream in range(2)]
    messages = []
    for rank in ranks:
        rank.encode(large)
        messages.append(rank.split([[0, 50]], [[0]], 1)[0])
    found, expected = merged(messages, ranks[0], [0, 50], [False])
    for _, error, at in (found, expected):
        assert isinstance(error, NonFiniteError)
        assert (error.count, error.first, at) == (1, 7, 0)


def test_what_would_not_be_finite_in_a_residual_is_named():
    codec = gradwire.Codec(sparsify=sparsify.TopK(k=2), memory=memory.Residual())
    rank = Rank([codec], [50], 0)
    held = torch.zeros(50)
    held[[3, 4, 9]] = torch.tensor([3.3e38, 3.2e38, 3e38])
    rank.encode(held)  # the smallest is left
    messages = [frame_of(50, {9: 1e38, 10: 2e38, 11: 2.5e38}), frame_of(50, {13: 2e38, 14: 2.5e38})]
    found, expected = merged(messages, rank, [0, 50], [False])
    for _, error, at in (found, expected):
        assert isinstance(error, NonFiniteError)
        assert (error.count, error.first, at) == (1, 9, 0)


def frame_of(numel, entries):
    x = np.zeros(numel, np.float32)
    x[list(entries)] = list(entries.values())
    codec = gradwire.Codec(sparsify=sparsify.TopK(ratio=1.0), memory=memory.NoMemory())
    frame = codec.encode(x, codec.init_state(numel))
    return torch.frombuffer(bytearray(bytes(frame)), dtype=torch.uint8)


def test_no_header_leads_beyond_its_message():
    frame = frame_of(40, dict.fromkeys(range(20), 1.0))
    damaged = []
    for at, length in ((32, -1), (40, -1), (32, -(2**63)), (40, len(frame)), (32, 999)):
        damaged.append(frame.clone())
        damaged[-1][at : at + 8].view(torch.int64).fill_(length)
    damaged += [frame[:short] for short in (0, 1, 47, len(frame) - 1)]
    for each in damaged:
        bounds = [0, len(each), len(each), len(each) + len(frame)]
        table = merging.heads(torch.cat((each, frame)), bounds, 2)
        assert not table[0, :, 1].any()
        assert table[1].tolist() == [[len(each), len(frame), 40, 20], [*table[1, 1, :1], 0, 0, 0]]


@pytest.mark.parametrize("numel", [1, 130, 4097])
def test_what_is_left_of_sums_is_added_to_a_residual_where_the_range_begins(numel):
    codec = gradwire.topk(0.2, quantize=quantize.BFloat16())
    rank = Rank([codec], [numel + 8], 0)
    rank.encode(torch.zeros(numel + 8))
    residual, sums = rank.there[0]._current()[1]["residual"], values(1, numel)
    sums[::7] = 0
    residual.copy_(values(3, numel + 8))
    residual[5] = -0.0
    residual[6::3][: numel // 4] *= 1e-38
    frame = codec.encode(sums.numpy() * 1e-37, codec.init_state(numel))
    left = sums * 1e-37 - torch.from_numpy(gradwire.decode(frame))
    expected = residual.clone()
    total = expected[5 : 5 + numel] + left
    total[total.abs() < torch.finfo(torch.float32).tiny] = 0
    expected[5 : 5 + numel] = torch.where(left == 0, expected[5 : 5 + numel], total)
    data = torch.frombuffer(bytearray(bytes(frame)), dtype=torch.uint8)
    assert (left == 0).any()
    merged = merging._Range(0, codec, rank.there[0], 5, sums * 1e-37)
    assert not merging._absorb(merged.sums, [merged], data, [len(data)])
    assert residual.numpy().tobytes() == expected.numpy().tobytes(), "a negative zero stays"
