"""attach(model, "auto"): whatever is decided, ranks do the same, and nothing is lost."""

import contextlib
import json
import os
import re
import warnings
from unittest import mock

import numpy as np
import pytest
import torch
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire.exchange import ReduceScatter
from gradwire.quantize import Float32
from gradwire.schedule import Accordion, Constant, DenseWarmUp
from gradwire.schedule.base import RATIO, STEPS
from gradwire.torch.auto import Automatic, controller
from gradwire.torch.auto.controller import StepClock
from gradwire.torch.ddp import ExchangeError, GradientError, PairingWarning, UpdateError
from tests.distributed.ranks import alike, on, together
from tests.distributed.scenarios.common import (
    SHAPES,
    SMALL_BUCKETS,
    Given,
    Sums,
    about,
    attached,
    batch,
    fingerprint,
    gradients_of,
    integers,
    network,
    residuals,
    train,
)
from tests.distributed.scripted import (
    BFLOAT16,
    CODEC,
    EVERYTHING,
    UNCOMPRESSED,
    mode_of,
    phases,
    ratios,
    scripted,
)

SWITCHES = (CODEC, UNCOMPRESSED, BFLOAT16, CODEC, UNCOMPRESSED)
ORDER = [
    *(UNCOMPRESSED, CODEC, EVERYTHING, UNCOMPRESSED),
    *(BFLOAT16, CODEC, EVERYTHING, UNCOMPRESSED),
]
"""The settings that these lead to, with the steps that send what is left."""


def automatic(module, optimizer, codec="auto", **options):
    """Attach with small buckets."""
    options = {"optimizer": optimizer, **options}
    return attached(module, codec, options=options, bucket_cap_mb=SMALL_BUCKETS)


def stepwise(model, rank, steps, optimizer, handle):
    """Train, and say after every step which one it was."""
    for step in steps:
        train(model, rank, range(step, step + 1), optimizer=optimizer)
        yield step


def switch(rank, codec, spoiled=False, **options):
    """Go in and out of the codec with integers, so that sums are exact; return the report."""
    module, sums = Given(), Sums()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    modes, left, averages, errors = [], [], [], []
    with scripted(*SWITCHES), automatic(module, optimizer, codec, **options) as (model, handle):
        for step in range(32 if spoiled else 21):
            gradients = integers(31, rank, step)
            dropped, before = spoiled and step % 3 == 2, handle.error
            if dropped and step % 2 and rank == 1:
                gradients["a"][3, 4] = torch.nan
            optimizer.zero_grad()
            model(gradients).backward()
            if (error := handle.error) is not before:
                with pytest.raises(GradientError):
                    optimizer.step()
                errors.append((step, error.name, error.rank))
            modes.append(mode_of(handle))
            if dropped:  # no step: what was sent must come back
                continue
            optimizer.step()
            sums.give(gradients)
            sums.take(module)
            averages.append({key: each.tobytes() for key, each in gradients_of(module).items()})
            left.append(any(each.any() for each in residuals(handle).values()))
        sums.check(residuals(handle))
        report = handle.report()
    alike((modes, errors, averages))
    assert phases(modes) == ORDER
    assert any(left)
    assert not left[-1], "no residual stays where the codec was left"
    assert bool(errors) == spoiled
    assert {name for _, name, _ in errors} <= {"a"}
    return report


@pytest.mark.parametrize("spoiled", [False, True], ids=["", "some passes are thrown away"])
@on("two")
def test_a_change_loses_nothing_and_leaves_no_residual_where_it_ends_dense(rank, spoiled):
    report = switch(rank, "auto", spoiled, min_ratio=0.05)
    decision = "Using uncompressed: 100 ms per step; measured 100 ms in bfloat16"
    assert report.decision.startswith(decision)
    assert decision in str(report)


@on("four")
def test_owners_send_the_sums_that_they_have_kept_before_the_codec_is_left(rank):
    switch(rank, Automatic(gradwire.topk(ratio=0.05, exchange=ReduceScatter())))


@on("ranks")
def test_what_stays_dense_trains_bit_for_bit_as_ddp_does(rank):
    prints = []
    for auto in (False, True):
        module = network()
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        model = DistributedDataParallel(module, bucket_cap_mb=SMALL_BUCKETS)
        with contextlib.ExitStack() as stack:
            if auto:
                stack.enter_context(scripted())
                handle = gradwire.torch.ddp.attach(model, "auto", optimizer=optimizer)
                stack.callback(handle.detach)
            train(model, rank, range(12), optimizer=optimizer)
        prints.append(fingerprint(module))
    assert prints[0] == prints[1]


