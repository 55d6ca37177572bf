"""Exchanges with frames on a simulated device, whose streams are as late or as early as may be.

`test_backends` runs this file in a process of its own. Kernels are the emulated ones, and a
collective is what NCCL's is: work on a stream of its own, after what the current stream was given
when it was started; to wait for it is work of the current stream, too.
"""

import itertools
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

import gradwire
from gradwire.quantize import BFloat16
from gradwire.torch import backends
from gradwire.torch.backends import cuda, dispatch
from gradwire.torch.backends.cuda import merging, operators
from gradwire.torch.backends.cuda.preload import preload
from gradwire.torch.backends.staging import Staging, staging
from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.parameter import ParameterSlot, SizeLimit, new_state
from gradwire.torch.engine.pipeline import ExchangePipeline
from gradwire.torch.engine.step import Step
from gradwire.torch.exchange import build
from tests.csrc.emulated.operators import emulate
from tests.torch.late import Late, late, register

BUCKETS = [(1500, 40, 900), (2000,), (30, 700, 50)]
"""Lengths of the parameters; those below 100 are sent dense."""
STEPS = 4
RANKS = 2
CODECS = {
    "gather": gradwire.topk(0.1),
    "sum": gradwire.Codec(
        sparsify=gradwire.sparsify.All(),
        quantize=BFloat16(),
        exchange=gradwire.exchange.AllReduce(),
    ),
    "seeded": gradwire.randomk(ratio=0.1),
    "owners": gradwire.topk(0.1, exchange=gradwire.exchange.ReduceScatter()),
    "sums": gradwire.onebit(column=64, exchange=gradwire.exchange.QuantizedAllReduce()),
}
COLUMNS = 50
"""Of the matrices that compressed parameters are."""


class Operators:
    """The operators as work of the current stream, on tensors of the device."""

    def __init__(self, library):
        self.library = library

    def __getattr__(self, name):  # those that only make plans, at once
        return lambda *given: getattr(self.library, name)(*map(_raw, given))

    def encode_bucket(self, plan, gradients, limits, states, *rest):
        table = torch.full((len(limits), 10), -1, dtype=torch.int64)
        raws = _raw(gradients), limits, list(map(_raw, states)), *map(_raw, rest)
        late.current_stream().give(lambda: table.copy_(self.library.encode_bucket(plan, *raws)))
        return Late(table)

    def rollback_bucket(self, pieces, states):
        raws = list(map(_raw, states))
        late.current_stream().give(lambda: self.library.rollback_bucket(pieces, raws))

    def decode_bucket(self, out, data, ends, starts, sizes, *rest):
        verdicts = torch.full((1 + len(starts),), 7, dtype=torch.int32)
        raws = _raw(out), _raw(data)
        late.current_stream().give(
            lambda: verdicts.copy_(self.library.decode_bucket(*raws, ends, starts, sizes, *rest))
        )
        return Late(verdicts)

    def frame_heads(self, data, *rest):
        return self._made("frame_heads", _raw(data), *rest)

    def split_bucket(self, pieces, data, *rest):
        return self._made("split_bucket", pieces, _raw(data), *rest)

    def absorb_bucket(self, pieces, states, starts, sums, ends, frames, *rest):
        raws = pieces, list(map(_raw, states)), starts, _raw(sums), ends, _raw(frames), *rest
        outcomes = torch.full((16 * len(starts),), 7, dtype=torch.uint8)
        late.current_stream().give(lambda: outcomes.copy_(self.library.absorb_bucket(*raws)))
        return Late(outcomes)

    def _made(self, name, *raws):
        """Return what an operator makes, in tensors as long as it makes them of what is there."""
        operator = getattr(self.library, name)
        probed = operator(*raws)
        several = probed if isinstance(probed, tuple) else (probed,)
        out = [torch.full_like(each, 7) for each in several]

        def work():
            made = operator(*raws)
            for to, each in zip(out, made if several is probed else (made,), strict=True):
                to.copy_(each)

        late.current_stream().give(work)
        found = tuple(map(Late, out))
        return found if several is probed else found[0]

    def write_slot(self, slot, table, values, facts, total, *rest):
        raws = list(map(_raw, (slot, table, values, facts, total)))
        late.current_stream().give(lambda: self.library.write_slot(*raws, *rest))

    def decode_slots(self, out, slots, ends, limits, places, header, ranks, *rest):
        verdicts = torch.full((1 + len(limits) * ranks,), 7, dtype=torch.int32)
        raws, shape = (_raw(out), _raw(slots)), (ends, limits, places, header, ranks)
        late.current_stream().give(
            lambda: verdicts.copy_(self.library.decode_slots(*raws, *shape, *rest))
        )
        return Late(verdicts)


