"""The threads of an attachment, without ranks."""

from types import SimpleNamespace

import pytest
import torch

from gradwire.torch.backends import backend_for
from gradwire.torch.engine.pipeline import ExchangePipeline
from gradwire.torch.engine.step import Step
from gradwire.torch.errors import ExchangeError


def test_a_bucket_that_cannot_be_resolved_is_an_error_and_not_a_hang(monkeypatch):
    buckets = [backend_for(torch.ones(3)).bucket(torch.ones(3)) for _ in range(3)]
    real = type(buckets[0]).resolve

    def resolve(self, *, poisoned):
        if self is buckets[1]:
            raise RuntimeError("the device is lost")
        real(self, poisoned=poisoned)

    monkeypatch.setattr(type(buckets[0]), "resolve", resolve)
    worker = ExchangePipeline(SimpleNamespace(), scaled=True)
    step = Step(completed=list(buckets))
    worker._resolve(step)
    assert torch.equal(buckets[0].future.wait(), torch.ones(3))
    with pytest.raises(ExchangeError, match="the device is lost"):
        buckets[1].future.wait()
    assert buckets[2].future.wait().isinf().all()
    assert step.error is worker.broken
    assert worker.stop(5.0)
