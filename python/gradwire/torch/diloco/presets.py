"""Published recipes of `DiLoCo`."""

from typing import Any

import torch

from gradwire.presets import sparseloco as codec_of
from gradwire.torch.diloco.trainer import DiLoCo

__all__ = ["sparseloco"]


def sparseloco(
    model: torch.nn.Module,
    *,
    k: int = 64,
    inner_steps: int = 30,
    outer_lr: float = 1.0,
    **options: Any,
) -> DiLoCo:
    """Train as SparseLoCo: the largest entries of each tile in two bits, no outer momentum.

    The residual, which fades by 0.95 a round, takes the place of the outer momentum.

    Parameters
    ----------
    model : torch.nn.Module
    k : int
        Entries sent of each tile of 64 x 64, or of each 4096 in what is no matrix.
    inner_steps, outer_lr
        As in `DiLoCo`, with the values of the authors' code.
    **options
        Others of `DiLoCo`, such as ``optimizer`` and ``process_group``.

    References
    ----------
    Sarfi, Thérien, Lidin, Belilovsky, "Communication Efficient LLM Pre-training with SparseLoCo",
    arXiv 2508.15706, 2025.
    """
    fixed = {"codec", "outer_momentum", "nesterov"} & options.keys()
    if fixed:
        raise TypeError(f"sparseloco() sets {', '.join(sorted(fixed))} itself: use DiLoCo()")
    return DiLoCo(
        model,
        codec_of(k),
        inner_steps=inner_steps,
        outer_lr=outer_lr,
        outer_momentum=0.0,
        nesterov=False,
        **options,
    )
