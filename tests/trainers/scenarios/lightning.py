"""Real Trainers on every rank, in one process group, with gloo between them."""

import contextlib
import os
import runpy
import time
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.torch import ddp
from gradwire.torch.lightning import Compress
from tests.distributed.scenarios.common import (
    SMALL_BUCKETS,
    about,
    batch,
    fingerprint,
    network,
    plain,
)
from tests.docs.guides import execute
from tests.trainers.scenarios.started import as_started_by_torchrun

ADAM = gradwire.adam(ratio=0.05)
EVERYTHING = gradwire.topk(ratio=1.0)
"""With two ranks, training with it is plain training, bit for bit."""


class Regression(pl.LightningModule):
    """A small network; step and rank decide what it learns from, wherever a run is resumed."""

    def __init__(self, optimizer: Any = torch.optim.SGD, bad: Any = None, **options: Any) -> None:
        super().__init__()
        self.net = network()
        self.optimizer, self.options = optimizer, {"lr": 0.05, **options}
        self.bad: tuple[int, int] | None = bad
        """Rank and step of a loss that is not finite."""

    def loss(self, step: int) -> torch.Tensor:
        inputs, targets = batch(self.global_rank, step)
        return nn.functional.mse_loss(self.net(inputs), targets)

    def training_step(self, indices: Any, index: int) -> torch.Tensor:
        step = index + 12 * self.current_epoch
        factor = float("inf") if self.bad == (self.global_rank, step) else 1.0
        return factor * self.loss(step)

    def validation_step(self, indices: Any, index: int) -> None:
        self.log("val_loss", self.loss(-1), sync_dist=True)

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        return self.optimizer(self.parameters(), **self.options)

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(range(12 * self.trainer.world_size), batch_size=1)  # type: ignore[arg-type]

    def val_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(range(2), batch_size=1)  # type: ignore[arg-type]

    test_dataloader = val_dataloader


def scheduled(module: nn.Module) -> tuple[Any, Any]:
    """Return torch's AdamW, and a schedule of its learning rate by steps."""
    optimizer = optim.AdamW(module.parameters(), lr=2e-3, weight_decay=0.1)
    return optimizer, optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=60)


class Scheduled(Regression):
    """With both."""

    def configure_optimizers(self) -> Any:
        optimizer, schedule = scheduled(self)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Gan(Regression):
    """Two optimizers, manual optimization; each leaves the other's parameters alone."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))
        self.critic = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
        del self.net

    def training_step(self, indices: Any, index: int) -> None:  # type: ignore[override]
        real, _ = batch(self.global_rank, index)
        for optimizer, sign in zip(self.optimizers(), (1.0, -1.0), strict=True):
            self.toggle_optimizer(optimizer)
            made = self.critic(self.generator(real.flip(0)))
            loss = sign * (self.critic(real).mean() - made.mean())
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def validation_step(self, indices: Any, index: int) -> None:
        pass

    def configure_optimizers(self) -> Any:
        parts = (self.generator, self.critic)
        return [torch.optim.SGD(each.parameters(), lr=0.01) for each in parts]


def trainer(rank: int, world_size: int, *callbacks: Any, **options: Any) -> pl.Trainer:
    """A Trainer in the process group that is there, as one that torchrun has started."""
    as_started_by_torchrun(rank, world_size, world_size // options.get("num_nodes", 1))
    chosen = {"accelerator": "cpu", "devices": world_size, "strategy": "ddp", "max_epochs": 1}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    quiet |= {
        "enable_checkpointing": any(isinstance(one, pl.callbacks.Checkpoint) for one in callbacks)
    }
    return pl.Trainer(**{**chosen, **quiet, **options}, callbacks=list(callbacks))


def buckets(**options: Any) -> DDPStrategy:
    """Every weight gets a bucket of its own."""
    return DDPStrategy(bucket_cap_mb=SMALL_BUCKETS, **options)


def half() -> MixedPrecision:
    """What 16-mixed is on a GPU. On a CPU, the Trainer takes bfloat16 instead."""
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=256.0))


MODES: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp"},
    "unused": {"strategy": "ddp_find_unused_parameters_true"},
    "static": {"strategy": lambda: buckets(static_graph=True)},
    "views": {"strategy": lambda: buckets(gradient_as_bucket_view=True)},
    "accumulated": {"accumulate_grad_batches": 3},
    "clipped": {"gradient_clip_val": 0.1},
    "bfloat16": {"precision": "bf16-mixed"},
    "validated": {"val_check_interval": 5},
    "overflow": {"plugins": lambda: half()},
}


ALIKE = ("unused", "static", "views", "validated")
"""Modes that train as "ddp" does."""


def as_plain(rank: int, world_size: int) -> dict[str, Any]:
    """Train in every mode without a callback, and with one that loses nothing."""
    found: dict[str, Any] = {}
    for name, options in MODES.items():
        bad = (1, 5) if name == "overflow" else None
        found[name] = [
            found["ddp"][0]
            if name in ALIKE and codec is None
            else _trained(rank, world_size, Regression(bad=bad), options, codec)
            for codec in (None, EVERYTHING)
        ]
    return found


def gan(rank: int, world_size: int) -> Any:
    """Train with two optimizers in one module. A dense codec's frames are never trimmed."""
    options = {"strategy": "ddp_find_unused_parameters_true"}
    return [_trained(rank, world_size, Gan(), options, codec) for codec in (None, gradwire.dense())]


