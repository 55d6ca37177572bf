"""Lightning's own Trainers in two processes, with and without the callback."""

import contextlib
import csv
import importlib
import os
import runpy
import signal
import sys
import time
import warnings
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.torch import ddp
from tests.distributed.ranks import LazyModule, alike, on
from tests.distributed.scenarios.common import about, batch, fingerprint, network, plain
from tests.distributed.scripted import CODEC, ratios, scripted
from tests.trainers.started import as_started_by_torchrun

if find_spec("lightning") is None:
    pytest.skip("these tests need Lightning", allow_module_level=True)

parts = LazyModule("tests.trainers.lightning_parts")
guides = LazyModule("tests.docs.guides")
EXAMPLE = Path(__file__).parents[2] / "examples" / "lightning_callback.py"


@contextlib.contextmanager
def warned(*kinds):
    """The texts of warnings of these kinds, in the end."""
    texts = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield texts
    texts += [str(each.message) for each in seen if issubclass(each.category, kinds)]


def modes():
    """Ways to train, and how many of 12 passes a codec gets."""
    return {
        "ddp": ({}, 12),
        "unused": ({"strategy": "ddp_find_unused_parameters_true"}, 12),
        "static": ({"strategy": parts.buckets(static_graph=True)}, 12),
        "views": ({"strategy": parts.buckets(gradient_as_bucket_view=True)}, 12),
        "validated": ({"val_check_interval": 5}, 12),
        "accumulated": ({"accumulate_grad_batches": 3}, 4),
        "clipped": ({"gradient_clip_val": 0.1}, 12),
        "bfloat16": ({"precision": "bf16-mixed"}, 12),
        # The scaler skips a step, on both ranks, whose loss is not finite on one of them.
        "overflow": ({"plugins": parts.half()}, 11),
    }


ALIKE = ("unused", "static", "views", "validated")
"""Modes that train as "ddp" does."""


@on("lightning_two")
def test_training_is_that_of_ddp_if_nothing_is_lost(rank, size):
    warnings.simplefilter("ignore", ddp.PairingWarning)
    found = {}
    for name in modes():
        for codec in (None, parts.EVERYTHING):
            if codec is None and name in ALIKE:
                continue
            module = parts.Regression(bad=(1, 5) if name == "overflow" else None)
            options, passes = modes()[name]
            prints, compressed = parts.trained(rank, size, module, codec, **options)
            assert compressed == (0 if codec is None else passes), name
            assert found.setdefault("ddp" if name in ALIKE else name, prints) == prints, name
    assert len(set(alike(found).values())) == 5


@on("lightning_two")
def test_two_optimizers_by_hand_train_as_with_ddp(rank, size):
    warnings.simplefilter("ignore", ddp.PairingWarning)
    options = {"strategy": "ddp_find_unused_parameters_true"}
    # A dense codec's frames are never trimmed.
    dense, coded = (
        parts.trained(rank, size, parts.Gan(), codec, **options)
        for codec in (None, gradwire.dense())
    )
    assert alike(coded) == (dense[0], 24)
    callback = parts.Compress()
    parts.trainer(rank, size, callback, **options).fit(parts.Gan())
    assert callback.handle.codec == [gradwire.topk(0.01)] * 2
    assert callback.handle.step == 24


def resume(rank, size, tmp_path):
    """Save in and after an epoch, resume from there, and compare with the run that went on."""

    def run(name, checkpoint=None, epochs=2, checkpoints=True):
        module = parts.Scheduled()
        writer = parts.callbacks.ModelCheckpoint(
            tmp_path / name, every_n_train_steps=5, save_top_k=-1
        )
        warm_up = gradwire.schedule.WarmUp((0.25, 0.05))
        callback = parts.Compress({"*": parts.ADAM}, schedule=warm_up, checkpoints=checkpoints)
        options = {"strategy": parts.buckets(), "max_epochs": epochs}
        made = parts.trainer(rank, size, callback, writer, **options)
        made.fit(module, ckpt_path=checkpoint)
        handle = callback.handle
        found[name] = (fingerprint(module), handle.step, plain(handle.state_dict()))
        return made

    found = {}
    run("whole")
    run("from within", tmp_path / "whole/epoch=0-step=5.ckpt")
    first = run("first", epochs=1)
    first.save_checkpoint(tmp_path / "end.ckpt")
    later = tmp_path / "whole/epoch=1-step=20.ckpt"
    first.test(parts.Regression(), ckpt_path=later, verbose=False)
    run("from the end", tmp_path / "end.ckpt")
    files = tmp_path / "files"
    run("first, in files", epochs=1, checkpoints=files).save_checkpoint(tmp_path / "files.ckpt")
    run("from files", tmp_path / "files.ckpt", checkpoints=files)
    run("from where they were", tmp_path / "files.ckpt")
    whole = found.pop("whole")
    assert whole[1] == 24
    assert found.pop("first") != whole != found.pop("first, in files")
    if [int(each) for each in version("lightning").split(".")[:2]] < [2, 6]:
        del found["from within"]  # earlier ones begin the epoch anew
    assert found == dict.fromkeys(found, whole)