@on("two")
def test_adamw_goes_on_with_its_second_moments(rank):
    module = network()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    prints, modes = [], set()
    with (
        scripted(CODEC, UNCOMPRESSED, CODEC, BFLOAT16),
        automatic(module, optimizer, min_ratio=0.05) as (model, handle),
    ):
        for step in stepwise(model, rank, range(19), optimizer, handle):
            mode = mode_of(handle)  # of the next step
            modes.add(mode)
            held = optimizer.state.get(module[0].weight)
            prints.append((fingerprint(module), mode))
            assert all(bool(each.isfinite().all()) for each in module.parameters())
            if mode in (UNCOMPRESSED, BFLOAT16):  # the optimizer has counted every step
                assert float(held["step"]) == step + 1
                assert held["exp_avg_sq"].sum() > 0.0
            else:
                assert not held
        # The last step with the codec has sent everything in float32.
        assert np.abs(residuals(handle)["0.weight"]).max() < 1e-6
    assert modes == {UNCOMPRESSED, CODEC, EVERYTHING, BFLOAT16}
    alike(prints)


@pytest.mark.parametrize("nesterov", [False, True])
@on("two")
def test_sgd_goes_on_with_its_momentum(rank, nesterov):
    """With all entries sent, any difference is that of momentum lost or counted twice."""
    weights = [torch.cat([each.detach().flatten() for each in network().parameters()])]
    for auto in (False, True):
        module = network()
        options = {"momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.01}
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01, **options)
        codec = Automatic(gradwire.dgc(1.0, masking=False, quantize=Float32()))
        with contextlib.ExitStack() as stack:
            model = DistributedDataParallel(module, bucket_cap_mb=SMALL_BUCKETS)
            if auto:
                stack.enter_context(scripted(CODEC, UNCOMPRESSED, CODEC, UNCOMPRESSED))
                handle = gradwire.torch.ddp.attach(model, codec, optimizer=optimizer)
                stack.callback(handle.detach)
            train(model, rank, range(20), optimizer=optimizer)
        weights.append(torch.cat([each.detach().flatten() for each in module.parameters()]))
    before, plain, compressed = weights
    assert (plain - compressed).abs().max() < 1e-4 * (before - compressed).abs().max()
    alike(fingerprint(module))


@on("two")
def test_the_codec_of_sgd_with_momentum_gives_back_what_it_has_not_masked(rank):
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    modes, last = [], 0.0
    with (
        scripted(CODEC, UNCOMPRESSED, CODEC, UNCOMPRESSED),
        automatic(module, optimizer, min_ratio=0.05) as (model, handle),
    ):
        assert "MomentumCorrection" in repr(handle.codec)
        for step in range(18):
            modes.append(mode_of(handle))
            train(model, rank, range(step, step + 1), optimizer=optimizer)
            kept = optimizer.state.get(module[0].weight, {}).get("momentum_buffer")
            mean = None if kept is None else float(kept.abs().mean())
            if step and modes[step - 1] == EVERYTHING:
                assert mean > 0.3 * last
            last = last if mean is None else mean
        left = residuals(handle)
    assert phases(modes) == ORDER[:4] + ORDER[5:]
    # What the last step with the codec has rounded to bfloat16.
    assert max(float(np.abs(each).max()) for each in left.values()) < 1e-3
    alike((modes, fingerprint(module)))


@on("two")
def test_behind_another_adam_every_entry_is_sent_in_eight_bits(rank):
    module = network()
    optimizer = torch.optim.NAdam(module.parameters(), lr=1e-2)
    with warnings.catch_warnings(), scripted(CODEC, UNCOMPRESSED, CODEC):
        warnings.simplefilter("ignore", PairingWarning)
        with automatic(module, optimizer) as (model, handle):
            assert "Float8" in repr(handle.codec)
            steps = stepwise(model, rank, range(12), optimizer, handle)
            found = [(mode_of(handle), fingerprint(module)) for _ in steps]
    assert phases(mode for mode, _ in alike(found)) == [UNCOMPRESSED, CODEC, UNCOMPRESSED, CODEC]


def given_clock(rank, seconds, handles):
    """A clock by which steps take as long as is said, longer on each further rank."""

    class GivenClock:
        def __init__(self, device):
            self.known = -1

        def clear(self):
            self.known = -1

        def mark(self):
            self.known += 1
            return self.known

        def median(self):
            return seconds[mode_of(handles[0])] * (1.0 + 0.02 * rank)

        def elapsed(self):
            return self.known * self.median()

    return GivenClock


