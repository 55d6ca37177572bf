"""The table of modules, and what their backward reads of saved tensors.

Backward of an element-wise activation multiplies by the derivative f'(x). So f'(x) is coded,
rounded without bias, and what is unpacked is a value with that derivative. ReLU has two slopes, so
a bit per entry is exact.
"""

import enum
import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from gradwire import _rules, _validate
from gradwire._validate import require
from gradwire.torch.activations.forms import Bits, Encoder, Form, look_up

_POINTS = 4096
_GAP = 32
"""Slopes further apart than a part of their range are not bridged: those of ELU(0.3) are 0 to 0.3,
and 1. No value has one between, so a bit tells the sides apart."""

_STEEP = 1e6
"""Slopes that differ by more have no bounds, as those of CELU(-0.5), and are not coded."""


class Slope(NamedTuple):
    """The derivative of an activation, as torch computes it of the tensor that it saves."""

    #: Called with a gradient, the tensor and `arguments`, as aten's.
    backward: Callable[..., torch.Tensor]
    arguments: tuple[Any, ...] = ()
    #: Between which the tensor lies, if it is a result.
    domain: tuple[float, float] = (-float("inf"), float("inf"))

    def of(self, x: torch.Tensor) -> torch.Tensor:
        return self.backward(torch.ones_like(x), x, *self.arguments)

    def form(self, flat: torch.Tensor, encoder: Encoder) -> Form | str:
        """Return the packed form of values, or the reason why there is none."""
        table, slopes = _table(self, flat.dtype), self.of(flat)
        above = None
        if table.high - table.low > _STEEP:
            return "slopes without bounds"
        if table.split is not None:
            above = Bits(slopes > table.split, (float(table.values[0]), table.above), flat.dtype)
            if len(table.values) == 1:
                return above
            slopes = slopes.clamp_max(table.high)
        codes = encoder.encode(slopes.to(torch.float32))
        return codes if isinstance(codes, str) else Slopes(codes, above, table)


class _Table(NamedTuple):
    """Values with given slopes, at equal distances from `low` to `high`."""

    values: torch.Tensor
    low: float
    high: float
    #: Slopes above it are one slope, that of the value `above`.
    split: float | None
    above: float


class Slopes:
    """Codes of slopes, and a bit per entry where they have a gap."""

    __slots__ = ("__weakref__", "_above", "_codes", "_table")

    def __init__(self, codes: Form, above: Bits | None, table: _Table) -> None:
        self._codes, self._above, self._table = codes, above, table

    @property
    def nbytes(self) -> int:
        return self._codes.nbytes + (0 if self._above is None else self._above.nbytes)

    def values(self) -> torch.Tensor:
        """Return values with these slopes, one-dimensional."""
        values, low, high = self._table[:3]
        place = self._codes.values().sub_(low).mul_((len(values) - 1) / (high - low)).add_(0.5)
        x = look_up(values, place.clamp_(0, len(values) - 1).to(torch.int32))
        if self._above is not None:
            x.masked_fill_(self._above.chosen(), self._table.above)
        return x


@functools.lru_cache
def _table(slope: Slope, dtype: torch.dtype) -> _Table:
    """Return values for all slopes, which are found by trying."""
    x = torch.unique(_sample_values(slope).to(dtype))
    slopes = slope.of(x).to(torch.float64)
    x, slopes = x[slopes.isfinite()], slopes[slopes.isfinite()]
    ends = {float(slopes[at]): x[at] for at in (0, -1)}  # of saturation
    slopes, order = slopes.sort(stable=True)
    x, split, above = x[order], None, float(x[order[-1]])
    if len(slopes) > 1:
        gap, at = slopes.diff().max(0)
        if gap * _GAP > slopes[-1] - slopes[0]:
            split = float(slopes[at] + gap / 2)
            x, slopes = x[: at + 1], slopes[: at + 1]
    low, high = float(slopes[0]), float(slopes[-1])
    if low == high:
        return _Table(x[:1], low, high, high if split is None else split, above)
    wanted = torch.linspace(low, high, _POINTS, dtype=torch.float64)
    after = torch.searchsorted(slopes, wanted).clamp_(1, len(slopes) - 1)
    nearer = wanted - slopes[after - 1] < slopes[after] - wanted
    values = x[after - nearer.to(torch.int64)]
    for end, value in ends.items():
        if low <= end <= high:
            values[round((end - low) / (high - low) * (_POINTS - 1))] = value
    return _Table(values, low, high, split, above)


