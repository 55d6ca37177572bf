"""Slots that a device fills and reads by itself, beside the host's, over emulated kernels."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import gradwire
from gradwire.torch.backends import Bucket, cpu, cuda
from gradwire.torch.backends.host import DeviceBucket
from gradwire.torch.backends.staging import Staging
from gradwire.torch.engine import step as steps
from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.parameter import ParameterSlot, SizeLimit
from gradwire.torch.engine.step import BucketTask, Step
from gradwire.torch.errors import ExchangeError, GradientError
from gradwire.torch.exchange import build, wire
from gradwire.torch.exchange.leader import LedBucket
from tests.csrc.emulated.operators import emulate
from tests.presets.examples import gradient
from tests.support import same_state

NUMELS = (1500, 40, 700, 30)
RANKS = 2
FRAMES_AT = 448  # of two frames and 70 dense entries
TOPK = gradwire.topk(0.05)
CODECS = {
    "topk": TOPK,
    "coded": gradwire.topk(0.05, quantize=gradwire.quantize.BFloat16()),
    "seeded": gradwire.Codec(
        sparsify=gradwire.sparsify.RandomK(ratio=0.05), exchange=gradwire.exchange.AllGather()
    ),
    "senders": TOPK.replace(exchange=gradwire.exchange.AllGather(mean="senders")),
}


@pytest.fixture(scope="module", autouse=True)
def emulated():
    emulate()


class Channel:
    """Of the first of two ranks; what the other one sends is what a test says."""

    rank, size = 0, RANKS

    def __init__(self):
        self.spoil = self.fails = self.answer = None
        self.works = True

    def all_gather(self, every, mine):
        if self.fails is not None:
            raise self.fails
        self.sent = mine.clone()
        other = self.answer.clone() if self.answer is not None else mine.clone()
        if self.spoil is not None:
            self.spoil(other)
        every.copy_(torch.cat([mine, other]))

        def wait():
            if not self.works:
                raise RuntimeError("the link is down")

        return SimpleNamespace(wait=wait)


class Rank:
    """An exchange of one bucket, on the device or on the host."""

    def __init__(self, codec, *, on_device, check_result=False, width=1):
        self.module = cuda if on_device else cpu
        self.on_device = on_device
        self.channel = Channel()
        self.exchange = build(
            codec.exchange,
            self.channel,
            lambda: None,
            {"cpu": "nccl"} if on_device else {},
            check_result=check_result,
        )
        parameters = []
        for at, numel in enumerate(NUMELS):
            made = ParameterSlot(f"w{at}", torch.zeros(numel // width if numel < 100 else numel))
            if numel >= 100:
                made.codec = codec
                made.state = self.module.init_state(codec, numel, made.name, 0)
                made.limit = SizeLimit(codec.max_encoded_len(numel))
            parameters.append(made)
        self.contents = BucketContents(parameters, torch.float32)
        self.sequence = 0

    def task(self, values, *, unused=True):
        bucket = self.module.bucket(values.clone(), self.on_device)
        step = Step(self.sequence)
        now = time.perf_counter()
        return BucketTask(self.contents, bucket, step, True, lambda: 2.0, now, unused)

    def run(self, values, **options):
        """Return the task of one step, and the error that it ended with."""
        task = self.task(values, **options)
        flight = self.exchange.start(task, self.sequence)
        self.sequence += 1
        try:
            self.exchange.receive(flight)
        except (ExchangeError, GradientError) as error:
            task.step.error = error
            task.step.undo_all()
            return task, error
        return task, None

    @property
    def states(self):
        return [each.state for each in self.contents.compressed]

    @property
    def kept(self):
        return [
            (each.limit.state(), each.state.step, each.state.last)
            for each in self.contents.compressed
        ]


def values(seed):
    return torch.from_numpy(gradient(sum(NUMELS), seed))


def pair(codec=TOPK, **options):
    return [Rank(codec, on_device=on_device, **options) for on_device in (True, False)]


def alike(ranks):
    one, other = ranks
    assert one.kept == other.kept
    for mine, theirs in zip(one.states, other.states, strict=True):
        assert same_state(mine.state_dict(), theirs.state_dict())


def fronts(ranks):
    """Return what both have sent, without unused room."""
    sent = []
    for rank in ranks:
        data = rank.channel.sent.numpy()
        failed = data[4] != 0
        records = data[64 : 64 + 48].view(np.uint64).reshape(2, 3)
        frames = data[FRAMES_AT : FRAMES_AT + int(records[:, 0].sum())].tobytes()
        dense_end = FRAMES_AT - 40  # what is between is of no meaning
        front = data[: wire.MESSAGE_NBYTES if failed else dense_end].tobytes()
        sent.append((front, None if failed else frames))
    return sent


def both(ranks, x, **options):
    """Take a step on either side, and compare all there is; the error."""
    (one, mine), (other, theirs) = (rank.run(x, **options) for rank in ranks)
    sent = fronts(ranks)
    assert sent[0] == sent[1]
    assert str(mine) == str(theirs)
    assert type(mine) is type(theirs)
    assert not one.step.awaited, "a step keeps no bucket alive"
    if mine is None:
        assert torch.equal(one.bucket.buffer, other.bucket.buffer)
    assert sorted(one.step.encoded) == sorted(other.step.encoded)
    alike(ranks)
    return mine


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_slots_averages_and_states_are_those_of_the_host(codec):
    ranks = pair(codec)
    for step in range(4):
        assert both(ranks, values(step)) is None
    x = values(5)
    x[:1500] = 0.0
    assert both(ranks, x) is None, "a parameter that no rank uses"
    assert both(ranks, x, unused=False) is None
    assert both(ranks, values(6)) is None
    for rank in ranks:
        rank.channel.answer = rank.channel.sent
    # The other rank is at another bucket, which all are told.
    assert "at bucket 6, but this rank is at bucket 7" in str(both(ranks, values(7)))
    for rank in ranks:
        rank.channel.answer = None
    assert both(ranks, values(8)) is None


def test_it_is_the_device_that_fills_and_reads_them(monkeypatch):
    (rank, _) = pair()
    rank.run(values(0))
    for name in ("encode", "write_header", "average", "read_headers", "pack"):
        for kind in (cuda.buckets.CUDABucket, DeviceBucket):
            if name in vars(kind):
                monkeypatch.delattr(kind, name)
        monkeypatch.setattr(Bucket, name, None, raising=True)
    _, error = rank.run(values(1))
    assert error is None


@pytest.mark.parametrize(
    "at", [[3], [1499, 20, 21], [1545], [1500, 3], [1510, 2241], [2269]], ids=str
)
def test_what_is_not_finite_is_said_as_by_the_host(at):
    ranks = pair()
    both(ranks, values(0))
    for bad in (torch.nan, torch.inf):
        x = values(1)
        x[at] = bad
        error = both(ranks, x)
        assert isinstance(error, GradientError)
        assert error.rank == 0
    assert both(ranks, values(2)) is None


def test_an_error_of_another_rank_is_raised_and_the_step_undone():
    ranks = pair()
    both(ranks, values(0))

    def spoil(other):
        message = other.numpy()[: wire.MESSAGE_NBYTES]
        wire.write_verdict(message, ranks[0].contents.digest, 1, GradientError(4, 2, "w2", 1))

    for rank in ranks:
        rank.channel.spoil = spoil
    before = ranks[0].states[0].state_dict()
    task, error = ranks[0].run(values(1))
    _, other = ranks[1].run(values(1))
    assert str(error) == str(other)
    assert "on rank 1 has 4 non-finite" in str(error)
    assert same_state(ranks[0].states[0].state_dict(), before)
    assert torch.equal(task.bucket.buffer[:1500], values(1)[:1500]), "nothing was decoded"
    for rank in ranks:
        rank.channel.spoil = None
    both(ranks, values(2))


@pytest.mark.parametrize(
    ("byte", "said"),
    [
        (FRAMES_AT + 70, "frame"),
        (64, "size limit"),
        (48, "different averages"),
        (3, "another version"),
    ],
)
def test_a_slot_that_came_wrong_is_refused_before_anything_is_written(byte, said):
    ranks = pair()
    both(ranks, values(0))
    both(ranks, values(1))

    def spoil(other):
        other[byte] ^= 0x7F

    found = []
    for rank in ranks:
        rank.channel.spoil = spoil
        before = rank.states[0].state_dict()
        try:
            task, error = rank.run(values(2))
        except gradwire.GradwireError as raised:
            task, error = None, raised
        found.append(f"{type(error).__name__}: {error}")
        if byte not in (48,) and task is not None:
            assert torch.equal(task.bucket.buffer[:1500], values(2)[:1500])
        if task is not None:
            assert same_state(rank.states[0].state_dict(), before)
    assert found[0] == found[1]
    assert said in found[0]


@pytest.mark.parametrize("at", [3, 1510, 2269])
def test_an_average_that_overflows_is_named(at):
    ranks = pair(check_result=True)
    x = values(0)
    assert both(ranks, x) is None
    x[at] = 3e38
    error = both(ranks, x)
    # Of two ranks' dense values; those in frames are divided by the loss scale before.
    assert (error is None) == (at == 3)
    assert both(ranks, values(1)) is None


def test_finite_values_whose_sum_overflows_are_no_error(monkeypatch):
    looked = []
    finite = Staging.read
    monkeypatch.setattr(Staging, "read", lambda self, each: looked.append(1) or finite(self, each))
    (rank, _) = pair(check_result=True)
    x = values(0)
    x[1500:1540] = 1e37
    _, error = rank.run(x)
    assert error is None
    assert looked, "it took another look"


class TestWhatNobodyReceives:
    """Encodes of which the host learns late, or never by the exchange."""

    def test_a_step_is_undone_if_no_collective_starts(self):
        ranks = pair()
        both(ranks, values(0))
        for rank in ranks:
            rank.channel.fails = RuntimeError("no collective")
            task = rank.task(values(1))
            with pytest.raises(RuntimeError, match="no collective"):
                rank.exchange.start(task, 1)
            task.step.undo_all()
        alike(ranks)
        for rank in ranks:
            rank.channel.fails = None
        both(ranks, values(2))

    @pytest.mark.parametrize("at", [None, 3, 1545])
    def test_a_step_is_undone_if_its_collective_fails(self, at):
        ranks = pair()
        both(ranks, values(0))
        x = values(1)
        if at is not None:
            x[at] = torch.nan
        for rank in ranks:
            rank.channel.works = False
            _, error = rank.run(x)
            assert "the link is down" in str(error)
            rank.channel.works = True
        alike(ranks)
        both(ranks, values(2))

    def test_missing_memory_for_what_is_gathered_is_told_and_undone(self, monkeypatch):
        ranks = pair()
        both(ranks, values(0))
        real = steps.BufferPool.take
        for rank in ranks:

            def take(pool, size, *rest, buffers=rank.exchange.buffers):
                if pool is buffers:
                    raise MemoryError("none left")
                return real(pool, size, *rest)

            with monkeypatch.context() as patch:
                patch.setattr(steps.BufferPool, "take", take)
                _, error = rank.run(values(1))
            assert "rank 0 could not encode: MemoryError: none left" in str(error)
        alike(ranks)
        both(ranks, values(2))


class TestALeader:
    @pytest.mark.parametrize("limit", [9000, 60, 40])
    def test_it_selects_what_one_on_the_host_selects(self, limit):
        ranks = pair(gradwire.scalecom(ratio=0.05))
        for x in (values(0), torch.zeros(sum(NUMELS)), values(2)):
            found = []
            for rank in ranks:
                task = rank.task(x)
                piece = rank.contents.pieces[0]
                led = LedBucket(rank.exchange, piece.parameter.codec.exchange, task, 0)
                positions, wanted, (outcomes, sent) = led.lead(piece, limit)
                asked = outcomes.count, outcomes.target, outcomes.trimmed, outcomes.zero
                found.append((positions, wanted, sent.tolist(), [int(each[0]) for each in asked]))
            assert found[0] == found[1]
            alike(ranks)

    def test_it_says_what_is_wrong_as_one_on_the_host_and_undoes_it(self):
        ranks = pair(gradwire.scalecom(ratio=0.05))
        x = values(0)
        x[7] = torch.inf
        for rank in ranks:
            piece = rank.contents.pieces[0]
            exchange = piece.parameter.codec.exchange
            with pytest.raises(GradientError, match="at position 7"):
                LedBucket(rank.exchange, exchange, rank.task(x), 0).lead(piece, 900)
            with pytest.raises(ExchangeError, match="3 bytes are too few for any positions"):
                LedBucket(rank.exchange, exchange, rank.task(values(0)), 0).lead(piece, 3)
            assert rank.states[0].step == 0
        alike(ranks)
