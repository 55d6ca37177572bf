"""The callback without ``lightning``: imported where nothing of gradwire.torch.lightning is yet."""

import importlib
import sys
from typing import Any

import torch

import gradwire
from tests.distributed.scenarios.common import batch, network


def alone(rank: int, world_size: int) -> dict[str, Any]:
    """Import the callback without either package, and train with ``pytorch_lightning``."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "lightning"]:
        sys.modules[name] = None  # type: ignore[assignment]  # as if it were not installed
    sys.modules["pytorch_lightning"] = None  # type: ignore[assignment]
    found: dict[str, Any] = {}
    try:
        importlib.import_module("gradwire.torch.lightning")
    except ImportError as error:
        found["neither"] = str(error)

    del sys.modules["pytorch_lightning"]
    compress = importlib.import_module("gradwire.torch.lightning").Compress
    pl = importlib.import_module("pytorch_lightning")
    found["base"] = compress.__mro__[1].__module__

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, indices: Any, index: int) -> torch.Tensor:
            inputs, targets = batch(rank, index)
            return torch.nn.functional.mse_loss(self.net(inputs), targets)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    callback = compress(gradwire.topk(ratio=0.05))
    from tests.trainers.scenarios.started import as_started_by_torchrun

    as_started_by_torchrun(rank, world_size)
    trainer = pl.Trainer(
        accelerator="cpu", devices=world_size, strategy="ddp", max_steps=6, callbacks=[callback],
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(range(24)))  # type: ignore[arg-type]
    found["steps"] = callback.handle.step
    return found