def _sample_values(slope: Slope) -> torch.Tensor:
    """Return values of all sizes, and those at, beside and between the bounds of the activation."""
    bounds = np.array([bound for bound in slope.arguments if isinstance(bound, float)], np.float64)
    beside = [bounds * (1 + way) for way in (-1e-2, -1e-7, 0.0, 1e-7, 1e-2)]
    between = np.add.outer(bounds, bounds).ravel() / 2
    sizes = np.geomspace(1e-6, 1e4, 1 << 15)
    every = np.concatenate([-sizes, [0.0], sizes, *beside, between])
    return torch.from_numpy(every.clip(*slope.domain)).clamp_(-6e4, 6e4)


class Reads(enum.Enum):
    """The information that backward reads of a saved tensor, which must be kept."""

    #: Values, of which a digit or two suffice: gradients are linear in them.
    VALUES = "values"
    #: Values by group; means and deviations beside the input are left as they are.
    NORMED = "values of a norm"
    #: Zero, or the one other value: what dropout has multiplied by.
    SCALED = "two values"
    #: Its shape alone.
    SHAPE = "shape"


Activation = Callable[[Any], Slope]
"""Says what the slope of an element-wise activation is."""

_aten = torch.ops.aten


def _gelu(gradient: torch.Tensor, x: torch.Tensor, approximate: str) -> torch.Tensor:
    of_x: torch.Tensor = _aten.gelu_backward(gradient, x, approximate=approximate)
    return of_x


def _elu(
    gradient: torch.Tensor, x: torch.Tensor, alpha: float, scale: float, inner: float, result: bool
) -> torch.Tensor:
    of_x: torch.Tensor = _aten.elu_backward(gradient, alpha, scale, inner, result, x)
    return of_x


def _exponential(module: Any) -> Slope:
    if isinstance(module, nn.SELU):
        alpha, scale = 1.6732632423543772, 1.0507009873554805
    else:
        alpha, scale = float(module.alpha), 1.0
    inner = 1.0 / alpha if isinstance(module, nn.CELU) else 1.0
    # What is computed in place is saved as a result, which is above minus alpha.
    low = -alpha * scale if module.inplace else -math.inf
    return Slope(_elu, (alpha, scale, inner, module.inplace), (low, math.inf))


def _bounded(module: Any) -> Slope:
    return Slope(_aten.hardtanh_backward, (float(module.min_val), float(module.max_val)))


def _of_dims(*names: str) -> list[type[nn.Module]]:
    """Return the classes of one to three dimensions, such as Conv1d, Conv2d and Conv3d."""
    return [getattr(nn, f"{name}{dims}d") for name in names for dims in (1, 2, 3)]


TABLE: dict[type[nn.Module], Reads | Activation] = {
    **dict.fromkeys(
        (nn.Linear, nn.Embedding, nn.EmbeddingBag, *_of_dims("Conv", "ConvTranspose")), Reads.VALUES
    ),
    **dict.fromkeys((nn.SyncBatchNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm), Reads.NORMED),
    **dict.fromkeys(_of_dims("BatchNorm", "InstanceNorm"), Reads.NORMED),
    **dict.fromkeys((nn.Dropout, *_of_dims("Dropout")), Reads.SCALED),
    **dict.fromkeys(
        _of_dims("AvgPool", "AdaptiveAvgPool", "MaxPool", "AdaptiveMaxPool"), Reads.SHAPE
    ),
    nn.ReLU: lambda _: Slope(_aten.threshold_backward, (0.0,)),
    nn.LeakyReLU: lambda module: Slope(
        _aten.leaky_relu_backward, (float(module.negative_slope), False)
    ),
    nn.ReLU6: _bounded,
    nn.Hardtanh: _bounded,
    nn.Hardsigmoid: lambda _: Slope(_aten.hardsigmoid_backward),
    nn.ELU: _exponential,
    nn.CELU: _exponential,
    nn.SELU: _exponential,
    nn.GELU: lambda module: Slope(_gelu, (module.approximate,)),
    nn.Hardswish: lambda _: Slope(_aten.hardswish_backward),
    nn.Mish: lambda _: Slope(_aten.mish_backward),
    nn.SiLU: lambda _: Slope(_aten.silu_backward),
    nn.Softplus: lambda module: Slope(
        _aten.softplus_backward, (float(module.beta), float(module.threshold))
    ),
    # Of these two, results are saved.
    nn.Sigmoid: lambda _: Slope(_aten.sigmoid_backward, (), (0.0, 1.0)),
    nn.Tanh: lambda _: Slope(_aten.tanh_backward, (), (-1.0, 1.0)),
}
"""Modules whose backward stands noise.

Not here: softmax, attention and losses, whose backward takes exponentials of differences of saved
tensors, which errors blow up; recurrent layers, whose backward multiplies errors step by step;
PReLU and PACT, which read both values and on which side of a bound a value is.
"""


