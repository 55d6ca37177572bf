"""The inputs of a module's weights, as rows: patches of a convolution, states of an LSTM; sums."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from gradwire.errors import NonFiniteError
from gradwire.weights import Gram

BLOCK = 4096
"""Inputs that are multiplied at once."""

_SAFE = 1e15  # magnitudes whose squares float32 holds, and those of their inverses


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The inputs of a weight, or of some of its rows.

    ``values`` are all entries, in any shape; ``rows`` a view of them of shape (*places, groups,
    *entries): an input for each place and each equal group of the weight's rows. Places have
    ``dims`` dimensions.
    """

    values: torch.Tensor
    rows: torch.Tensor
    dims: int = 1

    @property
    def samples(self) -> int:
        return math.prod(self.rows.shape[: self.dims])

    @property
    def width(self) -> int:
        return math.prod(self.rows.shape[self.dims + 1 :])

    def precision(self, name: str) -> torch.dtype:
        """Return the dtype for products; if an entry is not finite, an error names the weight."""
        low, high = torch.aminmax(self.values)
        peak = float(torch.maximum(-low, high))
        if not math.isfinite(peak):
            (wrong,) = (~self.values.isfinite().flatten()).nonzero(as_tuple=True)
            raise NonFiniteError(len(wrong), int(wrong[0]), f"input of {name}")
        narrow = self.values.dtype is not torch.float64
        narrow = narrow and (peak == 0 or 1 / _SAFE < peak < _SAFE)
        return torch.float32 if narrow or self.values.device.type == "mps" else torch.float64

    def blocks(self, name: str) -> Iterator[torch.Tensor]:
        """Yield the inputs, of shape (groups, samples, width); errors are as of `precision`."""
        dtype, places = self.precision(name), self.rows.shape[: self.dims]
        one = math.prod(places[1:])
        if one <= BLOCK:
            for part in torch.split(self.rows, BLOCK // one):
                yield (
                    part.to(dtype).flatten(self.dims + 1).flatten(0, self.dims - 1).transpose(0, 1)
                )
            return
        for at in torch.split(torch.arange(self.samples, device=self.rows.device), BLOCK):
            block = self.rows[torch.unravel_index(at, places)]  # of large images
            yield block.to(dtype).flatten(2).transpose(0, 1)


@dataclasses.dataclass(frozen=True)
class Sum:
    """Second moments, sums and numbers of inputs: (groups, n, n), (groups, n) and (groups,).

    Products are of float32 in blocks, and added in float64.
    """

    matrix: torch.Tensor
    total: torch.Tensor
    count: torch.Tensor

    @classmethod
    def of(cls, groups: Iterable[Iterable[torch.Tensor]]) -> "Sum":
        """Sum blocks of inputs, of shape (groups, samples, width), set by set of groups."""
        return cls(*map(torch.cat, zip(*map(_sum_blocks, groups), strict=True)))

    def __add__(self, other: "Sum | None") -> "Sum":
        """Add another sum, if there is one; all groups of either may have had the same inputs."""
        if other is None:
            return self
        mine, others = ((s.matrix, s.total, s.count) for s in (self, other))
        return Sum(*(a + b.to(a.device) for a, b in zip(mine, others, strict=True)))

    def gram(self) -> Gram:
        count = int(self.count.max())
        even = (self.matrix + self.matrix.mT).mul_(0.5)  # products may differ in a last bit
        matrix, mean = even.cpu().numpy(), self.total.cpu().numpy() / count
        return Gram(matrix, count, mean) if len(matrix) > 1 else Gram(matrix[0], count, mean[0])


def cross(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return ``X^T Y`` of inputs of shape (groups, samples, width), as `Sum.of`."""
    return torch.cat([_product(x.to(y), y) for x, y in zip(before, after, strict=True)])


def _sum_blocks(blocks: Iterable[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    zero: Any = 0
    matrix, total, count = zero, zero, 0
    for block in blocks:
        matrix += (product := _product(block, block))
        total += block.sum(1).to(product)
        count += block.shape[1]
    return matrix, total, torch.full((len(total),), count)


def _product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    where = torch.device("cpu") if x.device.type == "mps" else x.device
    with torch.autocast(x.device.type, enabled=False):
        return (x.mT @ y).to(where, torch.float64)


Reading = Iterator[tuple[nn.Module, str, list[Inputs]]]
"""The owner and the name of a weight, and the inputs of all of its rows, or of each third."""


def reader_of(module: nn.Module) -> Any:
    """Return what gives a `Reading` of a module and its arguments; None for other modules."""
    return next((read for kind, read in _READERS.items() if isinstance(module, kind)), None)


def weights_of(module: nn.Module) -> list[tuple[nn.Module, str]]:
    """Return the owners and names of the weights whose inputs a module's arguments determine."""
    if reader_of(module) is None:
        return []
    weights = [(module, name) for name in module._parameters if not name.startswith("weight_hr")]
    return (
        [*weights, (module.out_proj, "weight")]
        if isinstance(module, nn.MultiheadAttention)
        else weights
    )


def _rows(x: torch.Tensor) -> list[Inputs]:
    return [Inputs(x, x.reshape(-1, 1, x.shape[-1]))]


def _linear(module: nn.Linear, input: torch.Tensor) -> Reading:
    yield module, "weight", _rows(input)


def _convolution(module: Any, input: torch.Tensor) -> Reading:
    dims = len(module.kernel_size)
    x = input if input.dim() == dims + 2 else input[None]
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    x = F.pad(x, module._reversed_padding_repeated_twice, mode)
    sizes = zip(module.kernel_size, module.stride, module.dilation, strict=True)
    for dim, (size, step, apart) in enumerate(sizes, 2):
        x = x.unfold(dim, (size - 1) * apart + 1, step)[..., ::apart]
    # Of each image and position the channels of a group, and of those the kernel.
    x = torch.unflatten(x, 1, (module.groups, -1)).movedim((1, 2), (dims + 1, dims + 2))
    yield module, "weight", [Inputs(input, x, dims + 1)]


def _attention(
    module: nn.MultiheadAttention,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *args: Any,
    **kwargs: Any,
) -> Reading:
    if not module._qkv_same_embed_dim:
        for name, x in (("q", query), ("k", key), ("v", value)):
            yield module, f"{name}_proj_weight", _rows(x)
    elif query is key and key is value:
        yield module, "in_proj_weight", _rows(query)
    else:
        yield module, "in_proj_weight", [*_rows(query), *_rows(key), *_rows(value)]
    # The last layer is no call of a module: attention runs a second time, with an identity there.
    weight = module.out_proj.weight
    identity = nn.Linear(1, 1, bias=False)
    identity.weight = nn.Parameter(torch.eye(len(weight), dtype=weight.dtype, device=weight.device))
    one = _like(module, _modules={**module._modules, "out_proj": identity})
    with torch.random.fork_rng([weight.device] if weight.is_cuda else []):
        out, _ = nn.MultiheadAttention.forward(one, query, key, value, *args, **kwargs)
    yield module.out_proj, "weight", _rows(out)


def _cell(module: nn.RNNCellBase, input: torch.Tensor, hx: Any = None) -> Reading:
    yield module, "weight_ih", _rows(input)
    hidden = hx if hx is None or isinstance(hx, torch.Tensor) else hx[0]
    zeros = input.new_zeros(*input.shape[:-1], module.hidden_size)
    yield module, "weight_hh", _rows(zeros if hidden is None else hidden)


def _recurrent(module: Any, input: Any, hx: Any = None) -> Reading:
    """Run stacked layers one at a time, without dropout between them."""
    ways, count = 1 + module.bidirectional, len(module._flat_weights) // module.num_layers
    for layer in range(module.num_layers):
        members, at = (slice(layer * n, (layer + 1) * n) for n in (count, ways))
        x = input.data if isinstance(input, PackedSequence) else input
        ih, hh = (
            [name for name in module._flat_weights_names[members] if name.startswith(kind)]
            for kind in ("weight_ih", "weight_hh")
        )
        yield module, ih[0], _rows(x)
        parts = ("_flat_weights", "_flat_weights_names", "_flat_weight_refs")
        one = _like(
            module,
            **{part: getattr(module, part)[members] for part in parts},
            num_layers=1,
            input_size=x.shape[-1],
            dropout=0.0,
        )
        states = hx
        if hx is not None:
            states = hx[at] if isinstance(hx, torch.Tensor) else tuple(state[at] for state in hx)
        input, _ = one.forward(input, states)
        before = _before(module, input, states[0] if isinstance(states, tuple) else states)
        yield module, hh[0], _rows(before[0])
        for way in range(1, ways):
            yield module, ih[way], _rows(x)
            yield module, hh[way], _rows(before[way])


def _before(module: Any, output: Any, first: Any) -> list[torch.Tensor]:
    """Return the states before each step, of one layer in each direction."""
    ways, order = 1 + module.bidirectional, None
    if isinstance(output, PackedSequence):
        out, counts, order = output.data, output.batch_sizes, output.sorted_indices
    else:
        dense = output[:, None] if output.dim() == 2 else output
        dense = dense.transpose(0, 1) if module.batch_first and output.dim() == 3 else dense
        out, counts = dense.flatten(0, 1), torch.full((len(dense),), dense.shape[1])
    if first is None:
        first = out.new_zeros(ways, int(counts[0]), out.shape[-1] // ways)
    if first.dim() == 2 or order is not None:
        first = first[:, order]
    step = torch.repeat_interleave(torch.arange(len(counts)), counts)
    begins = counts.cumsum(0) - counts + counts[0]  # of steps, behind the first states
    which = torch.arange(len(step)) + counts[0] - begins[step]
    behind = torch.where(step == 0, which, begins[step - 1] + which)
    goes_on = which < F.pad(counts[1:], (0, 1))[step]
    ahead = torch.where(goes_on, begins[step] + counts[step] + which, which)
    return [
        torch.cat([state.to(states), states])[index.to(states.device)]
        for state, states, index in zip(first, out.chunk(ways, -1), (behind, ahead), strict=False)
    ]


def _like(module: nn.Module, **changed: Any) -> Any:
    """Return a module with the same parameters, and other attributes."""
    made = object.__new__(type(module))
    vars(made).update({**vars(module), **changed})
    return made


_READERS: dict[type[nn.Module], Callable[..., Reading]] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
    nn.MultiheadAttention: _attention,
    nn.RNNBase: _recurrent,
    nn.RNNCellBase: _cell,
}