def resume_elsewhere(rank, size, tmp_path):
    """Resume what two ranks saved."""
    saved = torch.load(tmp_path / "end.ckpt", weights_only=True)["gradwire"]
    assert sorted(saved) == ["rank0", "rank1"]
    for policy in ("sum-and-split", "drop"):
        module, warm_up = parts.Scheduled(), gradwire.schedule.WarmUp((0.25, 0.05))
        callback = parts.Compress({"*": parts.ADAM}, policy=policy, schedule=warm_up)
        looking = parts.Looking(callback)
        made = parts.trainer(rank, size, callback, looking, max_epochs=2)
        made.fit(module, ckpt_path=tmp_path / "end.ckpt")
        for name in saved["rank0"]["residual"]:
            old, new = (
                sum(each["residual"][name].double() for each in states.values())
                for states in (saved, looking.states)
            )
            assert old.any()
            expected = old if policy == "sum-and-split" else torch.zeros_like(old)
            torch.testing.assert_close(new, expected, rtol=1e-5, atol=1e-9)
        alike(fingerprint(module))


def test_a_run_resumes_bit_for_bit_also_with_other_ranks(lightning_two, lightning_three, tmp_path):
    lightning_two.run(resume, tmp_path=tmp_path)
    assert sorted(torch.load(tmp_path / "files.ckpt", weights_only=True)["gradwire"]) == ["folder"]
    (last,) = (tmp_path / "files").glob("step=12-*")
    assert sorted(path.name for path in last.iterdir()) == ["gradwire_0.pt", "gradwire_1.pt"]
    lightning_three.run(resume_elsewhere, tmp_path=tmp_path)


@on("lightning_two")
def test_dense_checkpoints_go_in_and_out(rank, size, tmp_path):
    checkpoint = None
    for epochs, name in enumerate(("dense", "coded", "back"), 1):
        module, looking = parts.Scheduled(), parts.Looking()
        callback = [parts.Compress()] if name == "coded" else []
        with warned(Warning) as texts:
            made = parts.trainer(rank, size, *callback, looking, max_epochs=epochs)
            made.fit(module, ckpt_path=checkpoint)
        texts = [each for each in texts if "residuals" in each]
        assert [each.partition("dense.ckpt has no residuals")[1] != "" for each in texts] == [
            True for _ in callback
        ]
        alike(fingerprint(module))
        for each in callback:
            parameters = about(each.handle.state_dict())["parameters"].values()
            steps = {each["state"]["scalars"]["second_moment_steps"] for each in parameters}
            assert steps == {24}  # half of them dense
        checkpoint = tmp_path / f"{name}.ckpt"
        made.save_checkpoint(checkpoint)
    assert looking.held == ({24}, 8)


@on("lightning_two")
def test_figures_are_logged_and_each_fit_has_a_handle(rank, size, tmp_path):
    schedule = gradwire.schedule.Accordion(0.25, 0.05)
    callback = parts.Compress(parts.ADAM, schedule=schedule, rate=True)
    # A metric that never falls below that of the first epoch ends the fit after the second.
    stopping = parts.callbacks.EarlyStopping(
        "gradwire/steps", mode="min", patience=0, check_on_train_epoch_end=True
    )
    logger = parts.CSVLogger(tmp_path, "", "csv")
    options = {"logger": logger, "log_every_n_steps": 5, "max_epochs": 5}
    made = parts.trainer(rank, size, callback, stopping, **options)
    module = parts.adamw()
    handles = []
    for _ in range(2):
        made.fit(module)
        handles.append(callback.handle)
        made.should_stop = False
        made.fit_loop.max_epochs = 9
    assert [each.step for each in handles] == [24, 12]
    assert all("detached" in repr(each) for each in handles)
    assert f"rank {rank} of 2: 12 steps" in str(callback.report())
    if rank == 0:
        with open(tmp_path / "csv" / "metrics.csv") as file:
            rows = [row for row in csv.DictReader(file) if row["gradwire/steps"]]
        assert [row["step"] for row in rows[:4]] == ["4", "9", "14", "19"]
        assert [float(row["gradwire/steps"]) for row in rows[:4]] == [5.0, 10.0, 15.0, 20.0]
        assert all(float(row["gradwire/wire_bytes"]) for row in rows)
        # With sums of squares.
        assert all(float(row["gradwire/compression"]) > 2.5 for row in rows)