def group_entries(module: Any, x: torch.Tensor) -> int:
    """Return how many entries of a norm's input have one mean and deviation."""
    if isinstance(module, _InstanceNorm):
        return x[(0,) * (x.dim() + 1 - module._get_no_batch_dim())].numel()  # type: ignore[no-untyped-call]
    if isinstance(module, _BatchNorm):
        return x.numel() // x.shape[1]
    if isinstance(module, nn.GroupNorm):
        return x.numel() // (x.shape[0] * int(module.num_groups))
    return math.prod(module.normalized_shape)


def by_channel(module: nn.Module) -> bool:
    """Return whether the groups of a norm are channels over the batch, not runs of entries."""
    return isinstance(module, _BatchNorm)


Rules = Mapping[str | type[nn.Module], int | None]


def select_modules(
    model: nn.Module, bits: int, rules: Rules | None
) -> tuple[dict[str, tuple[int, Reads | Activation]], dict[str, str]]:
    """Return bits and reads by names of modules to pack, and the reasons for skipping others.

    Errors are those of `attach`.
    """
    rules = {} if rules is None else rules
    every = dict(model.named_modules())
    _check(rules, every)
    packed: dict[str, tuple[int, Reads | Activation]] = {}
    left: dict[str, str] = {}
    used = set()
    for name, module in every.items():
        key = next((key for key in rules if _matches(key, name, module)), None)
        reads = _reads_of(module)
        if isinstance(reads, str) and inspect.isclass(key):
            reads = Reads.VALUES
        wanted = bits if key is None else rules[key]
        if not isinstance(reads, str) and wanted is not None:
            packed[name] = wanted, reads
            used.add(key)
        elif not isinstance(reads, str):
            left[name] = "the rules say so"
        elif not list(module.children()) or list(module.parameters(recurse=False)):
            left[name] = reads
    for key, value in rules.items():
        require(
            value is None or key in used,
            "no module that {!r} matches first has tensors that are packed: give its class as a "
            "key to declare that its backward pass tolerates noise",
            key,
        )
    require(
        packed,
        "the model has no module whose saved tensors are packed, such as a linear layer or a "
        "convolution: give your own classes as keys of rules",
    )
    return packed, left


def _reads_of(module: nn.Module) -> Reads | Activation | str:
    """Return what a module's backward reads, or the reason why that is unknown."""
    for kind in type(module).__mro__:
        reads = TABLE.get(kind)
        if reads is not None:
            if getattr(type(module), "forward") is not getattr(kind, "forward"):  # noqa: B009
                return f"it overrides the forward() of {kind.__name__}"
            return "it has submodules" if list(module.children()) else reads
    return "its class is not known to tolerate noise"


def _matches(key: str | type[nn.Module], name: str, module: nn.Module) -> bool:
    if isinstance(key, str):
        return _rules.first({key: True}, name) is not None
    return isinstance(module, key)


def _check(rules: Rules, every: Mapping[str, nn.Module]) -> None:
    _rules.check((key for key in rules if not inspect.isclass(key)), every, "module")
    for key, value in rules.items():
        if value is not None:
            _validate.integer(f"the bits of {key!r}", value, low=1, high=8)
        if inspect.isclass(key):
            there = any(isinstance(module, key) for module in every.values())
            require(there, "no module is a {}", key.__name__)
