"""Transformers' Trainer, unmodified: the callback does all of it. And the examples and pages."""

import contextlib
import io
import os
import runpy
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import gradwire
from gradwire.torch.ddp import GradientError, PairingWarning
from tests.distributed.ranks import LazyModule, alike, on, together
from tests.distributed.scenarios.common import about, fingerprint, residuals
from tests.distributed.scripted import BFLOAT16, CODEC, UNCOMPRESSED, ratios, scripted

if find_spec("transformers") is None:
    pytest.skip("these tests need Transformers", allow_module_level=True)

parts = LazyModule("tests.trainers.hugging_parts")
guides = LazyModule("tests.docs.guides")
EXAMPLES = Path(__file__).parents[2] / "examples"
ADAM = gradwire.adam(ratio=0.02)


@contextlib.contextmanager
def warned():
    """The texts of warnings that a user of gradwire is to heed, in the end."""
    texts = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield texts
    heeded = (RuntimeWarning, PairingWarning)
    texts += [str(each.message) for each in seen if each.category in heeded]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_accumulation_steps": 2, "bf16": True, "eval_strategy": "steps", "eval_steps": 2},
        {"max_grad_norm": 0.0, "num_train_epochs": 1.5, "max_steps": -1},
    ],
    ids=["clipped", "accumulated", "epochs"],
)
@on("hugging_two")
def test_training_resumes_bit_for_bit(rank, size, tmp_path, options):
    parts.become(rank, size)
    whole, rest = parts.Compress(), parts.Compress()
    first, second = (parts.trainer(tmp_path, each, **options) for each in (whole, rest))
    with warnings.catch_warnings():
        warnings.simplefilter("error", PairingWarning)
        first.train()
    expected = parts.end(first, whole)
    assert any(any(each) for each in expected[1].values())
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    schedule = rest.handle.report().schedule
    assert schedule.endswith("epoch 0: ratio 0.02"), "the codec's ratio is 0.01"
    assert parts.end(second, rest)[:2] == expected[:2]
    alike(expected[0])
    losses = parts.losses(first)
    assert losses[-1] < losses[0] - 0.1
    assert first.state.log_history[0]["gradwire/compression"] > 10
    # What Trainer clips are gradients, of each rank its own, or the update that all have in common.
    norms = [each["grad_norm"] for each in first.state.log_history if "loss" in each]
    one, other = together(norms)
    assert (one != other) == (options.get("max_grad_norm") != 0.0)


@on("hugging_two")
def test_a_codec_that_sends_everything_trains_as_without(rank, size, tmp_path):
    found = []
    codec = parts.Compress(gradwire.topk(ratio=1.0), min_numel=1)
    for callback in (None, codec):
        parts.become(rank, size)
        one = parts.trainer(tmp_path / str(len(found)), callback, gradient_accumulation_steps=2)
        one.train()
        found.append((fingerprint(one.model), parts.losses(one)))
    codec.handle.detach()
    assert found[0] == found[1]


@pytest.mark.full
@on("hugging_two")
def test_with_a_trainers_defaults_it_trains_as_well_as_without(rank, size, tmp_path):
    """Until little is left to learn."""
    last = []
    for compress in (None, parts.Compress()):
        parts.become(rank, size)
        options = {"max_steps": 160, "save_strategy": "no", "logging_steps": 20}
        one = parts.trainer(tmp_path, compress, **options)
        one.train()
        last.append(parts.losses(one)[-1])
    alike((last, fingerprint(one.model)))
    assert compress.handle.metrics()["compression"] > 10
    compress.handle.detach()
    assert last[1] < 1.1 * last[0] < 0.02  # losses, 4.2 in the first step


