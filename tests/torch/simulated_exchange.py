"""Exchanges with frames on a simulated device, whose streams are as late or as early as may be.

`test_backends` runs this file in a process of its own. Kernels are the emulated ones, and a
collective is what NCCL's is: work on a stream of its own, after what the current stream was given
when it was started; to wait for it is work of the current stream, too.
"""

import itertools
from types import SimpleNamespace

import pytest
import torch

import gradwire
from gradwire.quantize import BFloat16
from gradwire.torch import backends
from gradwire.torch.backends import cuda, dispatch
from gradwire.torch.backends.cuda import operators
from gradwire.torch.backends.cuda.preload import preload
from gradwire.torch.backends.host import Staging, staging
from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.parameter import ParameterSlot, SizeLimit
from gradwire.torch.engine.pipeline import ExchangePipeline
from gradwire.torch.engine.step import Step
from gradwire.torch.errors import ExchangeError
from gradwire.torch.exchange import Verification, build
from tests.csrc.emulated.operators import emulate
from tests.torch.late import Late, late, register

BUCKETS = [(1500, 40, 900), (2000,), (30, 700, 50)]
"""Lengths of the parameters; those below 100 are sent dense."""
STEPS = 4
RANKS = 2
CODECS = {
    "gather": gradwire.topk(0.1),
    "postponed": gradwire.topk(0.1, memory=gradwire.memory.Residual(low_memory=True)),
    "sum": gradwire.Codec(
        sparsify=gradwire.sparsify.All(),
        quantize=BFloat16(),
        exchange=gradwire.exchange.AllReduce(),
    ),
    "seeded": gradwire.randomk(ratio=0.1),
}


class Operators:
    """The operators as work of the current stream, on tensors of the device."""

    def __init__(self, library):
        self.library = library

    def __getattr__(self, name):  # those that only make plans, at once
        return lambda *given: getattr(self.library, name)(*map(_raw, given))

    def encode_bucket(self, plan, gradients, limits, states, *rest):
        table = torch.full((len(limits), 8), -1, dtype=torch.int64)
        raws = _raw(gradients), limits, list(map(_raw, states)), *map(_raw, rest)
        late.current_stream().give(lambda: table.copy_(self.library.encode_bucket(plan, *raws)))
        return Late(table)

    def rollback_bucket(self, pieces, states):
        raws = list(map(_raw, states))
        late.current_stream().give(lambda: self.library.rollback_bucket(pieces, raws))

    def settle_bucket(self, pieces, gradients, starts, states, frames, *rest):
        outcomes = torch.full((len(starts),), -1, dtype=torch.int32)
        raws = pieces, _raw(gradients), starts, list(map(_raw, states)), _raw(frames)
        late.current_stream().give(lambda: outcomes.copy_(self.library.settle_bucket(*raws, *rest)))
        return Late(outcomes)

    def decode_bucket(self, out, data, ends, starts, sizes, *rest):
        verdicts = torch.full((1 + len(starts),), 7, dtype=torch.int32)
        raws = _raw(out), _raw(data)
        late.current_stream().give(
            lambda: verdicts.copy_(self.library.decode_bucket(*raws, ends, starts, sizes, *rest))
        )
        return Late(verdicts)


class Collectives:
    """A channel of two ranks with the same gradients: this one knows what the other one sends."""

    rank, size = 0, RANKS

    def __init__(self):
        self.stream = late.Stream()

    def all_gather(self, every, mine):
        return self._work(lambda: _raw(every).copy_(_raw(mine).repeat(RANKS)))

    def all_reduce(self, vector):
        return self._work(lambda: _raw(vector).mul_(RANKS))

    def _work(self, work):
        ready, done = late.Event(), late.Event()
        ready.record(late.current_stream())
        self.stream.wait_event(ready)
        self.stream.give(work)
        done.record(self.stream)
        return SimpleNamespace(wait=lambda: late.current_stream().wait_event(done))


