"""Trainer's own loop, with gradwire as a callback."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import gradwire
import gradwire.torch.transformers
from gradwire.torch.ddp import GradientError, PairingWarning
from gradwire.torch.transformers import Compress
from tests.distributed.scenarios.common import about, fingerprint, residuals
from tests.trainers.scenarios.programs import become

STEPS = 6


def language_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 64}
    layers: dict[str, Any] = {
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    return LlamaForCausalLM(LlamaConfig(**sizes, **layers, max_position_embeddings=16))


def texts(number: int, seed: int = 3) -> list[dict[str, torch.Tensor]]:
    """Numbers that count up, from anywhere."""
    random = torch.Generator().manual_seed(seed)
    found = []
    for start in torch.randint(64, (number,), generator=random):
        ids = (start + torch.arange(12)) % 64
        found.append({"input_ids": ids, "labels": ids.clone()})
    return found


def arguments(folder: str, **options: Any) -> TrainingArguments:
    defaults: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "max_steps": STEPS,
        "save_strategy": "steps",
        "save_steps": 3,
        "logging_steps": 1,
        "learning_rate": 0.01,
        "weight_decay": 0.1,
        "report_to": [],
        "disable_tqdm": True,
    }
    return TrainingArguments(folder, use_cpu=True, ddp_backend="gloo", **defaults | options)


def trainer(folder: str, compress: Any, **options: Any) -> Any:
    return Trainer(
        language_model(),
        arguments(folder, **options),
        train_dataset=texts(64),
        eval_dataset=texts(8, seed=4),
        callbacks=[] if compress is None else [compress],
    )


def state_of(compress: Any) -> dict[str, bytes]:
    return {name: each.tobytes() for name, each in residuals(compress.handle).items()}


def resume(rank: int, world_size: int, folder: str, **options: Any) -> dict[str, Any]:
    """Train 6 steps; then resume from the checkpoint of step 3."""
    become(rank, world_size)
    whole: Any = Compress()
    first = trainer(folder, whole, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PairingWarning)
        first.train()
    expected = fingerprint(first.model), state_of(whole)
    whole.handle.detach()

    rest: Any = Compress()
    second = trainer(folder, rest, **options)
    second.train(resume_from_checkpoint=str(Path(folder) / "checkpoint-3"))
    found = fingerprint(second.model), state_of(rest)
    step, schedule = rest.handle.step, rest.handle.report().schedule
    rest.handle.detach()
    return {
        "parameters": found[0] == expected[0],
        "residuals": found[1] == expected[1],
        "left": any(any(each) for each in expected[1].values()),
        "step": step,
        "schedule": schedule,
        "fingerprint": found[0],
        "losses": losses(first),
        "logs": first.state.log_history[0],
        "norms": [each["grad_norm"] for each in first.state.log_history if "loss" in each],
    }


def losses(one: Any) -> list[float]:
    return [each["loss"] for each in one.state.log_history if "loss" in each]


def dense(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Train as users do without a codec, and with one that sends everything."""
    found: dict[str, Any] = {}
    codec = Compress(gradwire.topk(ratio=1.0), min_numel=1)
    for name, callback in (("plain", None), ("all sent", codec)):
        become(rank, world_size)
        one = trainer(f"{folder}/{name}", callback, gradient_accumulation_steps=2)
        one.train()
        found[name] = fingerprint(one.model), losses(one)
    assert codec.handle is not None
    codec.handle.detach()
    return found


