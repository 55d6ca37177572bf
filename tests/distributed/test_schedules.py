"""Schedules change what is sent on all ranks in the same step, and nothing is lost thereby."""

import gc
import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire.schedule import Accordion, BySteps, Constant, DenseWarmUp, WarmUp
from gradwire.schedule.base import RATIO, STEPS
from gradwire.torch.engine.scheduler import EPOCH
from gradwire.torch.engine.step import BufferPool
from tests.distributed.ranks import alike, on
from tests.distributed.scenarios.common import (
    SHAPES,
    SMALL_BUCKETS,
    Given,
    Run,
    Sums,
    about,
    attached,
    changed,
    fingerprint,
    integers,
    network,
    plain,
    residuals,
    train,
)
from tests.distributed.scripted import ratios


def scheduled(schedule, codec=None, module=None):
    """A small network, by the largest entries unless said otherwise."""
    codec = codec or gradwire.topk(ratio=0.05)
    options = {"schedule": schedule}
    return attached(module or network(), codec, options=options, bucket_cap_mb=SMALL_BUCKETS)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [(WarmUp((0.5, 0.2)), [0.5, 0.2, 0.05, 0.05]), (DenseWarmUp(2), [None, None, 0.05, 0.05])],
    ids=["ratios", "dense"],
)
@on("two")
def test_a_warm_up_sends_less_from_epoch_to_epoch_and_loses_nothing(rank, schedule, expected):
    """Two steps an epoch with integers, so that sums are exact."""
    sums, sent = Sums(), []
    with scheduled(schedule, module=Given()) as (model, handle):
        for epoch, ratio in enumerate(expected):
            handle.epoch(epoch)
            assert ratios(handle)["a"] == ratio
            for step in range(2):
                model.zero_grad()
                model(sums.give(integers(21, rank, 2 * epoch + step))).backward()
                sums.take(model.module)
            report = handle.report(reset=True)
            sent += [each.bytes_per_step for each in report.parameters if each.name == "a"]
            # A dense warm-up leaves nothing behind, another one keeps its residuals.
            left = [each.any() for each in residuals(handle).values()]
            assert all(left) if ratio else not any(left)
        sums.check(residuals(handle))
    if expected[0] is None:
        assert sent[:2] == [4 * 64 * 40] * 2
    else:
        assert sent[0] > 2 * sent[1] > 4 * sent[2]


def sized(model, rank, **values):
    """A pass whose entries are the same in a parameter; nobody should look at those of rank 1."""
    factor = 1.0 if rank == 0 else 1e6
    model.zero_grad()
    model(
        {name: torch.full(s, factor * values.get(name, 1.0)) for name, s in SHAPES.items()}
    ).backward()


@on("two")
def test_accordion_follows_the_rule_of_section_6_1(rank):
    """Parameter by parameter, with an interval of two."""
    low, high = 0.5, 0.05
    walk = [
        ({"a": 1.0, "b": 1.0, "c": 1.0}, 0.1),  # epoch 0: everything is critical
        ({"a": 9.0, "b": 9.0, "c": 9.0}, 0.1),  # not looked at
        ({"a": 1.0, "b": 1.5, "c": 0.0}, 0.1),  # b by exactly eta, c to nothing
        ({"a": 1.0, "b": 1.0, "c": 1.0}, 0.01),  # a is calm, but the learning rate falls
        ({"a": 1.2, "b": 1.4, "c": 1.0}, 0.01),  # a and b calm, c from nothing
        ({}, 0.01),
    ]
    sent = []
    with scheduled(Accordion(low, high, eta=0.5, interval=2), module=Given()) as (model, handle):
        for epoch, (values, lr) in enumerate(walk):
            handle.epoch(epoch, lr=lr)
            sent.append(ratios(handle))
            before = plain(handle.state_dict())
            handle.epoch(epoch, lr=lr)  # the same one again changes nothing
            assert before == plain(handle.state_dict())
            for _ in range(2):
                sized(model, rank, **values)
        norms = about(handle.state_dict())["schedule"]["norms"]
    assert sent[:5] == [{"a": low, "b": low, "c": low}] * 5, "until the next look"
    assert sent[5] == {"a": high, "b": high, "c": low}
    # Rank 0's gradients decide: those of rank 1 are a million times as large.
    assert norms["a"] == pytest.approx(2 * 1.2 * np.sqrt(64 * 40), rel=1e-6)