@pytest.mark.parametrize(
    "in_step",
    [False, pytest.param(True, marks=pytest.mark.full)],
    ids=["", "clipped and exchanged in the step"],
)
@on("two")
def test_ranks_that_measure_different_times_decide_the_same(rank, in_step):
    """The decider itself, with times that differ between the ranks; then the link changes."""
    seconds = {UNCOMPRESSED: 1.0, BFLOAT16: 0.6, CODEC: 0.1}
    module, handles, found = network(), [], []
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    with (
        mock.patch.object(controller, "StepClock", given_clock(rank, seconds, handles)),
        automatic(module, optimizer, schedule=Constant()) as (model, handle),
    ):
        handles.append(handle)
        for step in range(130):
            if step == 40:
                seconds.update({UNCOMPRESSED: 0.1, BFLOAT16: 0.11, CODEC: 0.13})
            if in_step:
                optimizer.zero_grad()
                inputs, targets = batch(rank, step)
                with model.no_sync():
                    mse_loss(model(inputs), targets).backward()
                torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
                optimizer.step()
            else:
                train(model, rank, range(step, step + 1), optimizer=optimizer)
            decision = handle.report(residuals=False).decision
            found.append((mode_of(handle), decision, fingerprint(module)))
    mode, decision, _ = alike(found)[39]
    assert mode == CODEC
    assert decision == (
        "Using the codec at ratio 0.01: 102 ms per step; measured 1020 ms uncompressed, "
        "612 ms in bfloat16."
    )
    modes = [mode for mode, _, _ in found]
    assert modes[-1] == UNCOMPRESSED
    assert phases(modes)[:3] == [UNCOMPRESSED, BFLOAT16, CODEC]


@on("two")
def test_with_times_of_this_machine_ranks_decide_the_same(rank):
    module, modes = network(), []
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    with automatic(module, optimizer) as (model, handle):
        for _ in stepwise(model, rank, range(2000), optimizer, handle):
            modes.append(mode_of(handle))
            decision = handle.report(residuals=False).decision
            if decision.startswith("Using"):
                break
        train(model, rank, range(20), optimizer=optimizer)
        alike((modes, decision, fingerprint(module)))
    assert re.match(r"Using .*: [\d.]+ ms per step; measured .* ms .*\.$", decision)


@on("two")
def test_a_loss_scaler_skips_steps_in_all_settings(rank):
    module, modes = network(), []
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with (
        scripted(BFLOAT16, CODEC, UNCOMPRESSED),
        automatic(module, optimizer, min_ratio=0.05, grad_scaler=scaler) as (model, handle),
    ):
        for step in range(24):
            inputs, targets = batch(rank, step)
            optimizer.zero_grad()
            factor = float("nan") if rank == 1 and step % 5 == 4 else 1.0
            before, scale = fingerprint(module), scaler.get_scale()
            scaler.scale(factor * mse_loss(model(inputs), targets)).backward()
            scaler.step(optimizer)
            scaler.update()
            modes.append(mode_of(handle))
            skipped = alike(scaler.get_scale()) < scale
            assert skipped == (step % 5 == 4)
            assert skipped == (alike(fingerprint(module)) == before)
    assert {UNCOMPRESSED, BFLOAT16, CODEC} <= set(alike(modes))


@on("two")
def test_within_join_nothing_is_measured(rank):
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    with scripted(CODEC), automatic(module, optimizer) as (model, handle):
        with model.join():
            train(model, rank, range(4 + 2 * rank), optimizer=optimizer)
        assert mode_of(handle) == UNCOMPRESSED
        assert handle.report().decision == "Nothing is measured within join()."


