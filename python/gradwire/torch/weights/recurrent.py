"""The inputs of recurrent layers' weights: inputs, and the states before each step."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from gradwire.torch.weights.inputs import Inputs, rows

Swap = Callable[[torch.Tensor], torch.Tensor]
Uses = Iterator[tuple[torch.Tensor, Callable[[], Inputs]]]
"""Weights, and what gives their inputs."""


def cell(
    x: torch.Tensor, hx: Any, w_ih: torch.Tensor, w_hh: torch.Tensor, *_: Any, **__: Any
) -> Uses:
    """Return the inputs of a cell's weights."""
    yield w_ih, lambda: rows(x)
    yield w_hh, lambda: rows(hx if isinstance(hx, torch.Tensor) else hx[0])


def layers(func: Callable[..., Any], swap: Swap, *args: Any) -> Uses:
    """Return the inputs of stacked layers' weights, in the order of their use.

    The layers are run one at a time, as the states are not accessible otherwise: those of
    `nn.LSTM`, `nn.GRU` and `nn.RNN`, with padded or packed sequences. Dropout between layers is
    left out.

    Parameters
    ----------
    func : callable
        As ``torch.lstm``.
    swap : callable
        Returns the replacement of a weight.
    *args
        Arguments of the function.
    """
    if isinstance(args[3], bool):
        x, hx, weights, has_bias, depth, _, _, bidirectional, batch_first = args
        x = x.transpose(0, 1) if batch_first else x
        sizes = [x.shape[1]] * x.shape[0]
        x = x.reshape(-1, x.shape[-1])
    else:
        x, batch_sizes, hx, weights, has_bias, depth, _, _, bidirectional = args
        sizes = batch_sizes.tolist()
    if not x.numel():
        return
    # A dense batch is a packed one of equal lengths.
    packed = torch.tensor(sizes, dtype=torch.int64, device="cpu")
    previous, reverse = (each.to(x.device) for each in _places(sizes))
    states = (hx,) if isinstance(hx, torch.Tensor) else tuple(hx)
    ways = 1 + bidirectional
    each = len(weights) // (depth * ways)
    for layer in range(depth):
        outputs = []
        for way in range(ways):
            at = layer * ways + way
            own = weights[at * each : (at + 1) * each]
            yield own[0], partial(rows, x)
            state = tuple(s[at : at + 1] for s in states)
            out = _run(
                func, x if way == 0 else x[reverse], packed, state, [swap(w) for w in own], has_bias
            )
            before = torch.cat([state[0][0].to(out.dtype), out])[previous]
            yield own[1], partial(rows, before)
            outputs.append(out if way == 0 else out[reverse])
        x = torch.cat(outputs, -1)


@torch.no_grad()
def _run(
    func: Callable[..., Any],
    x: torch.Tensor,
    sizes: torch.Tensor,
    state: tuple[torch.Tensor, ...],
    weights: Sequence[torch.Tensor],
    has_bias: bool,
) -> torch.Tensor:
    """Run one layer in one direction."""
    hx = state if len(state) > 1 else state[0]
    with warnings.catch_warnings():  # cuDNN asks for weights of all layers in one piece of memory
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous")
        out: torch.Tensor = func(x, sizes, hx, weights, has_bias, 1, 0.0, False, False)[0]
    return out


def _places(sizes: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return index arrays for a packed batch, by entry.

    First the index of the state before it, among the initial ones and those of all steps; then that
    of the entry that replaces it when each sequence runs backwards.
    """
    count = np.array(sizes)
    begin = count.cumsum() - count
    step = np.repeat(np.arange(len(sizes)), count)
    which = np.arange(len(step)) - begin[step]
    previous = np.where(step == 0, which, sizes[0] + begin[step - 1] + which)
    lengths = (count[:, None] > np.arange(sizes[0])).sum(0)
    reverse = begin[lengths[which] - 1 - step] + which
    return torch.from_numpy(previous), torch.from_numpy(reverse)