@on("hugging_two")
def test_dense_checkpoints_go_in_and_out(rank, size, tmp_path):
    held, losses = {}, {}

    class Look(parts.TrainerCallback):
        """Keeps what the optimizer has loaded, and stops after three steps."""

        def on_train_begin(self, *args, optimizer, **kwargs):
            state = optimizer.state.values()
            held[name] = {int(each["step"]) for each in state}, len(state)

        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = name != "dense" and state.global_step % 3 == 0

    checkpoint = None
    for name, last in (("dense", 3), ("coded", 6), ("back", 9)):
        parts.become(rank, size)
        compress = parts.Compress() if name == "coded" else None
        one = parts.trainer(tmp_path / name, compress, max_steps=12)
        one.add_callback(Look())
        with warned() as texts:
            one.train(resume_from_checkpoint=checkpoint)
        losses[name] = parts.losses(one)
        alike(fingerprint(one.model))
        if compress is None:
            assert texts == []
        else:
            (text,) = texts
            assert "checkpoint-3 has no residuals" in text
            parameters = about(compress.handle.state_dict())["parameters"].values()
            steps = {each["state"]["scalars"]["second_moment_steps"] for each in parameters}
            assert steps == {6}  # three of them dense
            compress.handle.detach()
        checkpoint = str(tmp_path / name / f"checkpoint-{last}")
    assert held["back"] == ({6}, len(list(one.model.parameters())))
    assert losses["back"][3] == losses["dense"][3]
    assert losses["back"][-1] < losses["back"][3] - 0.2


def epoch_of(compress):
    return int(about(compress.handle.state_dict())["schedule"]["epoch"])


@on("hugging_two")
def test_training_again_goes_on_with_residuals_and_epochs(rank, size, tmp_path):
    """With a schedule and one kept checkpoint, resumed in the second run."""
    parts.become(rank, size)
    schedule = gradwire.schedule.WarmUp((0.5, 0.4, 0.3, 0.2))
    options = {"save_total_limit": 1, "max_steps": -1, "num_train_epochs": 2}
    options |= {"per_device_train_batch_size": 8, "save_steps": 3, "report_to": ["tensorboard"]}
    compress = parts.Compress(ADAM, schedule=schedule)
    one = parts.trainer(tmp_path, compress, **options)
    one.train()
    handle = compress.handle
    assert (handle.step, epoch_of(compress)) == (8, 1)
    one.train()  # two epochs more
    assert compress.handle is handle
    assert (handle.step, epoch_of(compress)) == (16, 3)
    expected = parts.end(one, compress)
    torch.distributed.barrier()
    there = sorted(f"{each.parent.name}/{each.name}" for each in tmp_path.glob("*/gradwire_*"))
    assert there == ["checkpoint-8/gradwire_0.pt", "checkpoint-8/gradwire_1.pt"]
    if rank == 0:
        assert {"train/loss", "train/gradwire/compression"} <= scalars(tmp_path)
    torch.distributed.barrier()

    compress = parts.Compress(ADAM, schedule=schedule)
    one = parts.trainer(tmp_path, compress, **options)
    one.train(resume_from_checkpoint=True)  # the last step: nothing is left to train
    assert epoch_of(compress) == 3
    found = fingerprint(one.model), parts.bits_left(compress.handle), compress.handle.step
    assert found == expected
    one.args.num_train_epochs = 3
    one.train(resume_from_checkpoint=True)
    assert epoch_of(compress) == 4
    compress.handle.detach()
    assert compress.handle.step == 20


def scalars(folder):
    """Return what TensorBoard shows of all runs."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = set()
    for file in folder.rglob("events.*"):
        events = EventAccumulator(str(file))
        events.Reload()
        found |= set(events.Tags()["scalars"])
    return found


def save(rank, size, tmp_path):
    """Leave a checkpoint; return this rank's residuals."""
    parts.become(rank, size)
    compress = parts.Compress(ADAM)
    parts.trainer(tmp_path, compress, max_steps=3).train()
    left = residuals(compress.handle)
    compress.handle.detach()
    return left


def load(rank, size, tmp_path, **options):
    """Resume what other processes or nodes saved; return this rank's residuals before a step."""
    parts.become(rank, size)
    found = []

    class Look(parts.TrainerCallback):
        def on_epoch_begin(self, *args, **kwargs):
            found.append(residuals(compress.handle))

    compress = parts.Compress(ADAM, **options)
    one = parts.trainer(tmp_path, compress, max_steps=5, save_strategy="no")
    one.add_callback(Look())
    one.train(resume_from_checkpoint=True)
    prints, _, steps = parts.end(one, compress)
    assert steps == 5
    alike(prints)
    return found[0]