def resuming(rank, folder):
    """Save with the codec in use, and go on elsewhere: with auto, with a codec, and back."""
    codec = gradwire.topk(ratio=0.05)

    def trained(what, steps, *script, of=None):
        module = network()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        options = {"min_ratio": 0.05} if what == "auto" else {}
        with scripted(*script), automatic(module, optimizer, what, **options) as (model, handle):
            if of is not None:
                module.load_state_dict(of["weights"])
                handle.load_state_dict(of["state"])
            train(model, rank, steps, optimizer=optimizer)
            weights = {key: each.clone() for key, each in module.state_dict().items()}
            return {
                "print": fingerprint(module),
                "ratios": set(ratios(handle).values()),
                "state": handle.state_dict(),
                "weights": weights,
                "step": handle.step,
            }

    whole = alike(trained("auto", range(16), CODEC)["print"])
    half = trained("auto", range(10), CODEC)
    again = trained("auto", range(10, 16), of=half)
    assert again["print"] == trained(codec, range(10, 16), of=half)["print"] == whole
    assert again["ratios"] == {0.05}
    assert again["step"] == half["step"] + 6
    alone = trained(codec, range(10))
    taken = trained("auto", range(10, 16), of=alone)
    assert taken["print"] == trained(codec, range(10, 16), of=alone)["print"]
    assert about(half["state"])["schedule"]["setting"] == CODEC
    torch.save(half["state"], folder / f"{rank}.pt")


def another_size(rank, size, folder):
    """Go on with what two ranks have saved; a single rank has nothing to exchange."""
    states = [torch.load(folder / f"{each}.pt", weights_only=True) for each in range(2)]
    module, modes = network(), []
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    with scripted(), automatic(module, optimizer, min_ratio=0.05) as (model, handle):
        handle.load_state_dict(states)
        assert size == 1 or set(ratios(handle).values()) == {0.05}
        left = sum(each.astype(float) for each in together(residuals(handle)["0.weight"]))
        for step in range(4):
            modes.append(mode_of(handle))
            train(model, rank, range(step, step + 1), optimizer=optimizer)
        alike(fingerprint(module))
        assert any(each.any() for each in residuals(handle).values()) == (size > 1)
        if size > 1:
            saved = [each[f"rank{at}"]["residual"] for at, each in enumerate(states)]
            before = sum(each["0.weight"].double().numpy().ravel() for each in saved)
            np.testing.assert_allclose(left, before, rtol=1e-5, atol=1e-7)
        else:
            assert phases(modes) == [CODEC, EVERYTHING, UNCOMPRESSED]
            said = "There is only one rank, so there is nothing to exchange."
            assert handle.report().decision == said


def test_a_run_resumes_with_what_was_decided_also_from_and_into_a_codec(one, two, three, tmp_path):
    two.run(resuming, folder=tmp_path)
    three.run(another_size, folder=tmp_path)
    one.run(another_size, folder=tmp_path)


@pytest.mark.full
@on("two")
def test_the_codec_in_use_begins_with_a_warm_up_and_one_that_is_probed_does_not(rank, tmp_path):
    """The run with the codec in use is saved in the middle of the warm-up, and resumed."""
    saved = {}
    for kind in ("probed", "in use", "resumed", "constant"):
        module = network()
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        options = {"schedule": Constant()} if kind == "constant" else {}
        with (
            scripted(CODEC, settled=kind != "probed"),
            automatic(module, optimizer, **options) as (model, handle),
        ):
            deciding = handle._passes.auto
            halves = {"optimizer": optimizer, "handle": handle, "model": module}
            if kind == "resumed":
                for name, each in halves.items():
                    each.load_state_dict(saved[name])
            sent, looks, shown = {}, {}, {}
            for _ in stepwise(model, rank, range(STEPS + 20), optimizer, handle):
                step = handle.step
                sent[step], looks[step] = ratios(handle)["0.weight"], deciding._looks
                shown[step] = handle.report(residuals=False).schedule
                if kind == "in use" and step == STEPS // 2:
                    every = {name: each.state_dict() for name, each in halves.items()}
                    torch.save(every, tmp_path / f"{rank}.pt")
                    saved = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        alike(fingerprint(module))
        if kind in ("probed", "constant"):
            assert set(sent.values()) == {0.01}
            assert kind == "probed" or shown[STEPS] == ""
            continue
        first = 1 if kind == "in use" else STEPS // 2 + 1
        warm = {step for step, ratio in sent.items() if ratio == RATIO}
        cold = {step for step, ratio in sent.items() if ratio == 0.01}
        # A resumed run measures for some steps first, and is not to measure the warm-up.
        assert min(cold - set(range(first + 8))) == STEPS + 1 == max(warm) + 1
        assert min(warm) <= first + 8
        (of_warm,) = {looks[step] for step in warm}  # a look would take it for the setting
        assert looks[max(cold)] > of_warm
        assert shown[STEPS].endswith(f"epoch 0: ratio {RATIO}")
        assert shown[STEPS + 1].endswith("epoch 1: ratio 0.01")