def _trained(
    rank: int, world_size: int, module: Any, options: dict[str, Any], codec: Any
) -> tuple[str, int]:
    """What the parameters are afterwards, and how many passes were compressed."""
    made = {key: value() if callable(value) else value for key, value in options.items()}
    callbacks = [] if codec is None else [Compress(codec)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ddp.PairingWarning)
        trainer(rank, world_size, *callbacks, **made).fit(module)
    handle = callbacks[0].handle if callbacks else None
    return fingerprint(module), 0 if handle is None else handle.step


class Looking(pl.Callback):
    """Keeps the states of all ranks, as training begins with them."""

    def __init__(self, compress: Compress) -> None:
        self.compress = compress
        self.states: Any = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        assert self.compress.handle is not None
        self.states = self.compress.handle.gathered_state_dict(None)


def resumed(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Save in and after an epoch, resume from there, and compare with the run that went on."""
    found: dict[str, Any] = {}

    def run(
        name: str, checkpoint: str | None = None, epochs: int = 2, checkpoints: Any = True
    ) -> pl.Trainer:
        module = Scheduled()
        writer = ModelCheckpoint(f"{folder}/{name}", every_n_train_steps=5, save_top_k=-1)
        warm_up = gradwire.schedule.WarmUp((0.25, 0.05))
        callback = Compress({"*": ADAM}, schedule=warm_up, checkpoints=checkpoints)
        made = trainer(rank, world_size, callback, writer, strategy=buckets(), max_epochs=epochs)
        made.fit(module, ckpt_path=checkpoint)
        handle = callback.handle
        assert handle is not None
        found[name] = (fingerprint(module), handle.step, plain(handle.state_dict()))
        return made

    run("whole")
    run("from within", f"{folder}/whole/epoch=0-step=5.ckpt")
    first = run("first", epochs=1)
    first.save_checkpoint(f"{folder}/end.ckpt")
    first.test(Regression(), ckpt_path=f"{folder}/whole/epoch=1-step=20.ckpt", verbose=False)
    run("from the end", f"{folder}/end.ckpt")
    files = f"{folder}/files"
    run("first, in files", epochs=1, checkpoints=files).save_checkpoint(f"{folder}/files.ckpt")
    run("from files", f"{folder}/files.ckpt", checkpoints=files)
    run("from where they were", f"{folder}/files.ckpt")
    return found


def elsewhere(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Resume what two ranks saved with another number of them."""
    found: dict[str, Any] = {}
    for policy in ("sum-and-split", "drop"):
        module = Scheduled()
        callback = Compress(
            {"*": ADAM}, policy=policy, schedule=gradwire.schedule.WarmUp((0.25, 0.05))
        )
        looking = Looking(callback)
        made = trainer(rank, world_size, callback, looking, max_epochs=2)
        made.fit(module, ckpt_path=f"{folder}/end.ckpt")
        sums = {
            name: sum(saved["residual"][name].double() for saved in looking.states.values())
            for name in looking.states["rank0"]["residual"]
        }
        found[policy] = {name: value.numpy() for name, value in sums.items()}
        found[f"{policy}, trained"] = fingerprint(module)
    return found


def crossed(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Resume what was trained dense with a codec, and dense again what that has saved."""
    found: dict[Any, Any] = {}

    class Look(pl.Callback):
        """Keeps what the optimizer has loaded."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            state = trainer.optimizers[0].state.values()
            found[name, "held"] = {int(each["step"]) for each in state}, len(state)

    checkpoint = None
    for epochs, name in enumerate(("dense", "coded", "back"), 1):
        module = Scheduled()
        callbacks: list[Any] = [Compress()] if name == "coded" else []
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            made = trainer(rank, world_size, *callbacks, Look(), max_epochs=epochs)
            made.fit(module, ckpt_path=checkpoint)
        found[name, "said"] = [str(each.message) for each in said if "residuals" in str(each)]
        found[name, "print"] = fingerprint(module)
        if callbacks:
            parameters = about(callbacks[0].handle.state_dict())["parameters"].values()
            states = [each["state"]["scalars"] for each in parameters]
            found["steps"] = {each["second_moment_steps"] for each in states}
        checkpoint = f"{folder}/{name}.ckpt"
        made.save_checkpoint(checkpoint)
    return found


def logged(rank: int, world_size: int, folder: str) -> Any:
    """Fit twice with a logger, and with a callback that stops early."""
    callback = Compress(ADAM, schedule=gradwire.schedule.Accordion(0.25, 0.05), rate=True)
    made = trainer(
        rank,
        world_size,
        callback,
        EarlyStopping("gradwire/steps", mode="min", patience=0, check_on_train_epoch_end=True),
        logger=CSVLogger(folder, name="", version="csv"),
        log_every_n_steps=5,
        max_epochs=5,
    )
    module = Regression(optim.AdamW, lr=2e-3)
    handles = []
    for _ in range(2):
        made.fit(module)
        handles.append(callback.handle)
        made.should_stop = False
        made.fit_loop.max_epochs = 9
    report = callback.report()
    return {
        "steps": [each.step for each in handles if each is not None],
        "detached": ["detached" in repr(each) for each in handles],
        "epoch": made.current_epoch,
        "report": (report.steps, str(report)),
    }


def one_line(rank: int, world_size: int) -> Any:
    """Train with no more than ``Compress()``, and in a loop as the guides show it."""
    found = {}
    modes: dict[str, dict[str, Any]] = {
        "clipped": {"gradient_clip_val": 0.2, "accumulate_grad_batches": 2},
        "bfloat16": {"precision": "bf16-mixed"},
        "float16": {"plugins": half()},
    }
    for name, options in modes.items():
        module = Scheduled()
        trainer(rank, world_size, Compress(), **options).fit(module)
        found[name] = fingerprint(module.net), _looped(rank, name)
    return found


def _looped(rank: int, name: str) -> str:
    looped = network()
    model = DistributedDataParallel(looped)
    optimizer, schedule = scheduled(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=name == "float16")
    handle = ddp.attach(model, optimizer=optimizer, grad_scaler=scaler)
    passes = 2 if name == "clipped" else 1
    dtype = torch.float16 if name == "float16" else torch.bfloat16
    for step in range(12):
        inputs, targets = batch(rank, step)
        with model.no_sync() if name == "clipped" else contextlib.nullcontext():
            with torch.autocast("cpu", dtype, enabled=name != "clipped"):
                loss = nn.functional.mse_loss(model(inputs), targets) / passes
            scaler.scale(loss).backward()
        if (step + 1) % passes == 0:
            if name == "clipped":
                nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            optimizer.zero_grad()
    handle.detach()
    return fingerprint(looped)


def refused(rank: int, world_size: int, folder: str) -> dict[str, str]:
    """Fits that cannot do what they are asked to, and what they say."""

    def steps(
        module: pl.LightningModule, callback: Compress, ckpt_path: Any = None, **options: Any
    ) -> str:
        try:
            trainer(rank, world_size, callback, **options).fit(module, ckpt_path=ckpt_path)
        except ValueError as error:
            return str(error)
        return "trained"

    other = {"ckpt_path": f"{folder}/end.ckpt", "max_epochs": 2}
    unused = {"strategy": "ddp_find_unused_parameters_true"}
    made = trainer(rank, world_size, Compress(ADAM), max_steps=2)
    made.fit(Regression(optim.AdamW, lr=2e-3))
    made.save_checkpoint(f"{folder}/end.ckpt")
    late = Compress(gradwire.dgc(ratio=0.05))
    clips = {"gradient_clip_val": 1.0}
    return {
        "two optimizers": steps(Gan(), Compress(ADAM), **unused),
        "another optimizer": steps(Regression(torch.optim.RMSprop), late, **clips),
        "a scaler": steps(Regression(optim.AdamW), Compress(ADAM), plugins=half(), **clips),
        "another codec": steps(Regression(optim.AdamW), Compress(EVERYTHING), **other),
        "not finite": steps(Regression(bad=(1, 5)), Compress(EVERYTHING)),
    }


def warned(rank: int, world_size: int) -> dict[str, list[str]]:
    """What is warned of, and by which class of warnings."""
    found: dict[str, list[str]] = {}

    def run(name: str, module: Any, callback: Compress, **options: Any) -> None:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            trainer(rank, world_size, callback, max_steps=2, **options).fit(module)
        found[name] = [
            f"{each.category.__name__}: {each.message}"
            for each in seen
            if "compressed" in str(each.message) or each.category is ddp.PairingWarning
        ]

    unused = {"strategy": "ddp_find_unused_parameters_true"}
    run("one device", Regression(), Compress(EVERYTHING), strategy="auto", devices=1)
    run("two optimizers", Gan(), Compress(EVERYTHING), **unused)
    adamw = Regression(optim.AdamW, lr=1e-3)
    run("clipping first", adamw, Compress(), gradient_clip_val=1.0)
    rms = Regression(torch.optim.RMSprop)
    run("another optimizer", rms, Compress(), gradient_clip_val=1.0)
    run("a scaler", adamw, Compress(), gradient_clip_val=1.0, plugins=half())
    run("nothing", Regression(), Compress(EVERYTHING), gradient_clip_val=1.0)
    return found


def failing(rank: int, world_size: int, folder: str, alone: bool) -> dict[str, Any]:
    """Raise in the training step, on one rank or on both; write a checkpoint then."""

    class Failing(Regression):
        def training_step(self, indices: Any, index: int) -> torch.Tensor:
            if index == 6 and (rank == 1 or not alone):
                raise KeyError("no such column")
            return super().training_step(indices, index)

    callback = Compress(ADAM)
    writer = [] if alone else [OnExceptionCheckpoint(folder)]
    made = trainer(rank, world_size, callback, *writer)
    began = time.monotonic()
    try:
        made.fit(Failing(optim.AdamW, lr=2e-3))
    except Exception as error:
        raised = type(error).__name__
    seconds = time.monotonic() - began
    again: tuple[Any, ...] = ()
    if not alone:
        module, callback = Regression(optim.AdamW, lr=2e-3), Compress(ADAM)
        trainer(rank, world_size, callback).fit(module, ckpt_path=f"{folder}/on_exception.ckpt")
        assert callback.handle is not None
        again = (fingerprint(module), callback.handle.step)
        module = Regression(optim.AdamW, lr=2e-3)
        trainer(rank, world_size, Compress(ADAM)).fit(module)
        again = (*again, fingerprint(module))
    return {"raised": raised, "seconds": seconds, "again": again}


def example(rank: int, world_size: int, path: str, folder: str) -> dict[str, Any]:
    """Run the example as it is, in this process."""
    as_started_by_torchrun(rank, world_size)
    os.chdir(folder)
    names = runpy.run_path(path, run_name="__main__")
    handle = names["compress"].handle
    saved = torch.load("end.ckpt", weights_only=True)["gradwire"]
    return {"steps": handle.step, "saved": sorted(saved)}


def page(rank: int, world_size: int, folder: str) -> list[int]:
    """Run what the guide shows; return how many passes each fit compressed."""
    as_started_by_torchrun(rank, world_size)
    os.chdir(folder)
    found: list[int] = []

    def note(names: dict[str, Any]) -> None:
        if "compress" in names:
            found.append(names["compress"].handle.step)

    execute("lightning", note)
    return found
