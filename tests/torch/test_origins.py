"""What is known of ``.grad`` without waiting for a device."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gradwire
from gradwire.torch.backends import dispatch, host
from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.grad_tracker import GradSource, GradTracker
from gradwire.torch.engine.parameter import ParameterSlot, set_codec


class Reads(TorchDispatchMode):
    """Counts what would make the program wait, if tensors lay on a device."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.fixture
def tensors():
    return [torch.ones(5, requires_grad=True) for _ in range(3)]


@pytest.fixture
def origins(tensors):
    """Of parameters whose ``.grad`` a first pass has brought."""
    codec = gradwire.dgc(ratio=0.01)  # what it computes must not be mixed with gradients
    slots = [ParameterSlot(str(index), each, None, object()) for index, each in enumerate(tensors)]
    for slot in slots:
        set_codec(slot, codec)
    made = GradTracker(slots)
    torch.stack(tensors).sum().backward()
    made.exchanged(BucketContents([mark.parameter for mark in made.marks], torch.float32))
    return made


@pytest.mark.parametrize("backend", ["cpu", "host"])
@pytest.mark.parametrize(
    ("clear", "mixed"),
    [(lambda _: None, True), (torch.Tensor.zero_, False), (None, False)],
    ids=["kept", "zeroed", "none"],
)
def test_what_was_not_cleared_is_mixed(tensors, origins, monkeypatch, backend, clear, mixed):
    if backend == "host":
        monkeypatch.setattr(dispatch, "_IN_PLACE", host)
    for each in tensors:
        if clear is None:
            each.grad = None
        else:
            clear(each.grad)
    with Reads() as reads:
        torch.stack(tensors[:2]).sum().backward()
        if backend == "host":
            assert reads.count == 0
        found = origins.mixed()
        if backend == "host":
            assert reads.count == 0, "all flags are read at once"
    assert (found is not None) == mixed
    origins.read_flags()
    expected = GradSource.MIXED if mixed else GradSource.LOCAL
    assert [mark.origin for mark in origins.marks] == [expected, expected, GradSource.SENT]


def test_what_is_kept_is_asked_of_all_at_once(tensors, origins, monkeypatch):
    monkeypatch.setattr(dispatch, "_IN_PLACE", host)
    tensors[0].grad.zero_()
    parameters = [mark.parameter for mark in origins.marks]
    with Reads() as reads:
        assert origins.holding(parameters) == parameters[1:]
        tensors[1].grad = None
        assert origins.holding(parameters) == parameters[2:]
        torch.stack(tensors).sum().backward()
        origins.read_flags()
        assert reads.count == 0
        assert [mark.origin for mark in origins.marks] == [
            *(GradSource.LOCAL, GradSource.LOCAL, GradSource.MIXED)
        ]
    assert origins.holding(parameters) == parameters[2:]


def test_what_was_cleared_since_is_mixed_no_more(tensors, origins, monkeypatch):
    monkeypatch.setattr(dispatch, "_IN_PLACE", host)
    torch.stack(tensors).sum().backward()
    for each in tensors:
        each.grad.zero_()
    assert origins.mixed() is None
    torch.stack(tensors).sum().backward()
    origins.read_flags()
    assert {mark.origin for mark in origins.marks} == {GradSource.LOCAL}
