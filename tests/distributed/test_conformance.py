"""Laws that every exchange keeps: replicas are equal, what does not count leaves no trace."""

import contextlib
import functools
import math
import re
import time
from unittest import mock

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

import gradwire
import gradwire.torch.ddp
from gradwire.schedule import Accordion
from gradwire.torch.ddp import ExchangeError, GradientError
from gradwire.torch.engine.pipeline import ExchangePipeline
from gradwire.torch.engine.step import BufferPool
from gradwire.torch.exchange.base import AverageChecksums
from tests.distributed.codecs import CODECS, SEVERAL
from tests.distributed.ranks import alike, on
from tests.distributed.scenarios.common import (
    SHAPES,
    Given,
    Run,
    Sums,
    adamw,
    attached,
    batch,
    bits_left,
    fingerprint,
    gradients_of,
    integers,
    network,
    plain,
    residuals,
    train,
)

UNUSED = {**SEVERAL, "find_unused_parameters": True}
VIEW = {**SEVERAL, "gradient_as_bucket_view": True}


def keeps_promises(rank, size, codec, linked=False, ddp=None, **options):
    """Train; run passes that do not count; train on; and once more from a checkpoint.

    With ``linked``, `attach` is given the optimizer.
    """
    momentum = 0.9 if codec.memory.corrects and linked else 0.0
    make = adamw if codec.memory.updates else functools.partial(SGD, lr=0.05, momentum=momentum)
    options |= {} if linked else {"optimizer": None}
    with Run(codec, make, ddp=ddp, **options) as run:
        handle, model = run.handle, run.model
        run.train(rank, range(3))
        before = plain(handle.state_dict())
        model.zero_grad()
        with contextlib.suppress(GradientError):
            model(torch.full((4, 32), torch.inf if rank == size - 1 else 1.0)).sum().backward()
        assert isinstance(handle.error, GradientError)
        assert handle.error.rank == size - 1
        assert before == plain(handle.state_dict())
        for paused in (False, True):
            for again in range(2):
                model.zero_grad()
                with handle.paused() if paused else contextlib.nullcontext():
                    model(batch(rank, 50 + again)[0]).square().mean().backward()
                if not paused:
                    handle.discard()
                assert before == plain(handle.state_dict())
        if "schedule" in options:
            handle.epoch(1)
        saved = run.save()
        run.train(rank, range(3, 6))
        whole = run.state()
        alike(whole[0])
        report = handle.report()
        assert report.wire_bytes > 0
        assert report.collectives > report.steps or "bucket_cap_mb" in (ddp or {})
    with Run(codec, make, ddp=ddp, seed=99, **options) as run:
        run.load(saved)
        run.train(rank, range(3, 6))
        again = run.state()
        alike(again[0])
    # Sums on the wire depend on the buckets from three ranks on, and DDP forms them anew.
    assert again == whole or (size > 2 and not codec.exchange.gathers_frames)


@pytest.mark.parametrize("name", CODECS)
@on("ranks")
def test_replicas_are_equal_what_does_not_count_leaves_no_trace_and_resumes_are_exact(
    rank, size, name
):
    keeps_promises(rank, size, CODECS[name])


@pytest.mark.full
@pytest.mark.parametrize(
    ("codec", "options"),
    [
        (CODECS["default"], {"ddp": {"bucket_cap_mb": 25}}),
        (CODECS["senders"], {"schedule": Accordion(0.2, 0.05, interval=1)}),
        (CODECS["senders"], {"ddp": {"find_unused_parameters": True}}),
        (CODECS["reduce"], {"ddp": {"gradient_as_bucket_view": True}}),
        (gradwire.dgc(ratio=0.02, clip=1.0), {}),
        (gradwire.sidco(ratio=0.02), {"ddp": {"static_graph": True}}),
        (gradwire.threshold(threshold=0.02), {}),
    ],
    ids=["one-bucket", "accordion", "find-unused", "view", "dgc", "sidco", "threshold"],
)
@on("two")
def test_so_they_are_in_modes_of_ddp_and_with_other_codecs(rank, size, codec, options):
    keeps_promises(rank, size, codec, **options)


@pytest.mark.parametrize(
    ("name", "bad", "value", "ddp"),
    [
        # The first registered is in the last bucket; the bias travels dense.
        *((name, "a", math.inf, SEVERAL) for name in CODECS),
        *((name, "c", math.nan, SEVERAL) for name in ("default", "leader", "reduce", "quantized")),
        *((name, "bias", -math.inf, SEVERAL) for name in ("narrow", "reduce-half", "scattered")),
        ("default", "b", -math.inf, VIEW),
        ("default", "a", math.inf, UNUSED),
    ],
)
@on("ranks")
def test_a_bad_gradient_on_one_rank_makes_every_rank_skip_and_roll_back(
    rank, size, name, bad, value, ddp
):
    module, sums = Given(), Sums()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
    optimizers = [  # two of them: a bad gradient of one must make the other skip as well
        SGD([module.get_parameter(each) for each in names], lr=1.0)
        for names in (("a", "c"), ("b", "bias", "scalar"))
    ]
    options = {"grad_scaler": scaler}
    with attached(module, CODECS[name], options=options, **ddp) as (model, handle):
        for step in range(5):
            gradients, is_bad = integers(6, rank, step), step == 2
            before, frozen = bits_left(handle), fingerprint(model)
            if not is_bad:
                sums.give(gradients)
            elif rank == size - 1:
                gradients[bad].view(-1)[-1] = value
            model.zero_grad()
            scaler.scale(model(gradients)).backward()
            if is_bad:
                assert not any(np.isfinite(each).any() for each in gradients_of(module).values())
                assert before == bits_left(handle)
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            if is_bad:
                assert fingerprint(model) == frozen
                assert scaler.get_scale() == 4.0
            else:
                sums.take(module)
        assert f"{bad!r} on rank {size - 1}" in str(handle.error)
        assert handle.report().collectives > 5, "the test needs several buckets"
        if name == "default":
            sums.check(residuals(handle), tolerance=0.0 if size == 2 else 1e-3)
    alike(fingerprint(module))


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *((name, "a") for name in ("default", "leader", "reduce", "scattered")),
        *((name, "bias") for name in ("narrow", "reduce")),
    ],
)
@on("two")
def test_without_a_scaler_every_rank_raises_and_may_go_on(rank, name, bad):
    sums = Sums()
    with attached(Given(), CODECS[name], **SEVERAL) as (model, handle):
        for step in range(5):
            gradients, before = integers(8, rank, step), bits_left(handle)
            model.zero_grad()
            if step != 2:
                model(sums.give(gradients)).backward()
                sums.take(model.module)
                continue
            if rank == 1:
                gradients[bad].view(-1)[3:5] = torch.nan
            said = re.escape(f"the gradient of {bad!r} on rank 1 has 2 non-finite value(s)")
            with pytest.raises(GradientError, match=said) as caught:
                model(gradients).backward()
            error = caught.value
            assert (error.name, error.rank, error.count, error.first) == (bad, 1, 2, 3)
            assert type(handle.error) is GradientError
            assert before == bits_left(handle)
        if name in ("default", "leader"):
            sums.check(residuals(handle))