@pytest.mark.full
@pytest.mark.parametrize(
    "ddp",
    [
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"gradient_as_bucket_view": True},
    ],
    ids=str,
)
@on("two")
def test_replicas_stay_equal_in_all_modes_of_ddp(rank, ddp):
    """With accumulated and paused passes, and a parameter that is unused."""
    module, modes, prints = Given(), [], []
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    used = [name for name in SHAPES if "find_unused_parameters" not in ddp or name != "b"]
    options = {"options": {"optimizer": optimizer}, "bucket_cap_mb": SMALL_BUCKETS, **ddp}
    with (
        scripted(CODEC, BFLOAT16, CODEC, UNCOMPRESSED),
        attached(module, "auto", **options) as (model, handle),
    ):
        for step in range(18):
            optimizer.zero_grad()
            if "static_graph" not in ddp:  # torch: only in the first step
                with model.no_sync():
                    model(integers(7, rank, 100 + step)).backward()
            model(integers(7, rank, step, used)).backward()
            modes.append(mode_of(handle))
            optimizer.step()
            optimizer.zero_grad()
            with handle.paused():
                model(integers(9, rank, step)).backward()
            optimizer.zero_grad()
            prints.append(fingerprint(module))
    assert {UNCOMPRESSED, BFLOAT16, CODEC} <= set(alike((modes, prints))[0])
    assert len(set(prints)) == len(prints)


# Programs: each is handed the optimizer, two losses to call, and the number of the step.


def _once(optimizer, losses, step):
    optimizer.zero_grad()
    losses[0]().backward()
    optimizer.step()


def _twice(optimizer, losses, step):
    optimizer.zero_grad()
    for each in losses:
        each().backward()
    optimizer.step()


def _by_closure(optimizer, losses, step):
    def closure():
        optimizer.zero_grad()
        loss = losses[0]()
        loss.backward()
        return loss

    optimizer.step(closure)


def _not_finite(optimizer, losses, step):
    """A step whose gradients are not finite is left out."""
    optimizer.zero_grad()
    (losses[0]() * (float("nan") if step % 4 == 3 else 1.0)).backward()
    every = [each for group in optimizer.param_groups for each in group["params"]]
    if all(bool(each.grad.isfinite().all()) for each in every):
        optimizer.step()


def _thrown_away(optimizer, losses, step):
    optimizer.zero_grad()
    losses[0]().backward()
    if step % 3:
        optimizer.step()


PROGRAMS = {
    "once": _once,
    "twice": _twice,
    "by closure": _by_closure,
    "not finite": _not_finite,
    "thrown away": _thrown_away,
}


@pytest.mark.full
@pytest.mark.parametrize("name", PROGRAMS)
@on("two")
def test_programs_that_ddp_runs_go_on(rank, name):
    prints = []
    for auto in (False, True):
        module, modes = network(), []
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        with contextlib.ExitStack() as stack:
            model = DistributedDataParallel(module, bucket_cap_mb=SMALL_BUCKETS)
            if auto:
                stack.enter_context(scripted(CODEC, UNCOMPRESSED, CODEC))
                options = {"optimizer": optimizer, "min_ratio": 0.05}
                handle = gradwire.torch.ddp.attach(model, "auto", **options)
                stack.callback(handle.detach)
            said = stack.enter_context(warnings.catch_warnings(record=True))
            warnings.simplefilter("always", PairingWarning)

            def loss(at, model=model):
                inputs, targets = batch(rank, at)
                return mse_loss(model(inputs), targets)

            for step in range(24):
                losses = [lambda at=2 * step + each: loss(at) for each in range(2)]
                PROGRAMS[name](optimizer, losses, step)
                modes.append(mode_of(handle) if auto else "")
        prints.append(fingerprint(module))
    told = [str(each.message) for each in said if each.category is PairingWarning]
    alike((prints, modes, told))
    if name == "twice":  # updates cannot be added up: the codec is not tried
        assert set(modes) == {UNCOMPRESSED}
        assert prints[0] == prints[1]
        assert "model.no_sync()" in told[0]
    else:
        assert modes[-1] == CODEC
        assert not told


@on("two")
def test_passes_that_begin_to_add_up_with_the_codec_are_an_error_that_says_what_to_do(rank):
    module = network()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    with scripted(CODEC), automatic(module, optimizer, min_ratio=0.05) as (model, _):
        train(model, rank, range(8), optimizer=optimizer)
        inputs, targets = batch(rank, 9)
        optimizer.zero_grad()
        mse_loss(model(inputs), targets).backward()
        with pytest.raises(UpdateError, match=re.escape("model.no_sync()")):
            mse_loss(model(inputs), targets).backward()
        train(model, rank, range(10, 14), optimizer=optimizer)
        alike(fingerprint(module))