class AtOnce(Collectives):
    """The same on the CPU."""

    def _work(self, work):
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
    monkeypatch.setattr(dispatch, "_STAGED", cuda)
    monkeypatch.setattr(operators, "_device", "late")
    library = operators.operators()
    for module in (cuda.encoding, operators, cuda.states):
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

    def __init__(self, codec, *, there, verify=False):
        collectives = Collectives() if there else AtOnce()
        self.collectives = collectives
        self.put = Late if there else torch.clone
        device_backends = {"late": "nccl"} if there else {}
        exchange = build(
            codec.exchange,
            collectives,
            AtOnce,
            device_backends,
            check_result=False,
            postpones=not codec.memory.undoable,
            verification=Verification(fallback=False) if verify else None,
        )
        self.verify = verify
        self.layouts = [self.layout(codec, index) for index in range(len(BUCKETS))]
        self.worker = ExchangePipeline(exchange, scaled=False, whole=True)
        self.exchange = exchange
        self.carried = there

    def layout(self, codec, index):
        parameters = []
        for at, numel in enumerate(BUCKETS[index]):
            tensor = self.put(torch.zeros(numel))
            made = ParameterSlot(f"{index}.{at}", tensor)
            if numel >= 100:
                made.codec = codec
                made.state = backends.backend_for(tensor).init_state(codec, numel, made.name, 0)
                made.limit = SizeLimit(codec.max_encoded_len(numel), fixed=not codec.memory.keeps)
            parameters.append(made)
        return BucketContents(parameters, torch.float32)

    def step(self, number):
        """Exchange all buckets; return their averages as the caller's stream finds them."""
        step, buckets = Step(number), []
        if self.verify:
            step.compared = number % len(BUCKETS)
        for index, layout in enumerate(self.layouts):
            buffer = self.put(torch.zeros(layout.numel))
            buffer.copy_(gradients(number, index), non_blocking=True)
            last = index == len(self.layouts) - 1
            buckets.append((buffer, self.worker.submit(step, layout, buffer, last=last)))
        assert self.worker.drain(60.0)
        if step.error is not None:
            raise step.error
        for _, future in buckets if self.carried else ():
            late.current_stream().wait_event(future.event)
        return [buffer.clone().cpu() for buffer, _ in buckets]

    def states(self):
        return [
            each.state.state_dict()["residual"]
            for layout in self.layouts
            for each in layout.compressed
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
    assert {each.name for each in late.waits} == {sending, receiving}, "the program does not wait"
    assert on_device._down.givers == {sending}
    assert on_device._up.givers == {receiving}
    assert late.current_stream().givers == {"MainThread"}, "nor is its stream given anything"
    found.end()
    for one, other in zip(found.states(), expected.states(), strict=True):
        assert (one is None) == (other is None)
        assert one is None or (one == other).all()


@pytest.mark.parametrize("eager", [False, True], ids=["late", "early"])
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_buckets_are_compared_in_the_order_of_the_streams(on_device, codec, eager):
    expected = Run(codec, there=False)
    averages = [expected.step(number) for number in range(STEPS)]
    expected.end()
    preload.cache_clear()
    backends.preload([Late(torch.zeros(3))])
    loaded = late.operations
    late.reset()
    found = Run(codec, there=True, verify=True)
    for stream in (on_device._down, on_device._up, found.collectives.stream):
        stream.eager = eager
    for number in range(STEPS):
        for one, other in zip(found.step(number), averages[number], strict=True):
            assert torch.equal(one, other)
    found.end()
    for one, other in zip(found.states(), expected.states(), strict=True):
        assert one is None or (one == other).all()
    copies = {each for each in late.operations if "copy_" in each[0] and each[1:2] == each[2:]}
    copies |= {each for each in late.operations if "_local_scalar" in each[0]}  # of one number
    assert late.operations - copies <= loaded, "no kernel is loaded for it"


def test_a_wrong_byte_of_a_kernel_ends_the_step_that_compares_it(on_device, monkeypatch):
    real = Operators.encode_bucket

    def wrong(self, plan, gradients, limits, states, *rest):
        table = real(self, plan, gradients, limits, states, *rest)
        if len(limits) == 1:  # the second bucket
            out = rest[1]
            late.current_stream().give(lambda: _raw(out)[100:101].bitwise_xor_(1))
        return table

    monkeypatch.setattr(Operators, "encode_bucket", wrong)
    found = Run(CODECS["gather"], there=True, verify=True)
    with pytest.raises(
        ExchangeError, match=r"^rank 0 has another frame of '1\.0' than the core: .*"
    ):
        found.step(1)
    found.end()


def test_memory_is_kept_from_other_uses_until_the_receiving_thread_is_done(on_device, monkeypatch):
    found = Run(CODECS["gather"], there=True)
    found.step(0)
    found.end()
    kept = [each for each, _ in (*found.exchange._frames._free, *found.exchange._buffers._free)]
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
