"""Train a small model with DistributedDataParallel and compressed gradients.

    torchrun --nproc-per-node=2 examples/train.py
    torchrun --nproc-per-node=2 examples/train.py --dense   # the same without compression

On two machines, run this on each, with its own --node-rank and the address of the first machine:

    torchrun --nnodes=2 --node-rank=0 --master-addr=10.0.0.1 --master-port=29500 \
        --nproc-per-node=1 examples/train.py --checkpoint run/

To resume from a checkpoint, run the same command again with a larger --steps.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.torch import ddp


def main() -> None:
    """Train, report, save."""
    options = parser().parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)  # the same model on every rank
    layers = (nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01, fused=True)

    # This is all that compression needs. With --dense this is plain DDP, for comparison.
    handle = None if options.dense else ddp.attach(model, optimizer=optimizer)

    first = load(options.checkpoint, model, optimizer, handle) if options.checkpoint else 0
    for step in range(first, options.steps):
        inputs, targets = batch(step, rank)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 50 == 49:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)

    if options.checkpoint:
        save(options.checkpoint, options.steps, model, optimizer, handle)
    if handle is not None:
        if rank == 0:
            print(handle.report(), flush=True)
        handle.detach()
    dist.destroy_process_group()


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's data for this step: points around ten centres. Put your loader here."""
    centres = torch.randn(10, 64, generator=torch.Generator().manual_seed(1))
    draw = torch.Generator().manual_seed(1000 * step + rank)
    targets = torch.randint(10, (64,), generator=draw)
    return centres[targets] + 4.0 * torch.randn(64, 64, generator=draw), targets


def save(
    folder: Path,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    handle: ddp.Handle | None,
) -> None:
    """Save one file per rank, because every rank has its own residual."""
    saved = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if handle is not None:
        saved["gradwire"] = handle.state_dict()
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(saved, folder / f"rank{dist.get_rank()}.pt")


def load(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    handle: ddp.Handle | None,
) -> int:
    """Load the files of `save`, if all ranks have one; return the step to continue with."""
    file = folder / f"rank{dist.get_rank()}.pt"
    there = torch.tensor(int(file.exists()))
    dist.all_reduce(there, dist.ReduceOp.MIN)
    if not there:
        return 0
    saved = torch.load(file, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    if handle is not None:
        handle.load_state_dict(saved["gradwire"])  # a collective
    return int(saved["step"])


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--dense", action="store_true", help="do not compress")
    made.add_argument("--steps", type=int, default=200)
    made.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="folder to resume from and save to"
    )
    return made


if __name__ == "__main__":
    main()