# Checkpoints and lost ranks -------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@on("two")
def test_what_is_not_yet_sent_is_not_saved_as_a_setting_and_does_not_outlive_a_restart(
    rank, momentum
):
    module, modes = network(), []
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0, momentum=momentum)
    with (
        scripted(CODEC, UNCOMPRESSED, UNCOMPRESSED),
        automatic(module, optimizer, min_ratio=0.05) as (model, handle),
    ):
        train(model, rank, range(6), optimizer=optimizer)
        assert mode_of(handle) == EVERYTHING
        assert about(handle.state_dict())["schedule"]["setting"] == CODEC
        handle.load_state_dict(None, policy="drop")
        for step in range(8):
            modes.append(mode_of(handle))
            train(model, rank, range(step, step + 1), optimizer=optimizer)
        assert phases(alike(modes)) == [EVERYTHING, UNCOMPRESSED]
        alike(fingerprint(module))


@on("two")
def test_ranks_that_had_decided_differently_go_on_with_the_latest_decision(rank):
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    with scripted(CODEC), automatic(module, optimizer, min_ratio=0.05) as (model, handle):
        train(model, rank, range(8), optimizer=optimizer)
        saved = handle.state_dict()
    (mine,) = saved.values()
    text = json.loads(mine["about"])
    text["step"] = 6 + 4 * rank
    if rank == 0:
        text["schedule"]["setting"] = UNCOMPRESSED
    mine["about"] = json.dumps(text)
    with scripted(), automatic(module, optimizer, min_ratio=0.05) as (model, handle):
        handle.load_state_dict(saved, policy="own")
        assert mode_of(handle) == CODEC
        assert handle.step == 10
        train(model, rank, range(4), optimizer=optimizer)
        alike(fingerprint(module))


def lost_in_a_look(rank):
    """Rank 1 dies as it is about to tell its figures; say what the other sees."""
    module, errors = network(), []
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    model = DistributedDataParallel(module, bucket_cap_mb=SMALL_BUCKETS)
    handle = gradwire.torch.ddp.attach(model, "auto", optimizer=optimizer)
    median = (lambda clock: os._exit(7)) if rank == 1 else (lambda clock: 0.1)
    with mock.patch.object(StepClock, "median", median):
        for step in range(20):
            try:
                train(model, rank, range(step, step + 1), optimizer=optimizer)
            except ExchangeError as error:
                errors.append(str(error))
                if len(errors) == 2:
                    break
    assert "rank 1 has failed, has ended or did not take part" in errors[0]
    assert isinstance(handle.error, ExchangeError)
    assert "broken" in repr(handle)


def test_a_rank_lost_in_a_look_is_an_error_on_the_others(short_lived):
    (kind, seen), other = short_lived.try_run(lost_in_a_look)
    assert other[0] == "died"
    assert kind == "returned", seen


@on("two")
def test_what_does_not_go_with_it_is_refused_by_name(rank):
    model = DistributedDataParallel(network())
    needs = "does not work with {}=, because"
    for wrong, said in (
        ({"optimizer": None}, "needs optimizer="),
        ({"optimizer": torch.optim.SGD}, "optimizer= takes a torch.optim.Optimizer"),
        ({"min_ratio": 100}, "min_ratio must be greater than 0 and at most 1, got 100"),
        ({"min_ratio": 0.0}, "min_ratio must be greater than 0"),
        ({"min_ratio": "0.1"}, "min_ratio"),
        ({"schedule": Accordion(0.1, 0.01)}, needs.format("schedule")),
        ({"schedule": DenseWarmUp(2)}, needs.format("schedule")),
        ({"hierarchy": 2}, needs.format("hierarchy")),
        ({"min_ratio": 0.01 * (1 + rank)}, "rank 1 and rank 0 attached with different codec"),
        (
            {"codec": gradwire.topk(ratio=0.1), "min_ratio": 0.1},
            'min_ratio= is the ratio of the codec of "auto"',
        ),
        ({"codec": "automatic"}, "unknown codec .automatic.; choose from"),
    ):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"optimizer": optimizer, "codec": "auto", **wrong}
        with pytest.raises((TypeError, ValueError), match=said):
            gradwire.torch.ddp.attach(model, options.pop("codec"), **options)