@pytest.mark.parametrize("name", ["default", "leader", "reduce", "scattered", "quantized"])
@on("two")
def test_an_unused_parameter_keeps_its_residual_and_loses_nothing(rank, size, name):
    """Use `a` everywhere, then nowhere, then on the last rank only, then everywhere."""
    sums, left, none = Sums(), [], []
    with attached(Given(), CODECS[name], **UNUSED) as (model, handle):
        for step in range(5):
            names = set(SHAPES)
            if step in (1, 2) or (step == 3 and rank != size - 1):
                names -= {"a"}
            model.zero_grad()
            model(sums.give(integers(3, rank, step, sorted(names)))).backward()
            none.append(model.module.a.grad is None)
            sums.take(model.module)
            left.append(bits_left(handle)["a"])
        # What a hook writes for what nobody used is dropped, so nothing may be taken out.
        assert none == [False, True, True, False, False]
        assert left[0] == left[1] == left[2]
        if name not in ("reduce", "scattered"):
            assert left[3] != left[2], "used on the last rank only: the other one's rest flows"
        if name in ("default", "leader"):
            assert any(left[0])
            sums.check(residuals(handle))


@pytest.mark.parametrize(("name", "who"), [("default", 0), ("leader", 1), ("reduce", 1)])
@on("two")
def test_a_failure_to_encode_reaches_every_rank(rank, name, who):
    """Something unforeseen: here, the state of a parameter is in use elsewhere."""
    model = DistributedDataParallel(Given(), **SEVERAL)
    handle = gradwire.torch.ddp.attach(model, CODECS[name])
    for step in range(2):
        model(integers(1, rank, step)).backward()
    if rank == who:
        handle._parameters["a"].state = None
    for said in ("", "gradwire stopped after an earlier error: "):
        with pytest.raises(ExchangeError, match=f"{said}rank {who} could not encode: "):
            model(integers(1, rank, 2)).backward()
    assert isinstance(handle.error, ExchangeError)
    handle.detach()  # broken: must not wait for anyone
    model(integers(1, rank, 3)).backward()


@pytest.mark.parametrize(("name", "slow"), [("default", False), ("leader", True), ("reduce", True)])
@on("two")
def test_a_rank_without_memory_for_messages_is_an_error_of_all(rank, name, slow):
    """If it is slow, it has heard of the failure of a bucket before it starts the next.

    The other rank waits for that then, until rank 1 has left.
    """
    launch = ExchangePipeline._launch

    def late(pipeline, task):
        time.sleep(0.2)
        return launch(pipeline, task)

    def trouble(*_):
        raise MemoryError("no memory for messages")

    with attached(Given(), CODECS[name], **SEVERAL) as (model, handle):
        for step in range(2):
            model.zero_grad()
            model(integers(1, rank, step)).backward()
        before = bits_left(handle)
        take = trouble if rank == 1 else BufferPool.take
        said = "rank 1 could not encode: MemoryError: no memory for messages"
        with (
            mock.patch.object(BufferPool, "take", take),
            mock.patch.object(ExchangePipeline, "_launch", late if slow and rank == 1 else launch),
            pytest.raises(ExchangeError, match=said),
        ):
            model(integers(1, rank, 2)).backward()
        assert before == bits_left(handle)


@pytest.mark.parametrize("name", ["senders", "scattered", "quantized"])
@on("two")
def test_averages_that_differ_are_noticed_a_step_later_on_every_rank(rank, name):
    """One bit of one average is another on rank 1, in the third step."""
    model = DistributedDataParallel(network(), **SEVERAL)
    handle = gradwire.torch.ddp.attach(model, CODECS[name])
    train(model, rank, range(2))
    note = AverageChecksums.note

    def changed(checksums, flight):
        if "3.weight" in flight.task.contents.names:
            flight.task.bucket.values.view(torch.uint8)[5] ^= 1
        note(checksums, flight)

    with mock.patch.object(AverageChecksums, "note", changed if rank == 1 else note):
        train(model, rank, range(2, 3))
    said = "ranks 0 and 1 got different averages from the same frames in the previous step"
    with pytest.raises(ExchangeError, match=said) as caught:
        train(model, rank, range(3, 5))
    assert alike((caught.value.rank, handle.report().steps)) == (1, 4)
    handle.detach()
