"""Ranks that are processes of their own, over Gloo on the loopback device."""

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.context import ForkProcess
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["Given", "gradients", "run"]

FORK = multiprocessing.get_context("fork")  # torch is imported once


class Given(torch.nn.Module):
    """Parameters whose gradients are what the forward pass is given."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.zeros(shape) for shape in shapes)

    def forward(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        terms = [(w * g).sum() for w, g in zip(self.weights, gradients, strict=True)]
        return torch.stack(terms).sum()


def gradients(shapes: list[tuple[int, ...]], rank: int, step: int) -> list[torch.Tensor]:
    """Return gradients of a rank: a tenth of their energy is common to all."""
    common = torch.Generator().manual_seed(step)
    own = torch.Generator().manual_seed(1000 * step + rank + 1)
    return [
        0.1**0.5 * torch.randn(shape, generator=common)
        + 0.9**0.5 * torch.randn(shape, generator=own)
        for shape in shapes
    ]


def _rank(rank: int, size: int, folder: str, act: Callable[..., Any], given: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size
    )
    found = act(rank, size, given)
    if rank == 0:
        torch.save(found, f"{folder}/found")
    dist.barrier()
    dist.destroy_process_group()


def run(act: Callable[..., Any], size: int, given: Any) -> Any:
    """Call a function on so many processes; return what it returns on the first.

    Raises
    ------
    RuntimeError
        As soon as one of them fails; the others, which wait for it, are ended.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        started = [
            FORK.Process(target=_rank, args=(r, size, folder, act, given), daemon=True)
            for r in range(size)
        ]
        try:
            for each in started:
                each.start()
            _wait(started)
        finally:
            for each in started:
                if each.pid is not None:
                    each.kill()
                    each.join()
        return torch.load(f"{folder}/found", weights_only=True)


def _wait(started: list[ForkProcess]) -> None:
    """Wait until all have ended well."""
    left = {each.sentinel: (rank, each) for rank, each in enumerate(started)}
    while left:
        ended = connection.wait(list(left))
        for sentinel in [each for each in left if each in ended]:
            rank, process = left.pop(sentinel)
            process.join()
            if process.exitcode:
                raise RuntimeError(
                    f"rank {rank} of {len(started)} ended with {process.exitcode}; its standard "
                    "error says why"
                )