class Collectives:
    """A channel of ranks with the same gradients: this one knows what the other ones send.

    Owners of ranges send what nobody else knows, so each is alone.
    """

    rank = 0

    def __init__(self, size):
        self.size, self.stream = size, late.Stream()

    def all_gather(self, every, mine):
        return self._work(lambda: _raw(every).copy_(_raw(mine).repeat(self.size)), every)

    def all_to_all(self, every, mine, theirs=None, sizes=None):
        assert self.size == 1
        return self._work(lambda: _raw(every).copy_(_raw(mine)), every)

    def all_reduce(self, vector):
        return self._work(lambda: _raw(vector).mul_(self.size), vector)

    def _work(self, work, filled):
        if not isinstance(filled, Late):  # a message of the host, by another backend
            return AtOnce._work(self, work, filled)
        ready, done = late.Event(), late.Event()
        ready.record(late.current_stream())
        self.stream.wait_event(ready)
        self.stream.give(work)
        done.record(self.stream)
        return SimpleNamespace(wait=lambda: late.current_stream().wait_event(done))


class AtOnce(Collectives):
    """The same on the CPU."""

    def _work(self, work, filled):
        work()
        return SimpleNamespace(wait=lambda: None)


class Handed:
    """In place of a future, which takes streams that only C++ can give."""

    def set_result(self, value):
        self.event = late.Event()
        self.event.record(late.current_stream())

    def done(self):
        return True


def _raw(value):
    return value.raw if isinstance(value, Late) else value


@pytest.fixture
def on_device(monkeypatch):
    if not register():
        pytest.skip("this release of torch takes no device written in Python")
    emulate()
    late.reset()
    staging.cache_clear()
    monkeypatch.setattr(dispatch, "_staged", lambda: cuda)
    monkeypatch.setattr(operators, "_device", "late")
    library = operators.operators()
    for module in (cuda.encoding, operators, cuda.slots, cuda.states, merging):
        monkeypatch.setattr(module, "operators", lambda: Operators(library))
    monkeypatch.setattr(Staging, "_asynchronous", lambda self, host: True)
    monkeypatch.setattr(Staging, "future", lambda self: Handed())
    monkeypatch.setattr(
        Staging, "empty", lambda self, shape, dtype: torch.empty(shape, dtype=dtype)
    )
    yield staging(torch.device("late:0"))
    staging.cache_clear()


def gradients(step, index):
    random = torch.Generator().manual_seed(100 * step + index)
    return torch.randn(sum(BUCKETS[index]), generator=random)