def test_other_processes_and_nodes_continue_with_the_residuals_of_two(
    hugging_two, hugging_three, tmp_path
):
    old = hugging_two.run(save, tmp_path=tmp_path)
    new = hugging_three.run(load, tmp_path=tmp_path)
    # As many processes as saved, but as one node: each has a share of what the node has to send.
    halves = hugging_two.run(load, tmp_path=tmp_path, hierarchy=2)
    for name in old[0]:
        total = sum(each[name].astype(np.float64) for each in old)
        assert total.any()
        for left in new:
            np.testing.assert_array_equal(left[name], (total / 3).astype(np.float32))
        joined = np.concatenate([each[name] for each in halves])
        np.testing.assert_allclose(joined, total / 2, atol=1e-7)


@pytest.mark.full
@on("hugging_two")
def test_mistakes_are_told(rank, size, tmp_path):
    def trainer(codec, **options):
        compress = parts.Compress(codec)
        return compress, parts.trainer(tmp_path, compress, **{"max_steps": 1, **options})

    def warns(match, codec, scaler=None, **options):
        compress, one = trainer(codec, **options)
        if scaler is not None:
            one.accelerator.scaler = scaler
        with pytest.warns(PairingWarning, match=match):
            one.train()
        compress.handle.detach()

    parts.become(rank, size)
    scaler = torch.amp.GradScaler("cpu")  # on a CPU, fp16=True makes none
    match = r"because the optimizer is transformers\.optimization\.Adafactor"
    with pytest.raises(ValueError, match=match):
        trainer(ADAM, optim="adafactor")[1].train()
    warns(r"torch\.optim\.AdamW has a first moment", gradwire.topk(ratio=0.02))
    match = r"^transformers\.optimization\.Ada.*gradients are sent as gradwire\.float8\(\)"
    warns(match, None, optim="adafactor")
    _, one = trainer(ADAM)
    one.accelerator.scaler = scaler
    with pytest.raises(ValueError, match="because there is a loss scaler: use bfloat16"):
        one.train()
    warns("^gradients cannot be clipped", None, scaler)

    # A gradient that is not finite on one rank stops all of them; they may train on.
    compress, one = trainer(ADAM, max_steps=3)
    usual = one.compute_loss
    one.compute_loss = lambda *args, **kwargs: usual(*args, **kwargs) * (torch.nan if rank else 1)
    with pytest.raises(GradientError, match=r"the gradient of 'model\.embed_tokens"):
        one.train()
    one.compute_loss = usual
    with warned() as texts:
        one.train()
    assert texts == []
    compress.handle.detach()

    last = tmp_path / "checkpoint-3"
    if rank == 1:
        (last / "gradwire_1.pt").unlink()
    torch.distributed.barrier()
    compress, one = trainer(ADAM, max_steps=5)
    match = r"rank 1 cannot read its residuals.*there is no gradwire_1\.pt"
    with pytest.raises(ValueError, match=match):
        one.train(resume_from_checkpoint=str(last))
    compress.handle.detach()
    torch.distributed.barrier()
    if rank == 0:
        (last / "gradwire_0.pt").unlink()
    torch.distributed.barrier()
    compress, one = trainer(ADAM, max_steps=4, enable_jit_checkpoint=True)
    with warned() as texts:
        one.train(resume_from_checkpoint=str(last))
    assert any("checkpoints of enable_jit_checkpoint" in each for each in texts)
    assert any("checkpoint-3 has no residuals" in each for each in texts)
    compress.handle.detach()

    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        del os.environ[name]
    parts.AcceleratorState._reset_state(reset_partial_state=True)
    compress = parts.Compress(ADAM)
    alone = parts.trainer(tmp_path / str(rank), compress, max_steps=1)
    with pytest.warns(RuntimeWarning, match="there is only one process"):
        alone.train()
    assert compress.handle is None


