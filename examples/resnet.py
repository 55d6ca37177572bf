"""Train a small ResNet with BatchNorm on images of digits, with SGD or AdamW and a cosine schedule.

    torchrun --nproc-per-node=2 resnet.py                    # or one process: python resnet.py
    torchrun --nproc-per-node=2 resnet.py --optimizer adamw
    torchrun --nproc-per-node=2 resnet.py --dense            # without compression

The optimizer determines the codec. The images come with scikit-learn: nothing is downloaded.
"""

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn

from gradwire.torch import ddp

parser = argparse.ArgumentParser()
parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--dense", action="store_true")
options = parser.parse_args()
if dist.is_torchelastic_launched():
    dist.init_process_group("gloo")
else:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
rank, ranks = dist.get_rank(), dist.get_world_size()
x, y = map(torch.tensor, load_digits(return_X_y=True))
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
x, y, HELD_OUT = x[order].view(-1, 1, 8, 8).float() / 8 - 1, y[order], 360


class Block(nn.Module):
    """Two convolutions with BatchNorm, and a shortcut."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(
            nn.Conv2d(before, width, 3, width // before, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.around = nn.Conv2d(before, width, 1, 2) if width > before else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return both, added up."""
        return torch.relu(self.inside(x) + self.around(x))


torch.manual_seed(0)  # the same model on every rank
blocks = [Block(16, 16), Block(16, 32), Block(32, 64)]
stem = [nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
model = nn.parallel.DistributedDataParallel(nn.Sequential(*stem, *blocks, *ends))
optimizer: torch.optim.Optimizer
if options.optimizer == "sgd":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
handle = None if options.dense else ddp.attach(model, optimizer=optimizer)
steps = (len(x) - HELD_OUT) // (32 * ranks)  # in an epoch
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * steps)
for epoch in range(options.epochs):
    model.train()
    for batch in torch.randperm(len(x) - HELD_OUT).add(HELD_OUT).split(32 * ranks)[:steps]:
        mine = batch[rank::ranks]  # the order is the same on every rank, as torch's seed is
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[mine]), y[mine]).backward()
        optimizer.step()
        schedule.step()
    if rank == 0:  # whose BatchNorm averages DDP hands to all ranks
        with torch.no_grad():
            right = model.module.eval()(x[:HELD_OUT]).argmax(1) == y[:HELD_OUT]
        print(f"epoch {epoch + 1}: {100 * right.float().mean():.1f} % right", flush=True)
if rank == 0 and handle is not None:
    print(handle.report())
dist.destroy_process_group()
