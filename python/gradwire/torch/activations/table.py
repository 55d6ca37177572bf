"""The table of modules, and what their backward reads of saved tensors."""

import enum
import inspect
import math
from collections.abc import Callable, Mapping

from torch import nn

from gradwire import _rules, _validate


class Reads(enum.Enum):
    """The information that backward reads of a saved tensor, which must be kept."""

    #: Values, of which a digit or two suffice: gradients are linear in them, or nearly so.
    VALUES = "values"
    #: As before; means and deviations beside the input are left as they are.
    NORMED = "values of a norm"
    #: Zero, or the one other value: what dropout has multiplied by.
    SCALED = "two values"
    #: Its shape alone.
    SHAPE = "shape"


Bounds = Callable[[nn.Module], tuple[float, float]]
"""Says of a module between which values its gradient is another one than beyond them."""


def _positive(_: nn.Module) -> tuple[float, float]:
    return 0.0, math.inf


def _limits(module: nn.Module) -> tuple[float, float]:
    limits: tuple[float, float] = module.min_val, module.max_val  # type: ignore[assignment]
    return limits


TABLE: dict[type[nn.Module], Reads | Bounds] = {
    nn.Linear: Reads.VALUES,
    nn.Bilinear: Reads.VALUES,
    nn.Conv1d: Reads.VALUES,
    nn.Conv2d: Reads.VALUES,
    nn.Conv3d: Reads.VALUES,
    nn.ConvTranspose1d: Reads.VALUES,
    nn.ConvTranspose2d: Reads.VALUES,
    nn.ConvTranspose3d: Reads.VALUES,
    nn.Embedding: Reads.VALUES,
    nn.EmbeddingBag: Reads.VALUES,
    nn.BatchNorm1d: Reads.NORMED,
    nn.BatchNorm2d: Reads.NORMED,
    nn.BatchNorm3d: Reads.NORMED,
    nn.SyncBatchNorm: Reads.NORMED,
    nn.InstanceNorm1d: Reads.NORMED,
    nn.InstanceNorm2d: Reads.NORMED,
    nn.InstanceNorm3d: Reads.NORMED,
    nn.GroupNorm: Reads.NORMED,
    nn.LayerNorm: Reads.NORMED,
    nn.RMSNorm: Reads.NORMED,
    nn.ReLU: _positive,
    nn.LeakyReLU: _positive,
    nn.ReLU6: _limits,
    nn.Hardtanh: _limits,
    nn.Hardsigmoid: lambda _: (-3.0, 3.0),
    nn.CELU: Reads.VALUES,
    nn.ELU: Reads.VALUES,
    nn.GELU: Reads.VALUES,
    nn.GLU: Reads.VALUES,
    nn.Hardswish: Reads.VALUES,
    nn.Mish: Reads.VALUES,
    nn.SELU: Reads.VALUES,
    nn.SiLU: Reads.VALUES,
    nn.Sigmoid: Reads.VALUES,
    nn.Softplus: Reads.VALUES,
    nn.Tanh: Reads.VALUES,
    nn.Dropout: Reads.SCALED,
    nn.Dropout1d: Reads.SCALED,
    nn.Dropout2d: Reads.SCALED,
    nn.Dropout3d: Reads.SCALED,
    nn.AvgPool1d: Reads.SHAPE,
    nn.AvgPool2d: Reads.SHAPE,
    nn.AvgPool3d: Reads.SHAPE,
    nn.AdaptiveAvgPool1d: Reads.SHAPE,
    nn.AdaptiveAvgPool2d: Reads.SHAPE,
    nn.AdaptiveAvgPool3d: Reads.SHAPE,
    nn.MaxPool1d: Reads.SHAPE,
    nn.MaxPool2d: Reads.SHAPE,
    nn.MaxPool3d: Reads.SHAPE,
    nn.AdaptiveMaxPool1d: Reads.SHAPE,
    nn.AdaptiveMaxPool2d: Reads.SHAPE,
    nn.AdaptiveMaxPool3d: Reads.SHAPE,
}
"""Modules whose backward stands noise.

Not here: softmax, attention and losses, whose backward takes exponentials of differences of saved
tensors, which errors blow up; recurrent layers, whose backward multiplies errors step by step;
PReLU and PACT, which also ask on which side of a bound a value is: at 8 bits of normal values their
gradients are wrong by 6 and 9 % of their norm.
"""

Rules = Mapping[str | type[nn.Module], int | None]


def chosen(
    model: nn.Module, bits: int, rules: Rules | None
) -> tuple[dict[str, tuple[int, Reads | Bounds]], dict[str, str]]:
    """Return bits and reads by names of modules to pack, and the reasons for skipping others.

    Errors are those of `attach`.
    """
    given = {} if rules is None else rules
    every = dict(model.named_modules())
    _check(given, every)
    packed: dict[str, tuple[int, Reads | Bounds]] = {}
    left: dict[str, str] = {}
    used = set()
    for name, module in every.items():
        key = next((key for key in given if _matches(key, name, module)), None)
        reads = _known(module)
        if isinstance(reads, str) and inspect.isclass(key):
            reads = Reads.VALUES
        wanted = bits if key is None else given[key]
        if not isinstance(reads, str) and wanted is not None:
            packed[name] = wanted, reads
            used.add(key)
        elif not isinstance(reads, str):
            left[name] = "the rules say so"
        elif not list(module.children()) or list(module.parameters(recurse=False)):
            left[name] = reads
    if idle := [key for key, value in given.items() if value is not None and key not in used]:
        raise ValueError(
            f"no module that {idle[0]!r} matches first has tensors that are packed: give its class "
            "as a key to declare that its backward pass tolerates noise"
        )
    if not packed:
        raise ValueError(
            "the model has no module whose saved tensors are packed, such as a linear layer or a "
            "convolution: give your own classes as keys of rules"
        )
    return packed, left


def _known(module: nn.Module) -> Reads | Bounds | str:
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
    if not isinstance(rules, Mapping):
        raise TypeError(f"rules must map names or classes of modules to bits, got {rules!r}")
    _rules.check((key for key in rules if not inspect.isclass(key)), every, "module")
    for key, value in rules.items():
        if value is not None:
            _validate.integer(f"the bits of {key!r}", value, low=1, high=8)
        if not inspect.isclass(key):
            continue
        if not issubclass(key, nn.Module):
            raise TypeError(f"a class in rules must be a module class, got {key!r}")
        if not any(isinstance(each, key) for each in every.values()):
            raise ValueError(f"no module is a {key.__name__}")
