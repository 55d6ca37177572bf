"""Modules to train, and Trainers in the process group that is there, with gloo between ranks."""

import lightning.pytorch as pl
import torch
from lightning.pytorch import callbacks
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy
from torch import nn, optim

import gradwire
from gradwire.torch.lightning import Compress
from tests.distributed.scenarios.common import SMALL_BUCKETS, batch, fingerprint, network
from tests.trainers.started import as_started_by_torchrun

__all__ = ["CSVLogger", "Compress", "callbacks"]  # for the tests, besides what follows

ADAM = gradwire.adam(ratio=0.05)
EVERYTHING = gradwire.topk(ratio=1.0)
"""With two ranks, training with it is plain training, bit for bit."""


class Regression(pl.LightningModule):
    """A small network; step and rank decide what it learns from, wherever a run is resumed.

    `bad` are rank and step of a loss that is not finite, `failing` of a step that raises.
    """

    def __init__(self, optimizer=torch.optim.SGD, *, bad=None, failing=None, **options):
        super().__init__()
        self.net = network()
        self.optimizer, self.options = optimizer, {"lr": 0.05, **options}
        self.bad, self.fail = bad, failing

    def loss(self, step):
        inputs, targets = batch(self.global_rank, step)
        return nn.functional.mse_loss(self.net(inputs), targets)

    def training_step(self, indices, index):
        step = index + 12 * self.current_epoch
        if self.fail is not None and index == 6:
            self.fail()
        factor = float("inf") if self.bad == (self.global_rank, step) else 1.0
        return factor * self.loss(step)

    def validation_step(self, indices, index):
        self.log("val_loss", self.loss(-1), sync_dist=True)

    test_step = validation_step

    def configure_optimizers(self):
        return self.optimizer(self.parameters(), **self.options)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(range(12 * self.trainer.world_size), batch_size=1)

    def val_dataloader(self):
        return torch.utils.data.DataLoader(range(2), batch_size=1)

    test_dataloader = val_dataloader


def adamw(**options):
    return Regression(optim.AdamW, lr=2e-3, **options)


def scheduled(module):
    """Return torch's AdamW, and a schedule of its learning rate by steps."""
    optimizer = optim.AdamW(module.parameters(), lr=2e-3, weight_decay=0.1)
    return optimizer, optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=60)


class Scheduled(Regression):
    """With both."""

    def configure_optimizers(self):
        optimizer, schedule = scheduled(self)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Gan(Regression):
    """Two optimizers, manual optimization; each leaves the other's parameters alone."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))
        self.critic = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
        del self.net

    def training_step(self, indices, index):
        real, _ = batch(self.global_rank, index)
        for optimizer, sign in zip(self.optimizers(), (1.0, -1.0), strict=True):
            self.toggle_optimizer(optimizer)
            made = self.critic(self.generator(real.flip(0)))
            loss = sign * (self.critic(real).mean() - made.mean())
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def validation_step(self, indices, index):
        pass

    def configure_optimizers(self):
        parts = (self.generator, self.critic)
        return [torch.optim.SGD(each.parameters(), lr=0.01) for each in parts]


class Looking(pl.Callback):
    """Keeps the states of all ranks, and of the optimizer, as training begins with them."""

    def __init__(self, compress=None):
        self.compress = compress

    def on_train_start(self, trainer, pl_module):
        if self.compress is not None:
            self.states = self.compress.handle.gathered_state_dict(None)
        held = trainer.optimizers[0].state.values()
        self.held = {int(each["step"]) for each in held}, len(held)


def trainer(rank, size, *given, **options):
    """A Trainer as torchrun has started it."""
    as_started_by_torchrun(rank, size, size // options.get("num_nodes", 1))
    chosen = {
        "accelerator": "cpu",
        "devices": size,
        "strategy": "ddp",
        "max_epochs": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": False,
    }
    chosen["enable_checkpointing"] = any(isinstance(each, callbacks.Checkpoint) for each in given)
    return pl.Trainer(**chosen | options, callbacks=list(given))


def trained(rank, size, module, codec, **options):
    """What the parameters are after a fit, and how many passes were compressed."""
    compress = [] if codec is None else [Compress(codec)]
    trainer(rank, size, *compress, **options).fit(module)
    return fingerprint(module), compress[0].handle.step if compress else 0


def buckets(**options):
    """Every weight gets a bucket of its own."""
    return DDPStrategy(bucket_cap_mb=SMALL_BUCKETS, **options)


def half():
    """What 16-mixed is on a GPU. On a CPU, the Trainer takes bfloat16 instead."""
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=256.0))


def every_five_steps(folder):
    return callbacks.ModelCheckpoint(folder, every_n_train_steps=5, save_top_k=-1)