def suited(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Train with a Trainer's defaults until little is left to learn, without a codec and with."""
    found: dict[str, Any] = {}
    for name, compress in (("plain", None), ("compressed", Compress())):
        become(rank, world_size)
        one = trainer(folder, compress, max_steps=160, save_strategy="no", logging_steps=20)
        one.train()
        found[name] = losses(one)[-1]
        if compress is not None:
            assert compress.handle is not None
            found["print"] = fingerprint(one.model)
            found["compression"] = compress.handle.metrics()["compression"]
            compress.handle.detach()
    return found


def crossed(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Resume what was trained dense with a codec, and dense again what that has saved."""
    found: dict[Any, Any] = {}

    class Look(TrainerCallback):
        """Keeps what the optimizer has loaded, and stops after three steps."""

        def on_train_begin(self, *args: Any, **given: Any) -> None:
            state = given["optimizer"].state
            found[name, "held"] = {int(state[each]["step"]) for each in state}, len(state)

        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if name != "dense" and state.global_step % 3 == 0:
                control.should_training_stop = True

    checkpoint: str | None = None
    runs: tuple[tuple[str, Any], ...] = (("dense", None), ("coded", Compress()), ("back", None))
    for name, compress in runs:
        become(rank, world_size)
        one = trainer(f"{folder}/{name}", compress, max_steps=12)
        one.add_callback(Look())
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            one.train(resume_from_checkpoint=checkpoint)
        told = [each for each in said if each.category in (RuntimeWarning, PairingWarning)]
        found[name, "said"] = [str(each.message) for each in told]
        found[name, "losses"] = losses(one)
        found[name, "print"] = fingerprint(one.model)
        if compress is not None:
            parameters = about(compress.handle.state_dict())["parameters"].values()
            found["steps"] = {
                each["state"]["scalars"]["second_moment_steps"] for each in parameters
            }
            compress.handle.detach()
        checkpoint = f"{folder}/{name}/checkpoint-{3 if name == 'dense' else 6}"
    found["parameters"] = len(list(one.model.parameters()))
    return found


def again(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Train twice, with a schedule and one kept checkpoint, and resume in the second run."""
    become(rank, world_size)
    schedule = gradwire.schedule.WarmUp((0.5, 0.4, 0.3, 0.2))
    options: dict[str, Any] = {"save_total_limit": 1, "max_steps": -1, "num_train_epochs": 2}
    options |= {"per_device_train_batch_size": 8, "save_steps": 3, "report_to": ["tensorboard"]}
    compress: Any = Compress(gradwire.adam(ratio=0.02), schedule=schedule)
    one = trainer(folder, compress, **options)
    one.train()
    handle, steps = compress.handle, compress.handle.step
    epochs = [epoch_of(compress)]
    one.train()
    same = compress.handle is handle
    epochs.append(epoch_of(compress))
    expected = fingerprint(one.model), state_of(compress), compress.handle.step
    handle.detach()
    torch.distributed.barrier()
    kept = sorted(f"{each.parent.name}/{each.name}" for each in Path(folder).glob("*/gradwire_*"))
    written = scalars(folder) if rank == 0 else set()
    torch.distributed.barrier()

    compress = Compress(gradwire.adam(ratio=0.02), schedule=schedule)
    one = trainer(folder, compress, **options)
    one.train(resume_from_checkpoint=True)  # the last step: nothing is left to train
    epochs.append(epoch_of(compress))
    found = fingerprint(one.model), state_of(compress), compress.handle.step
    one.args.num_train_epochs = 3
    one.train(resume_from_checkpoint=True)
    epochs.append(epoch_of(compress))
    compress.handle.detach()
    return {
        "steps": (steps, expected[2]),
        "same": same,
        "epochs": epochs,
        "kept": kept,
        "resumed": found == expected,
        "after": compress.handle.step,
        "written": written,
    }


def scalars(folder: str) -> set[str]:
    """Return what TensorBoard shows of all runs."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: set[str] = set()
    for file in Path(folder).rglob("events.*"):
        events = EventAccumulator(str(file))
        events.Reload()
        found |= set(events.Tags()["scalars"])
    return found


def epoch_of(compress: Any) -> int:
    return int(about(compress.handle.state_dict())["schedule"]["epoch"])


def save(rank: int, world_size: int, folder: str) -> Any:
    """Leave a checkpoint; return this rank's residuals."""
    become(rank, world_size)
    compress: Any = Compress(gradwire.adam(ratio=0.02))
    trainer(folder, compress, max_steps=3).train()
    left = residuals(compress.handle)
    compress.handle.detach()
    return left


def load(rank: int, world_size: int, folder: str, **options: Any) -> Any:
    """Resume what other processes or nodes saved; return this rank's residuals before a step."""
    become(rank, world_size)
    found = []

    class Look(TrainerCallback):
        def on_epoch_begin(self, *args: Any, **kwargs: Any) -> None:
            found.append(residuals(compress.handle))

    compress: Any = Compress(gradwire.adam(ratio=0.02), **options)
    one = trainer(folder, compress, max_steps=5, save_strategy="no")
    one.add_callback(Look())
    one.train(resume_from_checkpoint=True)
    step = compress.handle.step
    compress.handle.detach()
    return found[0], step, fingerprint(one.model)


def mistakes(rank: int, world_size: int, folder: str) -> dict[str, str]:
    """What users do wrong, and what they are told."""
    become(rank, world_size)
    said = {}

    def tried(name: str, call: Callable[[], Any]) -> None:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                call()
                said[name] = ""
            except (ImportError, TypeError, ValueError, GradientError) as error:
                said[name] = f"{type(error).__name__}: {error}"
        told = [each for each in warned if each.category in (RuntimeWarning, PairingWarning)]
        said[name] += "".join(f" {each.category.__name__}: {each.message}" for each in told)

    adam = gradwire.adam(ratio=0.02)
    other: dict[str, Any] = {"optim": "adafactor", "max_steps": 1}
    tried("steps", lambda: trainer(folder, Compress(adam), **other).train())
    for name, codec, options in (
        ("topk", gradwire.topk(ratio=0.02), {"max_steps": 1}),
        ("other optimizer", None, other),
    ):
        compress: Any = Compress(codec)
        tried(name, trainer(folder, compress, **options).train)
        compress.handle.detach()

    for name, compress in (("scaler", Compress(adam)), ("scaler, no codec", Compress())):
        scaled = trainer(folder, compress, max_steps=1)
        scaled.accelerator.scaler = torch.amp.GradScaler("cpu")  # on a CPU, fp16=True makes none
        tried(name, scaled.train)
    compress.handle.detach()

    # A gradient that is not finite on one rank stops all of them; they may train on.
    compress = Compress(adam)
    one = trainer(folder, compress, max_steps=3)
    usual = one.compute_loss
    one.compute_loss = lambda *args, **kwargs: usual(*args, **kwargs) * (torch.nan if rank else 1)
    tried("not finite", one.train)
    one.compute_loss = usual
    tried("after it", one.train)
    compress.handle.detach()

    last = Path(folder) / "checkpoint-3"
    if rank == 1:
        (last / "gradwire_1.pt").unlink()
    torch.distributed.barrier()
    compress = Compress(adam)
    one = trainer(folder, compress, max_steps=5)
    tried("a file is missing", lambda: one.train(resume_from_checkpoint=str(last)))
    compress.handle.detach()
    torch.distributed.barrier()
    if rank == 0:
        (last / "gradwire_0.pt").unlink()
    torch.distributed.barrier()
    one = trainer(folder, compress, max_steps=4, enable_jit_checkpoint=True)
    tried("no residuals", lambda: one.train(resume_from_checkpoint=str(last)))
    compress.handle.detach()

    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        del os.environ[name]
    AcceleratorState._reset_state(reset_partial_state=True)
    compress = Compress(adam)
    alone = trainer(f"{folder}/{rank}", compress, max_steps=1)
    tried("one process", alone.train)
    said["one process"] += f" {compress.handle}"
    return said
