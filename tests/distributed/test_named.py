"""Each parameter has the codec that its name calls for; a schedule may count steps."""

import io

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

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
    Sums,
    attached,
    fingerprint,
    integers,
    network,
    plain,
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

    def run(steps, saved=None):
        model = DistributedDataParallel(network(), **SEVERAL)
        optimizer = AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
        with gradwire.torch.ddp.attach(model, codecs, optimizer=optimizer) as handle:
            halves = {"model": model.module, "optimizer": optimizer, "gradwire": handle}
            if saved is not None:
                saved = torch.load(io.BytesIO(saved), weights_only=True)
                for name, each in halves.items():
                    each.load_state_dict(saved[name])
            train(model, rank, steps, optimizer=optimizer)
            names = {id(each): name for name, each in model.module.named_parameters()}
            kept = {names[id(each)] for each, state in optimizer.state.items() if state}
            file = io.BytesIO()
            torch.save({name: each.state_dict() for name, each in halves.items()}, file)
            return (fingerprint(model), kept, plain(handle.state_dict())), file.getvalue()

    whole, _ = run(range(6))
    _, half = run(range(3))
    assert run(range(3, 6), half)[0] == whole
    alike(whole[0])
    assert "0.weight" not in whole[1]
    assert {"3.weight", "5.weight", "0.bias"} <= whole[1]


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
    options, found = {"schedule": BySteps(schedule, steps=2)}, []

    def start(seed=0):
        return attached(network(seed), gradwire.topk(0.05), options=options, **SEVERAL)

    with start() as (model, handle):
        for step in range(7):
            train(model, rank, range(step, step + 1))
            found.append(ratios(handle)["0.weight"])
        whole = alike(fingerprint(model)), plain(handle.state_dict())
    assert found == expected
    with start() as (model, handle):
        handle.epoch(5)  # as a trainer calls it: without effect
        train(model, rank, range(4))
        before = fingerprint(model)
        model.zero_grad()
        model(torch.ones(2, 32)).sum().backward()  # the step at a boundary, undone
        handle.discard()
        assert fingerprint(model) == before
        saved = model.module.state_dict(), handle.state_dict()
    with start(seed=5) as (model, handle):
        model.module.load_state_dict(saved[0])
        handle.load_state_dict(saved[1])
        train(model, rank, range(4, 7))
        assert whole == (fingerprint(model), plain(handle.state_dict()))
