"""Bytes, rounds and messages of every exchange, against participants that move the bytes."""

import random

import pytest

from gradwire.cost import Payload
from gradwire.cost.exchanges import (
    FRONT,
    MODELS,
    RESULT,
    DenseReduceScatter,
    GatheredFrames,
    RingAllReduce,
    SharedPositions,
    SparseReduceScatter,
)
from gradwire.exchange import EXCHANGES
from tests.cost import plain

RANKS = [1, 2, 3, 4, 5, 8, 13]
NUMEL = 840 * 13  # divides among all of these


def agree(phase, wire, *, serial=None):
    assert phase.sent == pytest.approx(wire.mean)
    assert phase.serial == pytest.approx(max(wire.nbytes) if serial is None else serial)
    assert phase.rounds == wire.rounds
    assert phase.messages == max(wire.messages)


@pytest.mark.parametrize("ranks", RANKS)
def test_a_dense_all_reduce(ranks):
    wire = plain.Wire(ranks)
    plain.ring_all_reduce([NUMEL * 2 // ranks] * ranks, wire)
    (phase,) = RingAllReduce().phases(Payload.dense(NUMEL, 16), ranks)
    agree(phase, wire)


@pytest.mark.parametrize("ranks", RANKS)
def test_an_all_gather_of_frames(ranks):
    payload = Payload(NUMEL, 100, value_bits=32, position_bits=8, header=64, frames=3)
    wire = plain.Wire(ranks)
    plain.ring_all_gather([3 * 64 + 100 * 5] * ranks, wire)
    (phase,) = GatheredFrames().phases(payload, ranks)
    agree(phase, wire)


@pytest.mark.parametrize("ranks", RANKS)
def test_shared_positions(ranks):
    entries = 13 * 840 // 10
    payload = Payload(NUMEL, entries, value_bits=32, position_bits=8, header=64)
    tree, ring = plain.Wire(ranks), plain.Wire(ranks)
    plain.broadcast(64 + entries, tree)
    plain.ring_all_reduce([4 * entries // ranks] * ranks, ring)
    positions, values = SharedPositions().phases(payload, ranks)
    # All copies of one message pass through at most as many links as the tree has levels.
    agree(positions, tree, serial=tree.rounds * (64 + entries))
    assert values.sent == pytest.approx(2 * (ranks - 1) / ranks * 4 * entries)
    assert values.rounds == ring.rounds


@pytest.mark.parametrize("ranks", RANKS)
def test_a_sparse_reduce_scatter(ranks):
    """Selections with as many entries in every range, and a fifth more sums."""
    draw, width, each = random.Random(ranks), NUMEL // ranks, 840 // ranks
    selections = [
        {owner * width + at for owner in range(ranks) for at in draw.sample(range(width), each)}
        for _ in range(ranks)
    ]
    cut = [plain.pieces(selection, NUMEL, ranks) for selection in selections]
    ahead, scattered, after, gathered = (plain.Wire(ranks) for _ in range(4))
    plain.personalized([[FRONT + 1] * ranks] * ranks, ahead)
    plain.personalized([[16 + 5 * len(piece) for piece in row] for row in cut], scattered)
    plain.ring_all_gather([RESULT] * ranks, after)
    plain.personalized([[16 + 5 * 1.2 * each] * ranks] * ranks, gathered)

    payload = Payload(NUMEL, each * ranks, value_bits=32, position_bits=8, header=16)
    phases = SparseReduceScatter().phases(payload, ranks)
    for phase, wire in zip(phases[:3], (ahead, scattered, after), strict=True):
        agree(phase, wire)
    assert phases[3].sent == pytest.approx(gathered.mean)
    assert phases[3].rounds == gathered.rounds
    assert phases[1].sent + phases[3].sent <= 2.5 * payload.nbytes + 32 * ranks


@pytest.mark.parametrize("ranks", RANKS)
def test_a_quantized_all_reduce(ranks):
    payload = Payload(NUMEL, NUMEL, value_bits=8, header=32)
    wire = plain.Wire(ranks)
    plain.personalized([[32 + NUMEL // ranks] * ranks] * ranks, wire)
    _, scattered, _, gathered = DenseReduceScatter().phases(payload, ranks)
    agree(scattered, wire)
    agree(gathered, wire)


@pytest.mark.parametrize(("frames", "ranks", "owned"), [(7, 2, 4), (7, 7, 1), (1, 5, 1), (3, 8, 1)])
def test_an_owner_has_some_tensors_or_a_part_of_one(frames, ranks, owned):
    piece = Payload(NUMEL, NUMEL, header=48, frames=frames).range(ranks)
    assert piece.frames == owned
    assert piece.entries == NUMEL / ranks


EVERY = [
    (RingAllReduce(), Payload.dense(NUMEL)),
    (GatheredFrames(), Payload.sparse(NUMEL, 100)),
    (SharedPositions(), Payload.sparse(NUMEL, 100)),
    (SparseReduceScatter(), Payload.sparse(NUMEL, 100)),
    (DenseReduceScatter(), Payload(NUMEL, NUMEL, value_bits=8, header=32)),
]


@pytest.mark.parametrize(("exchange", "payload"), EVERY, ids=repr)
def test_one_rank_sends_nothing(exchange, payload):
    for phase in exchange.phases(payload, 1):
        assert (phase.sent, phase.serial, phase.rounds, phase.messages) == (0, 0, 0, 0)


@pytest.mark.parametrize(("exchange", "payload"), EVERY, ids=repr)
def test_more_ranks_never_send_less_nor_wait_for_fewer_messages(exchange, payload):
    before = exchange.phases(payload, 2)
    for ranks in [3, 4, 7, 8, 64, 1000, 10_000]:
        now = exchange.phases(payload, ranks)
        for old, new in zip(before, now, strict=True):
            assert new.sent >= old.sent * (1 - 1e-12)
            assert new.rounds >= old.rounds
            assert new.messages >= old.messages
        before = now


def test_every_exchange_of_a_codec_has_a_model():
    assert MODELS.keys() == {each.kind for each in EXCHANGES}
