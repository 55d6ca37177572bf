"""Each parameter has the codec that its name calls for; a schedule may count steps."""

import functools

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

import gradwire
import gradwire.torch.ddp
from gradwire.exchange import AllReduce
from gradwire.memory import Residual
from gradwire.quantize import BFloat16
from gradwire.schedule import BySteps, DenseWarmUp, WarmUp
from tests.distributed.codecs import SEVERAL
from tests.distributed.ranks import alike, on
from tests.distributed.scenarios.common import (
    Given,
    Run,
    Sums,
    attached,
    fingerprint,
    integers,
    network,
    residuals,
    train,
)
from tests.distributed.scripted import ratios


@on("two")
def test_the_first_pattern_counts_and_other_parameters_are_sent_dense(rank):
    codecs = {
        "a": gradwire.topk(ratio=0.05),
        "b": None,
        "?": gradwire.topk(ratio=0.5, memory=Residual(decay=1.0)),
    }
    sums = Sums()
    with attached(Given(), codecs, **SEVERAL) as (model, handle):
        for step in range(3):
            model.zero_grad()
            model(sums.give(integers(22, rank, step))).backward()
            sums.take(model.module)
        report = handle.report()
        assert {each.name for each in report.parameters if each.dense} == {"b", "bias", "scalar"}
        assert ratios(handle) == {"a": 0.05, "c": 0.5}
        assert "{'a': gradwire.topk(ratio=0.05)" in str(report)
        assert residuals(handle)["a"].any()
        sums.check(residuals(handle))


@on("two")
def test_an_optimizer_makes_its_own_step_where_no_codec_does(rank):
    """One parameter by Adam's steps, one by gradients, the others dense; resumed half-way."""
    codecs = {"0.*": gradwire.adam(ratio=0.05), "3.*": gradwire.signsgd()}
    with Run(codecs) as run:
        run.train(rank, range(3))
        saved = run.save()
        run.train(rank, range(3, 6))
        whole = run.state()
        names = {each: name for name, each in run.module.named_parameters()}
        stepped = {names[each] for each, state in run.optimizer.state.items() if state}
    assert "0.weight" not in stepped
    assert {"3.weight", "5.weight", "0.bias"} <= stepped
    with Run(codecs, seed=5) as run:
        run.load(saved)
        run.train(rank, range(3, 6))
        assert run.state() == whole
        run.end()


@on("two")
def test_codecs_of_one_sum_go_together(rank):
    """Dense codecs by name over an all-reduce, each with its own quantizer."""
    codecs = {
        "0.weight": gradwire.dense(quantize=BFloat16(), exchange=AllReduce()),
        "3.weight": gradwire.randomk(ratio=0.5),
    }
    with attached(network(), codecs) as (model, handle):
        train(model, rank, range(3))
        assert handle.step == 3
        alike(fingerprint(model))


@on("two")
def test_what_cannot_be_meant_is_refused_on_all_ranks(rank):
    one = gradwire.topk(0.1)
    for codecs, said in (
        (
            {"0.weight": one, "9.weight": None},
            "no parameter is called '9.weight'; there are '0.weight', '0.bias'",
        ),
        ({"0.*": None}, "there is no codec among the values"),
        ({0: one}, "the keys are names of parameters, got 0"),
        ({"0.*": gradwire.topk}, "the function topk itself; call it"),
        ({"0.*": one, "3.*": gradwire.randomk(0.1)}, "must have the same exchange"),
        (
            {"0.*": one} if rank == 0 else {"3.*": one},
            "rank 1 and rank 0 attached with different codec",
        ),
        (
            {"0.*": one, "3.*": gradwire.adam(0.1)},
            "sends steps, not gradients, and got no opt",
        ),
    ):
        with pytest.raises((ValueError, TypeError), match=said):
            gradwire.torch.ddp.attach(DistributedDataParallel(network()), codecs)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (WarmUp((0.5, 0.2)), [0.5, 0.5, 0.2, 0.2, 0.05, 0.05, 0.05]),
        (DenseWarmUp(1), [None, None, *[0.05] * 5]),
    ],
    ids=["warm-up", "dense"],
)
@on("two")
def test_a_schedule_by_steps_advances_alone_and_resumes(rank, schedule, expected):
    """A step undone at a boundary, and a resume in front of one."""
    options, sent = {"schedule": BySteps(schedule, steps=2)}, []
    codec, make = gradwire.topk(0.05), functools.partial(SGD, lr=0.05)
    with Run(codec, make, **options) as run:
        for step in range(7):
            run.train(rank, [step])
            sent.append(ratios(run.handle)["0.weight"])
        whole = run.state()
        alike(whole[0])
    assert sent == expected
    with Run(codec, make, **options) as run:
        run.handle.epoch(5)  # as a trainer calls it: without effect
        run.train(rank, range(4))
        before = fingerprint(run.module)
        run.model.zero_grad()
        run.model(torch.ones(2, 32)).sum().backward()  # the step at a boundary, undone
        run.handle.discard()
        assert fingerprint(run.module) == before
        saved = run.save()
    with Run(codec, make, seed=5, **options) as run:
        run.load(saved)
        run.train(rank, range(4, 7))
        assert run.state() == whole