class Run:
    """Buckets that two threads exchange, on the device or on the CPU."""

    def __init__(self, codec, *, there, scaled=False):
        kind = Collectives if there else AtOnce
        size = 1 if codec.exchange.divides else RANKS
        collectives = kind(size)
        self.collectives = collectives
        self.put = Late if there else torch.clone
        device_backends = {"late": "nccl"} if there else {}
        exchange = build(
            codec.exchange,
            collectives,
            lambda *on: collectives if codec.exchange.divides else (kind if on else AtOnce)(size),
            device_backends,
            check_result=scaled,
        )
        self.layouts = [self.layout(codec, index) for index in range(len(BUCKETS))]
        self.worker = ExchangePipeline(exchange, scaled=scaled)
        self.exchange = exchange
        self.carried = there

    def layout(self, codec, index):
        parameters = []
        for at, numel in enumerate(BUCKETS[index]):
            shape = (numel // COLUMNS, COLUMNS) if numel >= 100 else (numel,)
            made = ParameterSlot(f"{index}.{at}", self.put(torch.zeros(shape)))
            if numel >= 100:
                made.codec = codec
                made.state = new_state(made, 0)
                made.limit = SizeLimit(codec.max_encoded_len(numel), fixed=not codec.memory.keeps)
            parameters.append(made)
        return BucketContents(parameters, torch.float32)

    def step(self, number):
        """Exchange all buckets; return their averages as the caller's stream finds them."""
        step, buckets = Step(number), []
        for index, contents in enumerate(self.layouts):
            buffer = self.put(torch.zeros(contents.numel))
            buffer.copy_(gradients(number, index), non_blocking=True)
            last = index == len(self.layouts) - 1
            buckets.append((buffer, self.worker.submit(step, contents, buffer, last=last)))
        assert self.worker.drain(60.0)
        if step.error is not None:
            raise step.error
        for _, future in buckets if self.carried else ():
            late.current_stream().wait_event(future.event)
        return [buffer.clone().cpu() for buffer, _ in buckets]

    def states(self):
        return [
            each.state.state_dict()["residual"]
            for contents in self.layouts
            for each in contents.compressed
        ]

    def end(self):
        assert self.worker.stop(10.0)


@pytest.mark.parametrize(
    "eager",
    list(itertools.product([False, True], repeat=3)),
    ids=lambda each: "".join("le"[x] for x in each),
)
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_averages_are_those_of_the_cpu_however_late_or_early_streams_are(on_device, codec, eager):
    expected = Run(codec, there=False)
    averages = [expected.step(number) for number in range(STEPS)]
    expected.end()
    found = Run(codec, there=True)
    streams = on_device._down, on_device._up, found.collectives.stream
    for stream, early in zip(streams, eager, strict=True):
        stream.eager = early
    for number in range(STEPS):
        for one, other in zip(found.step(number), averages[number], strict=True):
            assert torch.equal(one, other)
    sending, receiving = "gradwire-send", "gradwire-receive"
    waiting = {each.name for each in late.waits}
    assert {receiving} <= waiting <= {sending, receiving}, "the program does not wait"
    assert on_device._down.givers == {sending}
    assert on_device._up.givers == {receiving}
    assert late.current_stream().givers == {"MainThread"}, "nor is its stream given anything"
    found.end()
    for one, other in zip(found.states(), expected.states(), strict=True):
        assert (one is None) == (other is None)
        assert one is None or (one == other).all()


WAITS = {
    "gather": (0, 3),
    "sum": (11, 3),
    "seeded": (11, 3),
    "owners": (27, 23),  # where residuals lie, for each of them, before and after the encode
    "sums": (11, 15),
}
"""How often the sending and the receiving thread wait for the device in a step of three buckets."""


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("scaled", [False, True])
def test_the_host_waits_so_often_and_no_more(on_device, name, scaled):
    found = Run(CODECS[name], there=True, scaled=scaled)
    for number in range(2):  # the first one learns what the others need
        late.blocked.clear()
        found.step(number)
        waits = Counter(late.blocked)
    found.end()
    sending, receiving = WAITS[name]
    receiving += 3 * (scaled and name != "gather")  # for whether averages are finite
    assert (waits["gradwire-send"], waits["gradwire-receive"]) == (sending, receiving)


def test_memory_is_kept_from_other_uses_until_the_receiving_thread_is_done(on_device, monkeypatch):
    found = Run(CODECS["gather"], there=True)
    found.step(0)
    found.end()
    kept = [each for each, _ in (*found.exchange.frames._free, *found.exchange.buffers._free)]
    assert kept
    assert all(each.device.type == "late" for each in kept)
    noted = {at for at, stream in late.records if stream is on_device._up}
    assert {each.raw.untyped_storage().data_ptr() for each in kept} <= noted


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_what_an_exchange_runs_on_a_device_was_run_before(on_device, codec):
    # Else torch loads a kernel in the middle of a backward pass, where that may wait for ever.
    preload.cache_clear()
    backends.preload([Late(torch.zeros(3))])
    loaded = late.operations
    late.reset()
    found = Run(codec, there=True)
    found.step(0)
    found.end()
    plain = {each for each in late.operations if "copy_" in each[0] and each[1:2] == each[2:]}
    kernels = late.operations - plain  # a copy to another dtype is one, or of what is not in a row
    assert len(kernels) > 8
    assert kernels <= loaded


def test_streams_of_frames_come_before_the_backward_pass(on_device):
    assert on_device._down.priority < 0
    assert on_device._up.priority < 0
