"""Train in two processes with Lightning: python examples/lightning_callback.py."""

import lightning.pytorch as pl
import torch
from torch import nn, optim

from gradwire.torch.lightning import Compress


class Classifier(pl.LightningModule):
    """A plain Lightning module."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """Return the loss of a batch."""
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer, which determines the codec."""
        return optim.AdamW(self.parameters(), lr=2e-3)


if __name__ == "__main__":
    pl.seed_everything(0)
    targets = torch.randint(10, (2048,))
    inputs = torch.randn(10, 64)[targets] + torch.randn(2048, 64)
    rows = torch.utils.data.TensorDataset(inputs, targets)
    compress = Compress()
    trainer = pl.Trainer(
        accelerator="cpu", strategy="ddp", devices=2, max_epochs=2, callbacks=[compress]
    )
    trainer.fit(Classifier(), torch.utils.data.DataLoader(rows, batch_size=64))
    trainer.save_checkpoint("end.ckpt")
    print(compress.report())
