"""Lightning's Trainers with ``Compress("auto")``; what is decided is scripted."""

from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import optim

import gradwire
from gradwire.torch.lightning import Compress
from tests.distributed.scenarios.auto import CODEC, UNCOMPRESSED, ratios, scripted
from tests.distributed.scenarios.common import fingerprint
from tests.trainers.scenarios.lightning import Gan, Regression, buckets, trainer


def dense(rank: int, world_size: int) -> tuple[str, str]:
    """Train without a callback, and with one that decides on fp32."""
    found = []
    callback = Compress("auto")
    for callbacks in ((), (callback,)):
        module = Regression()
        with scripted(UNCOMPRESSED):
            made = trainer(rank, world_size, *callbacks, strategy=buckets(), val_check_interval=5)
            made.fit(module)
        found.append(fingerprint(module))
    assert callback.report().decision.startswith("Using uncompressed")
    return found[0], found[1]


def resumed(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Come to the codec, save there, and go on from there."""
    found: dict[str, Any] = {}
    for name, checkpoint in (("whole", None), ("rest", f"{folder}/whole/epoch=0-step=10.ckpt")):
        module = Regression(optim.AdamW, lr=2e-3)
        writer = ModelCheckpoint(f"{folder}/{name}", every_n_train_steps=5, save_top_k=-1)
        callback = Compress("auto", min_ratio=0.05)
        with scripted(CODEC):
            made = trainer(rank, world_size, callback, writer, strategy=buckets(), max_epochs=2)
            made.fit(module, ckpt_path=checkpoint)
        handle = callback.handle
        assert handle is not None
        found[name] = (fingerprint(module), handle.step, ratios(handle))
        found["decision"] = callback.report().decision
    return found


def clipped(rank: int, world_size: int) -> dict[str, Any]:
    """Clip what was exchanged, or each rank's own gradients in the step: it decides in both."""
    found = {}
    for in_step in (None, True):
        module, callback = (
            Regression(optim.AdamW, lr=2e-3),
            Compress("auto", exchange_in_step=in_step),
        )
        with scripted(CODEC):
            made = trainer(rank, world_size, callback, gradient_clip_val=0.1)
            made.fit(module)
        handle = callback.handle
        assert handle is not None
        found[f"in step: {in_step}"] = {
            "print": fingerprint(module),
            "codec": repr(handle.codec),
            "decision": callback.report().decision,
        }
    return found


def mistakes(rank: int, world_size: int) -> list[str]:
    """What is refused: some before there is a Trainer, some by its fit."""
    warm_up = gradwire.schedule.WarmUp((0.25, 0.05))
    unused = {"strategy": "ddp_find_unused_parameters_true"}
    calls: list[Any] = [
        lambda: Compress("auto", optimizer=None),
        lambda: Compress("auto", schedule=warm_up),
        lambda: Compress("auto", hierarchy=2),
        lambda: Compress("auto", min_ratio=100),
        lambda: Compress(gradwire.topk(ratio=0.01), min_ratio=0.01),
        lambda: Compress("auto", min_numel=-1),
        lambda: trainer(rank, world_size, Compress("auto"), **unused).fit(Gan()),
        lambda: Compress(None, optimizer=None),
        lambda: Compress(min_ratio=0.01),
    ]
    found = []
    for call in calls:
        try:
            call()
        except (TypeError, ValueError) as error:
            found.append(f"{type(error).__name__}: {error}")
        else:
            found.append("")
    assert torch.distributed.get_world_size() == world_size
    return found
