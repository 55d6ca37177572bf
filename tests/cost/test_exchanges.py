"""Bytes, rounds and messages of every exchange."""

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

NUMEL = 10_920

FRAMES = Payload(NUMEL, 100, value_bits=32, position_bits=8, header=64, frames=3)  # 692 bytes
PICKED = Payload(NUMEL, 1092, value_bits=32, position_bits=8, header=64)  # 1,156 and 4,368
SPARSE = Payload(NUMEL, 840, value_bits=32, position_bits=8, header=16)  # 1,066 a range of 4
CODES = Payload(NUMEL, NUMEL, value_bits=8, header=32)  # 2,762 a range of 4


@pytest.mark.parametrize(
    ("model", "payload", "ranks", "expected"),
    [
        # Bytes that a rank sends, bytes, rounds and messages on the longest path.
        (RingAllReduce(), Payload.dense(NUMEL, 16), 2, [(21_840, 21_840, 2, 2)]),
        (RingAllReduce(), Payload.dense(NUMEL, 16), 4, [(32_760, 32_760, 6, 6)]),
        (GatheredFrames(), FRAMES, 2, [(692, 692, 1, 1)]),
        (GatheredFrames(), FRAMES, 5, [(2768, 2768, 4, 4)]),
        # A tree of three levels, and a ring.
        (SharedPositions(), PICKED, 5, [(924.8, 3468, 3, 3), (6988.8, 6988.8, 8, 8)]),
        (SharedPositions(), PICKED, 2, [(578, 1156, 1, 1), (4368, 4368, 2, 2)]),
        # Headers, pieces, outcomes, and a fifth more sums.
        (
            SparseReduceScatter(),
            SPARSE,
            4,
            [
                (3 * (FRONT + 1), 3 * (FRONT + 1), 1, 3),
                (3198, 3198, 1, 3),
                (3 * RESULT, 3 * RESULT, 3, 3),
                (3828, 3828, 1, 3),
            ],
        ),
        (
            DenseReduceScatter(),
            CODES,
            4,
            [
                (3 * (FRONT + 1), 3 * (FRONT + 1), 1, 3),
                (8286, 8286, 1, 3),
                (3 * RESULT, 3 * RESULT, 3, 3),
                (8286, 8286, 1, 3),
            ],
        ),
    ],
    ids=repr,
)
def test_messages_are_those_that_ranks_send_each_other(model, payload, ranks, expected):
    phases = model.phases(payload, ranks)
    found = [(each.sent, each.serial, each.rounds, each.messages) for each in phases]
    assert found == [pytest.approx(each) for each in expected]


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
