"""Accelerate's loop and Transformers' Trainer with ``"auto"``; what is decided is scripted."""

import warnings
from pathlib import Path
from typing import Any

from accelerate.utils import GradientAccumulationPlugin

from gradwire.torch.ddp import PairingWarning
from gradwire.torch.transformers import Compress
from tests.distributed.scenarios.common import fingerprint
from tests.distributed.scripted import BFLOAT16, CODEC, UNCOMPRESSED, ratios, scripted
from tests.trainers.scenarios.accelerate import UPDATES, Run
from tests.trainers.scenarios.programs import become
from tests.trainers.scenarios.transformers import trainer


def resumed(rank: int, world_size: int, folder: str, **options: Any) -> dict[str, Any]:
    """Come to the codec, save there, and go on from there."""
    found: dict[str, Any] = {}
    with scripted(CODEC):
        run = Run(rank, world_size, "auto", attach={"min_ratio": 0.05}, **options)
        for _ in range(2):  # DDP makes its buckets anew, then looks begin
            run.train(0, UPDATES)
        run.accelerator.save_state(folder)
        found["saved"] = run.handle.step, ratios(run.handle)
        found["decision"] = run.handle.report().decision
        run.end()
    with scripted():
        run = Run(rank, world_size, "auto", seed=99, attach={"min_ratio": 0.05}, **options)
        run.accelerator.load_state(folder)
        found["loaded"] = run.handle.step, ratios(run.handle)
        run.train(0, 1)
        found["later"] = run.handle.step
        found["fingerprint"] = run.end()[0]
    return found


def every_pass(rank: int, world_size: int) -> str:
    """Each of two accumulated passes is exchanged, which a codec for AdamW refuses."""
    plugin = GradientAccumulationPlugin(num_steps=2, sync_each_batch=True)
    with scripted(CODEC):
        run = Run(rank, world_size, "auto", gradient_accumulation_plugin=plugin, accumulate=None)
        said = ""
        try:
            run.train(0, UPDATES)
        except PairingWarning as warning:  # an error here, of the first step
            said = str(warning)
        run.end()
        return said


def trained(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Trainer that clips, for which a codec sends gradients and has no ratio; then resumed."""
    found: dict[str, Any] = {}
    for name, checkpoint in (("whole", None), ("rest", str(Path(folder) / "checkpoint-9"))):
        become(rank, world_size)
        compress: Any = Compress("auto")
        script = (BFLOAT16, UNCOMPRESSED) if checkpoint is None else ()  # over by step 9
        with scripted(*script):
            one = trainer(folder, compress, max_steps=12)
            one.train(resume_from_checkpoint=checkpoint)
        found[name] = fingerprint(one.model)
        found["logs"] = [each["loss"] for each in one.state.log_history if "loss" in each]
        found.setdefault("decision", compress.handle.report().decision)
        compress.handle.detach()
    return found


def unclipped(rank: int, world_size: int, folder: str) -> tuple[list[str], bool]:
    """What a Trainer is told that does not clip, and whether it came to the codec."""
    become(rank, world_size)
    compress: Any = Compress("auto")
    with scripted(CODEC), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", PairingWarning)
        one = trainer(folder, compress, max_grad_norm=0.0, max_steps=12)
        one.train()
    coded = any(each is not None for each in ratios(compress.handle).values())
    compress.handle.detach()
    return [str(each.message) for each in said if each.category is PairingWarning], coded
