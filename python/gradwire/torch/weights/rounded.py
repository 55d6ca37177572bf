"""Modules that read their parameters rounded, for training with few bits.

The parameter stays where it is, under its name, so that optimizers, wrappers and state dicts find
it; only reading it as an attribute returns the rounded values. The module's class changes for that,
as by `torch.nn.utils.parametrize`, which would move the parameter and rename it.
"""

import functools
from typing import Any

import torch
from torch import nn

from gradwire.quantize import Affine
from gradwire.torch import ops
from gradwire.torch.weights.ops import derive, grids, in_graph
from gradwire.torch.weights.weight import Packed, PackedWeight, WeightView
from gradwire.weights.pack import encoded

_HOW = "_rounded_parameters"
"""Attribute of such a module: arguments of the operator, by the names of its parameters."""


class _Rounded(nn.Module):
    """The base class of such modules; `_class_of` creates their classes."""

    _base: type[nn.Module]
    _names: tuple[str, ...]

    def extra_repr(self) -> str:
        how = ", ".join(f"{name}: {how[0]} bits" for name, how in getattr(self, _HOW).items())
        return ", ".join(filter(None, [super().extra_repr(), how]))

    def __setattr__(self, name: str, value: Any) -> None:
        # As in `head.weight = embedding.weight`: the parameters are tied, not what is read.
        tied = isinstance(value, WeightView) and isinstance(value.source, nn.Parameter)
        super().__setattr__(name, value.source if tied and name in self._names else value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(protocol)
        return (_remade, (self._base, self._names), *reduced[2:])


class _RoundedRecurrent(_Rounded):
    """A recurrent layer, which reads its parameters from a list."""

    _flat_weights: list[torch.Tensor | None]
    _flat_weights_names: list[str]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._flat_weights = [getattr(self, name, None) for name in self._flat_weights_names]
        try:
            return super().forward(*args, **kwargs)
        finally:
            self._init_flat_weights()

    def _init_flat_weights(self) -> None:
        self._flat_weights = [self._parameters.get(name) for name in self._flat_weights_names]

    def _update_flat_weights(self) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._init_flat_weights()


def round_parameter(module: nn.Module, name: str, how: tuple[Any, ...]) -> None:
    """Make a module read one of its parameters rounded: ``rounded(parameter, *how)``."""
    before = getattr(module, _HOW, {})
    _change(module, {**before, name: how})


def release(module: nn.Module, name: str) -> None:
    if is_rounded(module, name):
        before = getattr(module, _HOW)
        _change(module, {other: how for other, how in before.items() if other != name})


def is_rounded(module: nn.Module, name: str) -> bool:
    return isinstance(module, _Rounded) and name in module._names


def kind_of(module: nn.Module, name: str) -> type[nn.Module]:
    """Return the class of a module that reads this parameter unrounded."""
    alone = isinstance(module, _Rounded) and module._names == (name,)
    return module._base if alone else type(module)  # type: ignore[return-value]


def _change(module: nn.Module, how: dict[str, tuple[Any, ...]]) -> None:
    base: Any = module._base if isinstance(module, _Rounded) else type(module)
    module.__class__ = _class_of(base, tuple(sorted(how))) if how else base
    setattr(module, _HOW, how)
    if not how:
        delattr(module, _HOW)
    if isinstance(module, nn.RNNBase):
        module._init_flat_weights()


@functools.lru_cache(maxsize=256)
def _class_of(base: Any, names: tuple[str, ...]) -> Any:
    kind = _RoundedRecurrent if issubclass(base, nn.RNNBase) else _Rounded
    properties = {name: property(functools.partial(_read, name=name)) for name in names}
    facts = {"_base": base, "_names": names, "__module__": base.__module__}
    return type(f"Rounded{base.__name__}", (kind, base), {**properties, **facts})


def _remade(base: Any, names: tuple[str, ...]) -> nn.Module:
    kind = _class_of(base, names)
    made: nn.Module = kind.__new__(kind)
    return made


def _read(module: nn.Module, name: str) -> torch.Tensor:
    parameter, how = module._parameters[name], getattr(module, _HOW)[name]
    if in_graph():
        return rounded(parameter, *how)
    if parameter is not None and torch.is_inference_mode_enabled():
        with torch.inference_mode(False):  # whose tensors do not count the writes to them
            values = rounded(parameter.detach(), *how)
    else:
        values = rounded(parameter, *how)
    return WeightView.of(
        values,
        f"the {name} of a {type(module).__name__} is rounded when it is read: what is written to "
        "it would be lost. Write to the parameter, which model.named_parameters() has, or to a "
        "copy, as .clone() returns; to merge an adapter, close what straight_through() returned",
        parameter,
    )


def rounded(
    weight: torch.Tensor | None, bits: int, block: int | None, fit: str, clips: bool, name: str
) -> torch.Tensor:
    """Return values rounded by packing, in the same dtype, with a straight-through gradient.

    With ``clips``, it is zero for values outside the grid.
    """
    how = (weight, bits, block, fit, clips, name)
    run = torch.ops.gradwire.affine_rounded if in_graph() else _Straight.apply
    values: torch.Tensor = run(*how)[0]
    return values


def _run(
    weight: torch.Tensor, bits: int, block: int | None, fit: Any, clips: bool, name: str
) -> tuple[torch.Tensor, torch.Tensor]:
    values = weight.detach().to("cpu", torch.float32).contiguous()
    frame = encoded(values.numpy(), Affine(bits, block, fit), name)
    held = PackedWeight(Packed(frame, tuple(weight.shape)))
    out = torch.empty_like(weight).copy_(held.decoded(weight.dtype))
    if not clips:
        return out, out.new_empty(0, dtype=torch.bool)
    return out, _within(values, held, fit).to(weight.device)


def _within(values: torch.Tensor, held: PackedWeight, fit: str) -> torch.Tensor:
    """Tell which values lie between the ends of the grid of their block."""
    bits, block, exponent = held.grid
    flat = values.view(-1)
    steps, bases = grids(held.frame, -(-len(flat) // block), exponent)
    half = (2**bits - 1) / 2 * steps
    # A grid of squares has cells around its values; ends are as exact as float16.
    reach = half + (steps / 2 if fit == "squares" else 0)
    centre, reach = bases + half, reach + 2**-10 * (reach + (bases + half).abs())
    centre, reach = (part.repeat_interleave(block)[: len(flat)] for part in (centre, reach))
    within: torch.Tensor = (flat - centre).abs() <= reach
    return within.view_as(values)


def _fake(
    weight: torch.Tensor, bits: int, block: int | None, fit: str, clips: bool, name: str
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = weight.shape if clips else (0,)
    return torch.empty_like(weight), weight.new_empty(shape, dtype=torch.bool)


def _pass_gradient(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient or a tangent of the rounded values, as one of the weight."""
    return gradient * ctx.saved_tensors[0] if ctx.clips else gradient.view_as(gradient)


class _Straight(torch.autograd.Function):
    """``affine_rounded`` in eager mode, with derivatives in forward mode and torch.func."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return torch.ops.gradwire.affine_rounded(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[object, ...], output: Any) -> None:
        ctx.clips = inputs[4]
        if ctx.clips:
            ctx.save_for_backward(output[1])
            ctx.save_for_forward(output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: object) -> tuple[torch.Tensor | None, ...]:
        return _pass_gradient(ctx, gradient), None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: object) -> tuple[torch.Tensor, None]:
        return _pass_gradient(ctx, tangent), None

    @staticmethod
    def vmap(_: Any, dims: Any, weight: torch.Tensor, *how: Any) -> Any:
        each = [_Straight.apply(one, *how) for one in weight.unbind(dims[0])]
        return tuple(map(torch.stack, zip(*each, strict=True))), (0, 0)


ops.register(
    "affine_rounded(Tensor weight, int bits, int? block, str fit, bool clips, str name) "
    "-> (Tensor, Tensor)",
    _run,
    _fake,
)
derive("affine_rounded", _Straight)