@pytest.mark.parametrize("mode", ["clipped", "bfloat16", "float16"])
@on("lightning_two")
def test_one_line_trains_as_a_loop_that_clips_or_scales_by_itself(rank, size, mode):
    module, looped = parts.Scheduled(), network()
    options = {
        "clipped": {"gradient_clip_val": 0.2, "accumulate_grad_batches": 2},
        "bfloat16": {"precision": "bf16-mixed"},
        "float16": {"plugins": parts.half()},
    }
    parts.trainer(rank, size, parts.Compress(), **options[mode]).fit(module)
    # As the guides show it.
    model = DistributedDataParallel(looped)
    optimizer, schedule = parts.scheduled(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=mode == "float16")
    handle = ddp.attach(model, optimizer=optimizer, grad_scaler=scaler)
    passes = 2 if mode == "clipped" else 1
    dtype = torch.float16 if mode == "float16" else torch.bfloat16
    for step in range(12):
        inputs, targets = batch(rank, step)
        with model.no_sync() if mode == "clipped" else contextlib.nullcontext():
            with torch.autocast("cpu", dtype, enabled=mode != "clipped"):
                loss = nn.functional.mse_loss(model(inputs), targets) / passes
            scaler.scale(loss).backward()
        if (step + 1) % passes == 0:
            if mode == "clipped":
                nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            optimizer.zero_grad()
    handle.detach()
    assert alike(fingerprint(module.net)) == fingerprint(looped)


@on("lightning_two")
def test_what_cannot_work_is_refused_on_every_rank(rank, size, tmp_path):
    def refused(match, module, codec, ckpt_path=None, **options):
        with pytest.raises(ValueError, match=match):
            parts.trainer(rank, size, parts.Compress(codec), **options).fit(
                module, ckpt_path=ckpt_path
            )

    made = parts.trainer(rank, size, parts.Compress(parts.ADAM), max_steps=2)
    made.fit(parts.adamw())
    made.save_checkpoint(tmp_path / "end.ckpt")
    unused = {"strategy": "ddp_find_unused_parameters_true"}
    clips, rms = {"gradient_clip_val": 1.0}, parts.Regression(optim.RMSprop)
    other = {"ckpt_path": tmp_path / "end.ckpt", "max_epochs": 2}
    match = "not gradients, and got torch.optim.SGD: use torch.optim.AdamW"
    refused(match, parts.Gan(), parts.ADAM, **unused)
    dgc = gradwire.dgc(ratio=0.05)
    refused(r"the optimizer is torch\.optim\.RMSprop", rms, dgc, **clips)
    scaled = clips | {"plugins": parts.half()}
    refused("there is a loss scaler", parts.adamw(), parts.ADAM, **scaled)
    refused("state_dict", parts.adamw(), parts.EVERYTHING, **other)
    refused("on rank 1 has", parts.Regression(bad=(1, 5)), parts.EVERYTHING)


@on("lightning_two")
def test_what_is_not_compressed_or_checked_is_warned_of(rank, size):
    def said(module, *codec, **options):
        with warned(Warning) as texts:
            fit = parts.trainer(rank, size, parts.Compress(*codec), max_steps=2, **options).fit
            fit(module)
        return [
            each
            for each in texts
            if any(word in each for word in ("compressed", "optimizer=", "RMSprop", "float8"))
        ]

    everything, clips = parts.EVERYTHING, {"gradient_clip_val": 1.0}
    (text,) = said(parts.Regression(), everything, strategy="auto", devices=1)
    assert text.startswith("SingleDeviceStrategy has no Distributed")
    assert "nothing is compressed" in text
    assert said(parts.Gan(), everything, strategy="ddp_find_unused_parameters_true") == []
    assert said(parts.adamw(), **clips) == []
    (text,) = said(parts.Regression(optim.RMSprop), **clips)
    assert "torch.optim.RMSprop is not torch.optim.AdamW" in text
    (text,) = said(parts.adamw(), **clips, plugins=parts.half())
    assert "loss scaler: use bfloat16; so they are sent as gradwire.float8()" in text
    assert said(parts.Regression(), everything, **clips) == []