@on("two")
def test_accordion_goes_on_with_codecs_saved_when_the_default_was_an_all_gather(rank):
    before, now = '{"kind": "all_gather", "mean": "ranks"}', '{"kind": "by_ranks"}'
    schedule = Accordion(gradwire.topk(0.5), gradwire.topk(0.05), interval=1)
    with scheduled(schedule, module=Given()) as (model, handle):
        handle.epoch(0)
        sized(model, rank, a=1.0, b=2.0)
        handle.epoch(1)
        saved = handle.state_dict()
    norms, text = about(saved)["schedule"]["norms"], saved[f"rank{rank}"]["about"]
    assert norms["b"] > norms["a"] > 0.0
    assert now in text
    saved[f"rank{rank}"]["about"] = text.replace(now, before)
    with scheduled(schedule, module=Given()) as (model, handle):
        handle.load_state_dict(saved)
        assert about(handle.state_dict())["schedule"]["norms"] == norms


TOPK = gradwire.topk(ratio=0.02)
RESUMED = {
    "accordion": (TOPK, Accordion(0.5, 0.02, eta=0.2, interval=2)),
    "scalecom": (gradwire.scalecom(0.02), DenseWarmUp(2)),
    "dgc": (gradwire.dgc(0.02), WarmUp.code(0.02, 3)),
}


