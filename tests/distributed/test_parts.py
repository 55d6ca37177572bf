"""The parts that need no second process: size limits and slots."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

import gradwire
from gradwire._native import unpack_positions
from gradwire.torch import backends
from gradwire.torch.ddp import ExchangeError, attachment
from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.metrics import Counters, Outcomes, ParameterCounts
from gradwire.torch.engine.parameter import FLOOR, ParameterSlot, SizeLimit
from gradwire.torch.engine.step import BucketTask, BufferPool, Step
from gradwire.torch.exchange import build
from gradwire.torch.exchange.all_gather import SlotLayout
from gradwire.torch.exchange.leader import LedBucket


def test_a_limit_starts_at_the_bound_and_comes_down_to_what_is_sent() -> None:
    limit = SizeLimit(100_000)
    assert limit.nbytes == 100_000
    SizeLimit.observe([limit], [4000])
    assert 4000 < limit.nbytes <= 2 * 4000 + 100
    for _ in range(40):
        SizeLimit.observe([limit], [4000])
    assert 4000 < limit.nbytes < 4000 * 1.05


def test_a_limit_follows_growth_in_a_few_steps_and_forgets_a_peak() -> None:
    limit = SizeLimit(1_000_000)
    for _ in range(40):
        SizeLimit.observe([limit], [4000])
    steps = 0
    while limit.nbytes < 20_000:
        SizeLimit.observe([limit], [20_000])
        steps += 1
    assert steps <= 3
    for _ in range(60):
        SizeLimit.observe([limit], [4000])
    assert limit.nbytes < 4000 * 1.05


def test_a_limit_stays_between_the_floor_and_the_bound() -> None:
    limit = SizeLimit(5000)
    for wanted in (5000, 0, 5000, 0):
        SizeLimit.observe([limit], [wanted])
        assert limit.nbytes <= 5000
    for _ in range(100):
        SizeLimit.observe([limit], [0])
    assert limit.nbytes == FLOOR
    assert SizeLimit(50).nbytes == 50


def test_a_fixed_limit_never_trims() -> None:
    limit = SizeLimit(5000, fixed=True)
    SizeLimit.observe([limit], [10])
    assert limit.nbytes == 5000


def test_a_limit_can_be_saved() -> None:
    limit, other = SizeLimit(5000), SizeLimit(5000)
    for wanted in (100, 140, 90):
        SizeLimit.observe([limit], [wanted])
    other.load(limit.state())
    assert other.nbytes == limit.nbytes


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ({"module": torch.nn.Linear(2, 2, device="meta")}, "'weight' is on meta"),
        ({"_use_python_reducer": True}, "python_reducer"),
        ({"mixed_precision": object()}, "its own hook"),
    ],
    ids=["other-device", "python-reducer", "mixed-precision"],
)
def test_models_that_cannot_be_attached_to_are_refused(model: dict[str, Any], text: str) -> None:
    stand_in = SimpleNamespace(**{"module": torch.nn.Linear(2, 2), **model})
    with pytest.raises(ValueError, match=text):
        attachment._check(stand_in)


@pytest.fixture
def contents() -> BucketContents:
    parameters = [
        ParameterSlot("w", torch.zeros(2000), state=cast(Any, object()), limit=SizeLimit(500)),
        ParameterSlot("b1", torch.zeros(7)),
        ParameterSlot("b2", torch.zeros(9)),
    ]
    return BucketContents(parameters, torch.float32)


def test_neighbouring_dense_parameters_are_one_run(contents: BucketContents) -> None:
    assert contents.runs == ((2000, 2016),)
    assert contents.dense_numel == 16
    assert [piece.parameter.name for piece in contents.pieces] == ["w"]


def test_records_of_a_slot_read_as_they_were_written(contents: BucketContents) -> None:
    plan = SlotLayout.of(contents, 4)
    fronts = np.zeros((2, plan.front), np.uint8)
    for front, record in zip(fronts, [(120, 130, 1), (500, 2**40, 0)], strict=True):
        plan.records(front)[0] = record
    assert plan.read_records(fronts).tolist() == [[(120, 130, 1)], [(500, 2**40, 0)]]
    assert plan.frames_at % 64 == plan.dense_at % 64 == plan.nbytes % 64 == 0
    for size in (501, 2**63):
        plan.records(fronts[1])[0] = (size, 0, 0)
        with pytest.raises(ExchangeError, match="of rank 1 exceeds its size limit") as error:
            plan.read_records(fronts)
        assert error.value.rank == 1


def test_a_leader_trims_positions_into_its_residual() -> None:
    codec = gradwire.Codec(
        sparsify=gradwire.sparsify.Threshold(0.5), exchange=gradwire.exchange.LeaderIndices()
    )
    x = np.random.default_rng(1).standard_normal(4000).astype(np.float32)
    slot = ParameterSlot("w", torch.from_numpy(x), state=codec.init_state(4000, name="w"))
    slot.codec = codec
    bucket = backends.backend_for(slot.tensor).bucket(slot.tensor)
    contents = BucketContents([slot], torch.float32)
    task = BucketTask(contents, bucket, Step(), True, lambda: 1.0, 0.0)
    channel: Any = SimpleNamespace(rank=0, size=1)
    exchange = build(codec.exchange, channel, lambda *_: channel, {}, check_result=False)
    led = LedBucket(exchange, codec.exchange, task, 0)
    whole, wanted, _ = led.lead(contents.pieces[0], 4000)
    assert len(whole) == wanted
    task.step.undo_all()
    for limit in (300, 100, 40, 16):
        positions, asked, (_, values) = led.lead(contents.pieces[0], limit)
        sent, left = np.zeros_like(x), slot.state.residual
        assert left is not None
        assert len(positions) <= limit
        assert asked == wanted, "what it would have taken, so that the limit can grow"
        sent[unpack_positions(positions, 4000)] = values
        np.testing.assert_array_equal(sent + left, x)
        # The largest go first, and most of the room is used.
        assert np.abs(values).min() >= np.abs(left).max()
        assert limit < 40 or len(positions) > 0.6 * limit
        task.step.undo_all()
        assert slot.state.step == 0
    with pytest.raises(ExchangeError, match="3 bytes are too few for any positions of 'w'"):
        led.lead(contents.pieces[0], 3)
    assert slot.state.step == 0


def test_buffers_of_the_first_long_slots_go_once_slots_are_short() -> None:
    buffers, bucket = BufferPool(), backends.backend_for(torch.ones(3)).bucket(torch.ones(3))
    for step, nbytes in enumerate([100_000, 3000, 2900, 3100, 2800]):
        several = [buffers.take(nbytes, step, bucket) for _ in range(3)]
        for each in several:
            buffers.give(each)
    assert buffers.nbytes <= 3 * 3100


def test_buffers_of_buckets_of_several_lengths_stay() -> None:
    buffers, bucket = BufferPool(), backends.backend_for(torch.ones(3)).bucket(torch.ones(3))
    held = []
    for step in range(6):
        several = [buffers.take(nbytes, step, bucket) for nbytes in (10, 50_000, 1000, 10)]
        for each in several:
            buffers.give(each)
        held.append(sorted(each.data_ptr() for each in several))
    assert all(each == held[1] for each in held[1:])


def test_figures_of_parameters_add_up() -> None:
    counters = Counters(4)
    outcomes = Outcomes.of(np.array([[100, 5, 6, 1, 0, 7], [90, 4, -1, 0, 1, 8]]).ravel())
    counters.encoded(np.array([3, 1]), outcomes, outcomes.nbytes + 1)
    counters.encoded(np.array([3, 1]), outcomes, outcomes.nbytes)
    counters.decoded(np.array([3, 1]), np.array([10, 20]))
    counters.dense(np.array([0]), np.array([40]), 50)
    assert counters.all() == [
        ParameterCounts(1, 40, 0, 0, 0, 0, 50),
        ParameterCounts(2, 181, 0, 0, 0, 16, 20),
        ParameterCounts(0, 0, 0, 0, 0, 0, 0),
        ParameterCounts(2, 201, 10, 12, 2, 14, 10),
    ]
    assert counters.total() == ParameterCounts(5, 422, 10, 12, 2, 30, 80)
    counters.clear()
    assert counters.total() == ParameterCounts(0, 0, 0, 0, 0, 0, 0)


def test_a_frame_that_was_trimmed_wanted_as_much_more_as_entries_were_left_out() -> None:
    outcomes = Outcomes.of(np.array([[100, 10, 10, 0, 0, 1], [100, 10, 15, 5, 0, 1]]).ravel())
    assert outcomes.wanted().tolist() == [100, 150]
