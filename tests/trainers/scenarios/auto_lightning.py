"""Lightning's Trainers with ``Compress("auto")``; what is decided is scripted."""

from typing import Any

from lightning.pytorch.callbacks import ModelCheckpoint
from torch import optim

from gradwire.torch.lightning import Compress
from tests.distributed.scenarios.common import fingerprint
from tests.distributed.scripted import CODEC, ratios, scripted
from tests.trainers.scenarios.lightning import Regression, buckets, trainer


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
    """Clip what was exchanged."""
    module, callback = Regression(optim.AdamW, lr=2e-3), Compress("auto", min_ratio=0.05)
    with scripted(CODEC):
        trainer(rank, world_size, callback, gradient_clip_val=0.1).fit(module)
    assert callback.handle is not None
    codec, decision = repr(callback.handle.codec), callback.report().decision
    return {"print": fingerprint(module), "codec": codec, "decision": decision}