def missing_column():
    raise KeyError("no such column")


@on("lightning_two")
def test_a_checkpoint_that_an_exception_leaves_resumes_bit_for_bit(rank, size, tmp_path):
    def fit(module, *others, checkpoint=None):
        callback = parts.Compress(parts.ADAM)
        parts.trainer(rank, size, callback, *others).fit(module, ckpt_path=checkpoint)
        return fingerprint(module), callback.handle.step

    with pytest.raises(KeyError):
        fit(parts.adamw(failing=missing_column), parts.callbacks.OnExceptionCheckpoint(tmp_path))
    assert fit(parts.adamw(), checkpoint=tmp_path / "on_exception.ckpt") == fit(parts.adamw())


@on("expendable")
def test_a_rank_that_raises_alone_keeps_nobody_waiting(rank, size):
    module = parts.adamw(failing=missing_column if rank == 1 else None)
    began = time.monotonic()
    with pytest.raises(KeyError if rank == 1 else ddp.ExchangeError):
        parts.trainer(rank, size, parts.Compress(parts.ADAM)).fit(module)
    assert time.monotonic() - began < 150.0  # less than the group's timeout


def lose(rank, size, tmp_path):
    """A rank is killed in a step; the other one writes a checkpoint of the exception."""
    module = parts.adamw(failing=lambda: rank == 0 or os.kill(os.getpid(), signal.SIGKILL))
    writer = parts.callbacks.OnExceptionCheckpoint(tmp_path)
    with warned(RuntimeWarning) as texts, pytest.raises(Exception) as raised:  # noqa: PT011
        parts.trainer(rank, size, parts.Compress(parts.ADAM), writer).fit(module)
    # Lightning's barrier for the checkpoint fails as well.
    assert ddp.ExchangeError in (raised.type, type(raised.value.__context__))
    (text,) = [each for each in texts if "has no residuals" in each]
    assert "those of other ranks are missing" in text


def resume_without(rank, size, tmp_path):
    """Resume from the checkpoint that `lose` has left."""
    checkpoint = tmp_path / "on_exception.ckpt"
    assert "gradwire" not in torch.load(checkpoint, weights_only=True)
    module, callback = parts.adamw(), parts.Compress(parts.ADAM)
    with warned(RuntimeWarning) as texts:
        parts.trainer(rank, size, callback).fit(module, ckpt_path=checkpoint)
    assert any("on_exception.ckpt has no residuals" in each for each in texts)
    assert 0 < callback.handle.step <= 12
    alike(fingerprint(module))


@pytest.mark.full
def test_a_checkpoint_that_a_killed_rank_leaves_has_no_residuals_and_says_so(
    expendable, lightning_two, tmp_path
):
    kinds = expendable.try_run(lose, tmp_path=tmp_path)
    assert [kind for kind, _ in kinds] == ["returned", "died"], kinds
    lightning_two.run(resume_without, tmp_path=tmp_path)


@on("lightning_four")
def test_nodes_of_a_trainer_train_as_in_a_loop_and_resume_also_without_nodes(rank, size, tmp_path):
    looped = network()
    model = DistributedDataParallel(looped)
    optimizer = optim.AdamW(model.parameters(), lr=2e-3)
    handle = ddp.attach(model, parts.ADAM, optimizer=optimizer, hierarchy=2)
    for step in range(12):
        inputs, targets = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    handle.detach()

    def run(checkpoint=None, hierarchy="node", **options):
        """Return the Trainer, a fingerprint, and what all ranks are still to send of a weight."""
        module = parts.adamw()
        callback = parts.Compress(parts.ADAM, hierarchy=hierarchy, **options)
        looking = parts.Looking(callback)
        chosen = {"devices": 2, "num_nodes": 2, "max_epochs": 1 if checkpoint is None else 2}
        made = parts.trainer(rank, size, callback, looking, **chosen)
        made.fit(module, ckpt_path=checkpoint)
        per_node = callback.handle.ranks_per_node
        assert per_node == (1 if hierarchy is None else 2)
        left = [each["residual"]["net.0.weight"] for each in looking.states.values()]
        mass = per_node * sum(float(each.double().sum()) for each in left)
        return made, alike(fingerprint(module.net)), mass

    one, two, files = tmp_path / "one.ckpt", tmp_path / "two.ckpt", tmp_path / "files"
    made, prints, _ = run()
    assert prints == fingerprint(looped)
    made.save_checkpoint(one)
    run(checkpoints=files)[0].save_checkpoint(two)
    _, resumed, mass = run(one, hierarchy=2)
    _, from_files, also = run(two, checkpoints=files)
    _, flat, without = run(one, hierarchy=None)
    _, flat_from_files, too = run(two, hierarchy=None, checkpoints=files)
    assert resumed == from_files != flat == flat_from_files
    assert [mass, without, too] == pytest.approx([also] * 3, rel=1e-4)