@pytest.mark.full
@pytest.mark.parametrize("kind", RESUMED)
@on("two")
def test_resume_in_the_middle_of_an_epoch_is_bit_for_bit(rank, kind, tmp_path):
    """Train 9 steps of 2 an epoch; save after 5, and go on from there."""
    codec, schedule = RESUMED[kind]
    path = tmp_path / f"rank{rank}.pt"

    def run(model, handle, steps):
        for step in steps:
            if step % 2 == 0:
                handle.epoch(step // 2)
            train(model, rank, range(step, step + 1), lr=0.5)
        return fingerprint(model), plain(handle.state_dict())

    with scheduled(schedule, codec) as (model, handle):
        run(model, handle, range(5))
        torch.save({"model": model.module.state_dict(), "gradwire": handle.state_dict()}, path)
        whole = run(model, handle, range(5, 9))
    saved = torch.load(path, weights_only=True)
    measured = saved["gradwire"][f"rank{rank}"]["measured"]
    assert bool(measured) == (kind == "accordion" and rank == 0)
    module = network(seed=99)
    module.load_state_dict(saved["model"])
    with scheduled(schedule, codec, module) as (model, handle):
        handle.load_state_dict(saved["gradwire"])
        assert run(model, handle, range(5, 9)) == whole
    alike(whole[0])


@on("two")
def test_what_does_not_go_together_is_refused_on_all_ranks(rank):
    model = DistributedDataParallel(network())
    other = WarmUp() if rank == 0 else DenseWarmUp(1)
    for codec, schedule, said in (
        (gradwire.topk(k=5), WarmUp(), "has none; pass ratio= to it"),
        (TOPK, Accordion(gradwire.sidco(0.1), 0.01), "only in how much they send"),
        (TOPK, other, "rank 1 and rank 0 attached with different schedule"),
        (TOPK, "warm-up", "schedule must be one of gradwire.schedule."),
    ):
        with pytest.raises((ValueError, TypeError), match=said):
            gradwire.torch.ddp.attach(model, codec, schedule=schedule)
    with scheduled(WarmUp(), gradwire.topk(0.1)) as (_, handle):
        handle.epoch(3)
        for epoch, said in (
            (2, "epoch 3 has already begun, got epoch 2"),
            (4 + rank, "rank 1 and rank 0 began an epoch with different epoch"),
        ):
            with pytest.raises(ValueError, match=said):
                handle.epoch(epoch)
        assert set(ratios(handle).values()) == {0.1}
    with pytest.raises(ValueError, match="detached"):
        handle.epoch(5)


@on("short_lived")
def test_decisions_that_differ_between_ranks_are_not_loaded(rank):
    with scheduled(Accordion(low=0.5, high=0.01)) as (model, handle):
        train(model, rank, range(2))
        saved = handle.state_dict()
        if rank == 1:
            schedule = about(saved)["schedule"]
            critical = dict.fromkeys(schedule["critical"], False)
            saved = changed(saved, schedule=schedule | {"critical": critical})
        with pytest.raises(ValueError, match="different runs or steps"):
            handle.load_state_dict(saved)
        train(model, rank, range(2, 3))
        assert handle.step == 3


# What codecs that send steps begin with -------------------------------------------------------


ADAM = gradwire.adam(ratio=0.01)
BEGUN = {
    "adam": (ADAM, {}, 0.01),
    "named": ({"0.*": gradwire.adam(0.01), "*": gradwire.float8()}, {}, 0.01),
    "said": (ADAM, {"schedule": BySteps(WarmUp((RATIO,)), STEPS)}, 0.01),
    "constant": (ADAM, {"schedule": Constant()}, 0.01),
    "dense enough": (gradwire.adam(ratio=0.1), {}, 0.1),
    "one bit": (gradwire.adam_onebit(), {}, None),
    "gradients": (gradwire.topk(ratio=0.01), {}, 0.01),
}


@pytest.mark.full
@pytest.mark.parametrize("kind", BEGUN)
@on("two")
def test_codecs_that_send_steps_begin_with_a_warm_up(rank, kind):
    codec, options, ratio = BEGUN[kind]
    told = []
    with warnings.catch_warnings(), Run(codec, **options) as run:
        warnings.simplefilter("ignore")
        for steps in (range(1), range(1, STEPS), range(STEPS, STEPS + 4)):
            run.handle.report(reset=True)
            run.train(rank, steps)
            report, sent = run.handle.report(), run.parameter().codec.sparsify
            told.append((getattr(sent, "ratio", None), report.schedule, report.wire_bytes))
            assert kind != "named" or not hasattr(run.parameter("3.weight").codec.sparsify, "ratio")
        alike(fingerprint(run.model))
    (first, _, _), (last, shown, many), (after, over, few) = told
    assert after == ratio
    if kind in ("adam", "named", "said"):
        assert first == last == RATIO
        assert shown.endswith(f"steps={STEPS}), epoch 0: ratio {RATIO}")
        assert over.endswith("epoch 1: ratio 0.01")
        assert many > few
    else:
        assert first == last == ratio
        assert {shown for _, shown, _ in told} == {""}


def warmed_up(rank, folder, steps):
    """Save after so many steps, and go on from there; where the warm-up ends, passes are undone."""

    def go(run, steps):
        for step in steps:
            if step == STEPS:
                for discards in (True, True, False):
                    run.optimizer.zero_grad()
                    run.model(torch.ones(4, 32)).sum().backward()
                    if discards:
                        run.handle.discard()
            run.train(rank, [step])
        return run.state()

    with Run(ADAM) as run:
        go(run, range(steps))
        saved = run.save()
        whole = go(run, range(steps, STEPS + 5))
    (folder / f"{rank}.pt").write_bytes(saved)
    with Run(ADAM, seed=99) as run:
        run.load(saved)
        assert go(run, range(steps, STEPS + 5)) == whole
        assert set(ratios(run.handle).values()) == {0.01}


def warmed_up_on_others(rank, folder, steps):
    """Go on from what two ranks have saved."""
    saved = [torch.load(folder / f"{each}.pt", weights_only=True) for each in range(2)]
    sent = []
    with Run(ADAM, seed=99) as run:
        run.module.load_state_dict(saved[0]["model"])
        run.optimizer.load_state_dict(saved[0]["optimizer"])
        run.handle.load_state_dict([each["gradwire"] for each in saved])
        for step in range(steps, STEPS + 3):
            run.train(rank, [step])
            sent.append(ratios(run.handle)["0.weight"])
        assert sent == [RATIO] * 3 + [0.01] * 3
        alike(fingerprint(run.model))


@pytest.mark.full
def test_a_warm_up_by_steps_goes_on_where_it_was_saved_also_with_other_ranks(two, three, tmp_path):
    two.run(warmed_up, folder=tmp_path, steps=STEPS - 3)
    three.run(warmed_up_on_others, folder=tmp_path, steps=STEPS - 3)


@pytest.mark.full
@pytest.mark.parametrize(("steps", "ratio"), [(3, RATIO), (STEPS + 3, 0.01)])
@on("two")
def test_a_run_from_before_there_was_a_warm_up_is_not_warmed_up_late(rank, steps, ratio):
    with Run(ADAM, schedule=Constant()) as run:
        run.train(rank, range(steps))
        saved = run.save()
    with Run(ADAM) as run:
        run.load(saved)
        run.train(rank, [steps])
        assert ratios(run.handle)["0.weight"] == ratio
        assert about(run.handle.state_dict())["schedule"]["epoch"] == (ratio == 0.01)


@pytest.mark.full
@on("two")
def test_the_buffers_of_a_warm_up_are_given_back(rank):
    gc.collect()
    others = {id(each) for each in gc.get_objects() if isinstance(each, BufferPool)}
    layers = (torch.nn.Linear(*each, bias=False) for each in ((32, 2000), (2000, 16)))
    schedule, nbytes = BySteps(WarmUp((0.05,)), STEPS), []
    with Run(ADAM, module=torch.nn.Sequential(*layers), schedule=schedule) as run:
        for steps in (range(STEPS), range(STEPS, STEPS + 8)):
            run.train(rank, steps)
            run.handle.report()  # waits for what is under way
            mine = [each for each in gc.get_objects() if isinstance(each, BufferPool)]
            nbytes.append(sum(each.nbytes for each in mine if id(each) not in others))
    warm, after = nbytes
    assert 0 < 2 * after < warm


# Schedules that nobody advances ---------------------------------------------------------------

UNTOLD = {
    "warm-up": (WarmUp((0.5, 0.2)), [0.5] * EPOCH + [0.2] * EPOCH + [0.01] * 5),
    "dense": (DenseWarmUp(1), [None] * EPOCH + [0.01] * (EPOCH + 5)),
    "late": (WarmUp((0.5, 0.2)), [0.5] * EPOCH + [0.2] * 3 + [0.5] * (EPOCH + 2)),
    "accordion": (Accordion(0.5, 0.01), [0.5] * (2 * EPOCH + 5)),
}


def told(caught):
    """What was said of epochs."""
    return [str(each.message) for each in caught if "handle.epoch" in str(each.message)]


@pytest.mark.full
@pytest.mark.parametrize("kind", UNTOLD)
@on("two")
def test_epochs_that_nobody_tells_of_are_counted_by_steps(rank, kind):
    schedule, expected = UNTOLD[kind]
    sent, shown, options = [], [], {"schedule": schedule}
    with (
        warnings.catch_warnings(record=True) as caught,
        attached(network(), gradwire.topk(0.01), options=options) as (model, handle),
    ):
        warnings.simplefilter("always")
        for step in range(2 * EPOCH + 5):
            if kind == "late" and step == EPOCH + 3:
                handle.epoch(0)  # which has only now begun, and so is what counts
            train(model, rank, range(step, step + 1))
            sent.append(ratios(handle)["0.weight"])
            shown.append(handle.report(residuals=False).schedule)
        assert about(handle.state_dict())["schedule"]["told"] == (kind == "late")
    assert sent == expected
    (said,) = told(caught)
    if kind == "warm-up":
        assert shown[0].endswith("epoch 0 (handle.epoch() was not called): ratio 0.5")
        assert shown[-1].endswith("epoch 2 (handle.epoch() was not called): ratio 0.01")
        assert f"handle.epoch(epoch) was not called in {EPOCH} steps, so {EPOCH} steps" in said
        assert "BySteps(gradwire.schedule.WarmUp(ratios=(0.5, 0.2)), steps)" in said
    elif kind == "dense":
        assert shown[0].endswith("dense")
    elif kind == "late":
        assert shown[-1].endswith("epoch 0: ratio 0.5")
    else:
        assert "everything stays at low compression" in said


@pytest.mark.full
@on("two")
def test_a_run_that_was_told_of_epochs_does_not_count_steps_when_it_resumes(rank):
    options = {"schedule": WarmUp((0.5, 0.2))}
    with attached(network(), gradwire.topk(0.01), options=options) as (model, handle):
        handle.epoch(0)
        train(model, rank, range(EPOCH + 3))
        saved = handle.state_dict()
    with (
        warnings.catch_warnings(record=True) as caught,
        attached(network(), gradwire.topk(0.01), options=options) as (model, handle),
    ):
        warnings.simplefilter("always")
        handle.load_state_dict(saved)
        train(model, rank, range(EPOCH + 3, EPOCH + 8))
        assert ratios(handle)["0.weight"] == 0.5
    assert not told(caught)


@on("two")
def test_a_warning_of_epochs_that_is_an_error_is_one_on_all_ranks(rank):
    options = {"schedule": WarmUp((0.5, 0.2))}
    with attached(network(), gradwire.topk(0.01), options=options) as (model, handle):
        train(model, rank, range(EPOCH))
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            with pytest.raises(RuntimeWarning, match="was not called in"):
                train(model, rank, range(EPOCH, EPOCH + 1))
        train(model, rank, range(EPOCH, EPOCH + 2))
        assert handle.step == EPOCH + 2
        assert ratios(handle)["0.weight"] == 0.2
        alike(fingerprint(model))


# Nothing to compress --------------------------------------------------------------------------

ALONE = "There is only one rank, so there is nothing to exchange."
SMALL = {"min_numel": 10**6}


@pytest.mark.parametrize(
    ("codec", "options", "said"),
    [
        ("topk", {"alone": True}, ALONE[:-1]),
        ("auto", {"alone": True}, ALONE),
        ("topk", SMALL, "none of 8 parameters"),
        ("topk", {"min_ndim": 3}, "min_ndim=3 dimensions"),
        (
            "topk",
            {"frozen": True},
            "none of 8 parameters is trained",
        ),
        ("auto", SMALL, ""),
        ("topk", {}, ""),
    ],
    ids=str,
)
@on("two")
def test_that_nothing_is_compressed_is_said(rank, size, codec, options, said):
    alone, frozen = (options.pop(each, False) for each in ("alone", "frozen"))
    group = [dist.new_group([each]) for each in range(size)][rank] if alone else None
    model = DistributedDataParallel(network(), process_group=group)
    if frozen:
        for each in model.parameters():
            each.requires_grad_(each.numel() < 1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    chosen = codec if codec == "auto" else gradwire.topk(0.01)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        handle = gradwire.torch.ddp.attach(model, chosen, optimizer=optimizer, **options)
    with handle:
        if not frozen:
            train(model, rank, range(2), optimizer=optimizer)
        decision = handle.report().decision
    texts = [str(each.message) for each in caught]
    if codec == "auto" or not said:
        assert texts == []
        assert codec == "auto" or decision == ""
        assert said in decision
    else:
        assert texts == [decision]
        assert said in decision