@on("hugging_two")
def test_with_auto_a_trainer_that_clips_resumes(rank, size, tmp_path):
    """What is decided is scripted. The codec sends gradients, and has no ratio."""
    found = []
    for checkpoint in (None, str(tmp_path / "checkpoint-9")):
        parts.become(rank, size)
        compress = parts.Compress("auto")
        # Over by step 9.
        with scripted(*(() if checkpoint else (BFLOAT16, UNCOMPRESSED))):
            one = parts.trainer(tmp_path, compress, max_steps=12)
            one.train(resume_from_checkpoint=checkpoint)
        if checkpoint is None:
            assert compress.handle.report().decision.startswith("Using ")
            assert parts.losses(one)[-1] < parts.losses(one)[0]
        found.append(parts.end(one, compress)[0])
    assert alike(found[0]) == found[1]


@on("hugging_two")
def test_with_auto_a_trainer_that_does_not_clip_is_told_of_no_changed_gradients(
    rank, size, tmp_path
):
    parts.become(rank, size)
    compress = parts.Compress("auto")
    with scripted(CODEC), warnings.catch_warnings():
        warnings.simplefilter("error", PairingWarning)
        parts.trainer(tmp_path, compress, max_grad_norm=0.0, max_steps=12).train()
    assert any(each is not None for each in ratios(compress.handle).values())
    compress.handle.detach()


@pytest.mark.parametrize("name", ["accelerate_train", "transformers_train", "torchrun_elastic"])
def test_an_example_has_at_most_forty_lines(name):
    assert len((EXAMPLES / f"{name}.py").read_text("utf-8").splitlines()) <= 40


@pytest.mark.parametrize(
    ("name", "first", "then"),
    [("accelerate_train", (1, 16), 2), ("transformers_train", (20, 20), 30)],
)
@on("hugging_two")
def test_an_example_goes_on_where_it_was(rank, size, tmp_path, name, first, then):
    """Its second argument is a number of epochs, or of steps."""

    def run(until):
        parts.become(rank, size)
        sys.argv = [name, str(tmp_path), str(until)]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return out.getvalue() if rank == 0 else ""

    until, steps = first
    said, again = run(until), run(then)
    if rank == 0:
        assert f"gradwire, rank 0 of 2: {steps} steps" in said
        if name == "accelerate_train":
            assert "epoch 1: loss" in said
            assert "epoch 1: loss" not in again
            assert "epoch 2: loss" in again
        else:
            assert "gradwire, rank 0 of 2: 10 steps" in again
            assert (tmp_path / "checkpoint-30" / "gradwire_1.pt").exists()


@pytest.mark.parametrize(("name", "blocks"), [("accelerate", 4), ("transformers", 2)])
@on("hugging_two")
def test_the_blocks_of_a_page_run(rank, size, tmp_path, name, blocks):
    parts.become(rank, size)
    with contextlib.chdir(tmp_path), warnings.catch_warnings():
        warnings.simplefilter("error", PairingWarning)
        guides.execute(name)
    assert sum(1 for _ in guides.blocks(name)) == blocks


class Several(torch.optim.Optimizer):
    """Steps others, as people write it for a Trainer."""

    def __init__(self, optimizers):
        self.optimizers = optimizers
        super().__init__([each for one in optimizers for each in one.param_groups], {})

    def step(self, closure=None):
        for each in self.optimizers:
            each.step()


@pytest.mark.parametrize("norm", [0.0, 1.0])
@on("hugging_two")
def test_several_optimizers_in_one_have_a_codec_each(rank, size, tmp_path, norm):
    parts.become(rank, size)
    compress = parts.Compress()
    one = parts.trainer(tmp_path, compress, max_grad_norm=norm, save_strategy="no")
    matrices = [each for each in one.model.parameters() if each.ndim == 2]
    others = [each for each in one.model.parameters() if each.ndim != 2]
    made = [torch.optim.SGD(matrices, lr=0.5, momentum=0.9), torch.optim.AdamW(others, lr=0.01)]
    one.optimizer = Several(made)
    with warned() as texts:
        one.train()
    assert texts == []
    assert compress.handle.codec == [gradwire.dgc(0.01), gradwire.adam(0.01)]
    assert compress.handle.step == 6
    assert compress.handle.report().compression > 1.5
    losses = parts.losses(one)
    assert losses[-1] < losses[0]
    alike(parts.end(one, compress)[0])
