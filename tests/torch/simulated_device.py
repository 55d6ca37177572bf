"""The staged backend over a device whose streams do nothing until they are waited for.

`test_backends` runs this file in a process of its own, in which the device is registered.
"""

import threading
import warnings

import numpy as np
import pytest
import torch

import gradwire
import gradwire.torch
from gradwire.torch import backends
from gradwire.torch.backends import staging as staging_module
from gradwire.torch.backends.staging import Staging, staging
from tests.torch.late import Late, late, register

N = 3000


@pytest.fixture
def tensor():
    return torch.randn(N, generator=torch.Generator().manual_seed(5))


@pytest.fixture
def on_device():
    if not register():
        pytest.skip("this release of torch takes no device written in Python")
    late.reset()
    staging.cache_clear()
    yield Late
    staging.cache_clear()


class Handed:
    """In place of a future, which takes streams that only C++ can give: where it was resolved."""

    def set_result(self, value):
        self.value, self.stream = value, late.current_stream()


class TestDevice:
    """A device whose streams do nothing until they are waited for."""

    def test_functions_on_tensors_wait_for_it(self, on_device, tensor):
        x = on_device(torch.zeros(N))
        x.copy_(tensor, non_blocking=True)
        assert not x.raw.any(), "the copy waits in the stream"
        codec = gradwire.topk(0.05)
        states = codec.init_state(N), codec.init_state(N)
        frame = gradwire.torch.encode(codec, x, states[0])
        assert frame == gradwire.torch.encode(codec, tensor, states[1])
        out = on_device(torch.zeros(900, dtype=torch.uint8))
        written = gradwire.torch.encode_into(codec, x, states[0], out)
        decoded = gradwire.torch.decode(out[:written])
        assert decoded.device == x.device
        expected = gradwire.torch.decode(gradwire.torch.encode(codec, tensor, states[1]))
        assert torch.equal(decoded.cpu(), expected)
        gradwire.torch.decode(frame, x)
        gradwire.torch.decode_add(frame, x, 2.0)
        assert torch.equal(x.cpu(), 3 * gradwire.torch.decode(frame))
        assert torch.equal(torch.ops.gradwire.decode(out[:written], N).cpu(), expected)

    def test_a_number_is_read_as_it_was(self, on_device):
        scale = on_device(torch.zeros(()))
        scale.fill_(8.0)
        read = backends.backend_for(scale).number(scale)
        scale.fill_(4.0)
        assert late.waits == [], "nobody has waited so far"
        assert read() == 8.0
        assert scale.cpu() == 4.0

    @pytest.mark.parametrize("pinned", [False, True])
    def test_a_bucket_waits_in_the_worker_alone_and_is_resolved_in_order(
        self, on_device, tensor, monkeypatch, pinned
    ):
        monkeypatch.setattr(Staging, "_asynchronous", lambda self, host: pinned)
        codec = gradwire.topk(0.05)
        states = [codec.init_state(N) for _ in range(2)]
        buffer = on_device(torch.zeros(N))
        buffer.copy_(tensor, non_blocking=True)
        bucket = backends.backend_for(buffer).bucket(buffer)
        bucket.future = Handed()
        frames = torch.zeros(5000, dtype=torch.uint8)

        def work():
            table, error = bucket.encode([codec], states[:1], [0, N], [5000], [None], frames, 1.0)
            assert error is None
            bucket.average(frames, [0], [[int(table[0])]], [0, N], [False], False, 1.0)
            bucket.store()
            bucket.resolve(poisoned=False)

        worker = threading.Thread(target=work)
        worker.start()
        worker.join()
        assert late.waits == [worker]
        stream = bucket.future.stream
        assert stream is not late.current_stream(), "copies do not wait in the caller's stream"
        ready = late.Event()
        ready.record(stream)  # as the future does
        late.current_stream().wait_event(ready)
        expected = gradwire.torch.decode(gradwire.torch.encode(codec, tensor, states[1]))
        assert torch.equal(buffer.cpu(), expected)

    def test_a_spoiled_bucket_is_infinite_after_whatever_was_under_way(self, on_device, tensor):
        buffer = on_device(torch.zeros(N))
        buffer.copy_(tensor, non_blocking=True)
        bucket = backends.backend_for(buffer).bucket(buffer)
        bucket.future = Handed()
        bucket.resolve(poisoned=True)
        assert late.waits == []
        bucket.future.stream.synchronize()
        assert np.isposinf(buffer.raw.numpy()).all()
        late.current_stream().synchronize()
        assert np.isposinf(buffer.raw.numpy()).all()

    def test_the_memory_of_a_bucket_is_kept_until_both_streams_are_done(self, on_device):
        # Its caller may free it without having waited: after an error, for one.
        buffer = on_device(torch.zeros(N))
        bucket = backends.backend_for(buffer).bucket(buffer)
        bucket.future = Handed()
        bucket.resolve(poisoned=True)
        stage = staging(buffer.device)
        at = buffer.raw.untyped_storage().data_ptr()
        assert late.records == [(at, stage._down), (at, stage._up)]

    def test_missing_pinned_memory_is_said_once_and_only_that(self, on_device, monkeypatch):
        stage, shape = staging(torch.device("late:0")), torch.Size([4])
        empty, said = torch.empty, []

        def raising(*given, pin_memory=False, **options):
            if pin_memory:
                raise RuntimeError(said[-1])
            return empty(*given, **options)

        monkeypatch.setattr(torch, "empty", raising)
        said.append("CUDA error: an illegal memory access was encountered")
        with pytest.raises(RuntimeError, match="illegal"):
            stage.empty(shape, torch.uint8)
        said.append("CUDA error: out of memory")
        with pytest.warns(RuntimeWarning, match="no pinned memory .* late:0.*out of memory"):
            assert stage.empty(shape, torch.uint8).shape == shape
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            stage.empty(shape, torch.uint8)

    def test_without_streams_the_device_is_waited_for_as_a_whole(
        self, on_device, tensor, monkeypatch
    ):
        monkeypatch.setattr(staging_module, "_STREAMS", ("Missing",))
        monkeypatch.setattr(late, "synchronize", lambda: late._default.synchronize(), raising=False)
        buffer = on_device(torch.zeros(N))
        elsewhere = late.Stream()
        buffer.copy_(tensor, non_blocking=True)
        bucket = backends.backend_for(buffer).bucket(buffer)
        with late.stream(elsewhere):  # a thread of its own has another stream
            assert torch.equal(bucket.values, tensor)