@on("expendable")
def test_pytorch_lightning_on_its_own_will_do(rank, size):
    for name in [name for name in sys.modules if name.partition(".")[0] == "lightning"]:
        sys.modules[name] = None  # as if it were not installed
    sys.modules["pytorch_lightning"] = None
    with pytest.raises(ImportError, match=r"pip install 'lightning>=2\.4'"):
        importlib.import_module("gradwire.torch.lightning")

    del sys.modules["pytorch_lightning"]
    compress = importlib.import_module("gradwire.torch.lightning").Compress
    pl = importlib.import_module("pytorch_lightning")
    assert compress.__mro__[1].__module__.startswith("pytorch_lightning.callbacks")

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, indices, index):
            inputs, targets = batch(rank, index)
            return torch.nn.functional.mse_loss(self.net(inputs), targets)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05)

    callback = compress(gradwire.topk(ratio=0.05))
    as_started_by_torchrun(rank, size)
    pl.Trainer(
        accelerator="cpu", devices=size, strategy="ddp", max_steps=6, callbacks=[callback],
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Module(), torch.utils.data.DataLoader(range(24)))  # fmt: skip
    assert callback.handle.step == 6


@on("lightning_two")
def test_a_resumed_run_with_auto_goes_on_with_what_was_chosen(rank, size, tmp_path):
    def run(name, checkpoint=None):
        module, callback = parts.adamw(), parts.Compress("auto", min_ratio=0.05)
        writer = parts.every_five_steps(tmp_path / name)
        with scripted(CODEC):
            options = {"strategy": parts.buckets(), "max_epochs": 2}
            made = parts.trainer(rank, size, callback, writer, **options)
            made.fit(module, ckpt_path=checkpoint)
        assert callback.report().decision.startswith("Using ")
        return alike((fingerprint(module), callback.handle.step, ratios(callback.handle)))

    whole = run("whole")
    assert whole[1] > 12
    assert set(whole[2].values()) == {0.05}
    assert run("rest", tmp_path / "whole/epoch=0-step=10.ckpt") == whole


@on("lightning_two")
def test_auto_in_a_fit_that_clips_decides_on_gradients(rank, size):
    module, callback = parts.adamw(), parts.Compress("auto", min_ratio=0.05)
    with scripted(CODEC):
        parts.trainer(rank, size, callback, gradient_clip_val=0.1).fit(module)
    alike(fingerprint(module))
    assert "Float8" in repr(callback.handle.codec)
    assert callback.report().decision.startswith("Using the codec")


@on("lightning_two")
def test_the_example_trains_and_its_checkpoint_has_all_residuals(rank, size, tmp_path):
    assert len(EXAMPLE.read_text("utf-8").splitlines()) <= 40
    as_started_by_torchrun(rank, size)
    with contextlib.chdir(tmp_path):
        names = runpy.run_path(str(EXAMPLE), run_name="__main__")
        saved = torch.load("end.ckpt", weights_only=True)["gradwire"]
    assert names["compress"].handle.step > 0
    assert sorted(saved) == ["rank0", "rank1"]


@on("lightning_two")
def test_the_guide_works_as_it_shows(rank, size, tmp_path):
    """Each of its fits compresses all passes."""
    as_started_by_torchrun(rank, size)
    steps = []

    def note(names):
        if "compress" in names:
            steps.append(names["compress"].handle.step)

    with contextlib.chdir(tmp_path):
        guides.execute("lightning", note)
    assert steps == [12, 12]
