"""Accelerate's own loop, and Transformers' Trainer, as torchrun has started them."""

import contextlib
import warnings

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import GradientAccumulationPlugin, ProjectConfiguration
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from gradwire.torch.accelerate import attach
from gradwire.torch.ddp import PairingWarning
from gradwire.torch.transformers import Compress
from tests.distributed.scenarios.common import bits_left, fingerprint, network
from tests.trainers.started import as_started_by_torchrun

__all__ = ["Compress", "GradientAccumulationPlugin", "ProjectConfiguration", "TrainerCallback"]
UPDATES = 6


def become(rank, size):
    """Have the variables that torchrun sets, and let Accelerate forget an earlier program."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    as_started_by_torchrun(rank, size)


def dataset(batches):
    random = torch.Generator().manual_seed(7)
    inputs = torch.randn(8 * batches, 32, generator=random)
    return TensorDataset(inputs, inputs[:, :16].sin())


def loader(batches):
    return DataLoader(dataset(batches), batch_size=8)


def prepared(accelerator, model, optimizer, batches):
    """Return what Accelerate makes of a model, an optimizer, a loader and a schedule."""
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 4 * UPDATES)
    return accelerator.prepare(model, optimizer, loader(batches), schedule)


class Run:
    """What one process of a program has: prepared, and attached unless the codec is False."""

    def __init__(
        self,
        rank,
        size,
        codec,
        *,
        seed=0,
        accumulate=1,
        precision="no",
        scaler=False,
        sgd=False,
        fused=None,
        attached=None,
        **options,
    ):
        if accumulate is not None:
            options["gradient_accumulation_steps"] = accumulate
        become(rank, size)
        self.accelerator = Accelerator(cpu=True, mixed_precision=precision, **options)
        if scaler:  # on a CPU, Accelerate makes none
            self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        model = network(seed)
        optimizer = (
            torch.optim.SGD(model.parameters(), lr=0.05)
            if sgd
            else torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, fused=fused)
        )
        self.model, self.optimizer, self.loader, self.schedule = prepared(
            self.accelerator, model, optimizer, UPDATES * (accumulate or 1) * size
        )
        self.handle = None
        warnings.simplefilter("error", PairingWarning)
        if codec is not False:
            self.attach(codec, **attached or {})

    def attach(self, codec, **options):
        self.handle = attach(
            self.accelerator, self.model, codec, optimizer=self.optimizer, **options
        )

    def train(self, first, last, *, clip=None, bad=-1):
        """Train from one update to another; return which of them the scaler skipped.

        The loss of the batch with the number `bad` is infinite on rank 1.
        """
        one = self.accelerator
        skipped = []
        every = one.gradient_accumulation_steps
        batches = one.skip_first_batches(self.loader, first * every)
        for number, (inputs, targets) in enumerate(batches, first * every):
            if number == last * every:
                break
            local = one.no_sync(self.model) if clip is not None else contextlib.nullcontext()
            with one.accumulate(self.model), local:
                loss = nn.functional.mse_loss(self.model(inputs), targets)
                if one.process_index == 1 and number == bad:
                    loss = loss * torch.inf
                one.backward(loss)
                if clip is not None and one.sync_gradients:
                    one.clip_grad_norm_(self.model.parameters(), clip)
                self.optimizer.step()
                if one.sync_gradients:
                    skipped.append(one.optimizer_step_was_skipped)
                self.schedule.step()
                self.optimizer.zero_grad()
        return skipped

    def end(self):
        """Return a fingerprint, and what is left to be sent."""
        left = bits_left(self.handle) if self.handle is not None else {}
        if self.handle is not None:
            self.handle.detach()
        return fingerprint(self.model), left


def language_model():
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        vocab_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16,
    )
    return LlamaForCausalLM(config)


def texts(number, seed=3):
    """Numbers that count up, from anywhere."""
    random = torch.Generator().manual_seed(seed)
    found = []
    for start in torch.randint(64, (number,), generator=random):
        ids = (start + torch.arange(12)) % 64
        found.append({"input_ids": ids, "labels": ids.clone()})
    return found


def trainer(folder, compress, **options):
    chosen = {
        "per_device_train_batch_size": 4,
        "max_steps": 6,
        "learning_rate": 0.01,
        "save_strategy": "steps",
        "save_steps": 3,
        "logging_steps": 1,
        "weight_decay": 0.1,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "ddp_backend": "gloo",
    }
    return Trainer(
        language_model(),
        TrainingArguments(str(folder), **chosen | options),
        train_dataset=texts(64),
        eval_dataset=texts(8, seed=4),
        callbacks=[] if compress is None else [compress],
    )


def losses(one):
    return [each["loss"] for each in one.state.log_history if "loss" in each]


def end(one, compress):
    """Return a fingerprint, what is left to be sent, and the number of passes; detach."""
    found = fingerprint(one.model), bits_left(compress.handle), compress.handle.step
    compress.handle.detach()
    return found
