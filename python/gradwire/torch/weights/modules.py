"""Modules that keep their weights packed: linear layers, embeddings, experts."""

import functools
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import nn

from gradwire import _validate
from gradwire._validate import require
from gradwire.torch.weights import ops as ops  # registers the operators
from gradwire.torch.weights.rounded import kind_of
from gradwire.torch.weights.weight import Packed, PackedWeight, WeightView, parse

Activations = Literal["float32", "int8"]


class PackedModule(nn.Module):
    """The base class of modules with packed weights, which are bytes and cannot be trained.

    Reading one of these weights decodes it, or the part that is read; see `WeightView`.
    """

    _weights: dict[str, PackedWeight]
    _dtype: torch.dtype
    _base: Any

    def extra_repr(self) -> str:
        names = sorted(self._weights, key="weight".__eq__)
        held = [f"{'' if n == 'weight' else f'{n}: '}{self._weights[n]}" for n in names]
        return ", ".join(filter(None, [super().extra_repr(), *held]))

    def _read(self, name: str) -> torch.Tensor:
        return self._weights[name].read(
            self._dtype,
            f"the {name} of a {type(self).__name__} is packed: reading it decodes it anew, so what "
            "is written to the decoded values would be lost. To merge an adapter into it, resize, "
            "initialize or train it, call gradwire.torch.weights.unpack(model) before, and "
            "pack(model, rules) afterwards; .clone() returns a copy that can be written to",
        )

    def __setattr__(self, name: str, value: Any) -> None:
        weight = self.__dict__.get("_weights", {}).get(name)
        if weight is None:
            super().__setattr__(name, value)
            return
        source = value.source if isinstance(value, WeightView) else None
        module = type(self).__name__
        if not isinstance(source, PackedWeight):
            raise TypeError(
                f"the {name} of a {module} is packed: it accepts no values and has no gradient, "
                "but the weight of another packed module, to tie them. Call "
                "gradwire.torch.weights.unpack(model) to train or replace it"
            )
        shapes = weight.packed.shape, source.packed.shape
        message = "the {} of a {} has shape {}, and cannot be tied to one of shape {}"
        require(shapes[0] == shapes[1], message, name, module, *shapes)
        self._weights[name] = source

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        # The bytes move, and are never converted; the dtype is that of what they decode to.
        device = next(iter(self._weights.values())).frame.device
        probe = fn(torch.empty(0, dtype=self._dtype, device=device))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for weight in self._weights.values():
            weight.to(probe.device)
        self._dtype = probe.dtype
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for name, weight in self._weights.items():
            for suffix, tensor in weight.tensors().items():
                destination[f"{prefix}{name}{suffix}"] = tensor
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        _, strict, missing_keys, unexpected_keys, error_msgs = rest
        for attribute, weight in self._weights.items():
            name = f"{prefix}{attribute}"
            keys = [name, *(key for key in state_dict if key.startswith(f"{name}.more."))]
            unexpected_keys[:] = [key for key in unexpected_keys if key not in keys]
            if name not in state_dict:
                missing_keys.extend([name] if strict else [])
                continue
            try:
                packed = parse([state_dict[key] for key in keys], weight.packed)
            except (TypeError, ValueError) as error:
                error_msgs.append(f"{name}: {error}")
            else:
                weight.set(packed, weight.frame.device)

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(protocol)
        if "_base" not in type(self).__dict__:  # a class of somebody else
            return reduced
        return (_remade, (type(self)._base,), *reduced[2:])


class PackedMatrix(PackedModule):
    """A module with one packed weight, of two dimensions."""

    def _hold(self, packed: Packed) -> None:
        self._weights = {"weight": PackedWeight(packed)}
        self._dtype = getattr(torch, packed.dtype)

    @property
    def packed(self) -> Packed:
        """The packed weight: its shape, its bits, its bytes."""
        return self._weights["weight"].packed

    @property
    def weight(self) -> torch.Tensor:
        """The decoded weight, in the module's dtype: read-only, without gradient."""
        return self._read("weight")

    def reset_parameters(self) -> None:
        """Raise a TypeError: packed weights cannot be reset."""
        setattr(self, "weight", None)  # noqa: B010

    def _times(self, x: torch.Tensor, activations: str, transposed: bool = False) -> torch.Tensor:
        kind = x.device.type
        # There is no autocast on meta, and asking for it is an error.
        if kind != "meta" and x.dtype is not torch.float64 and torch.is_autocast_enabled(kind):
            x = x.to(torch.get_autocast_dtype(kind))
        weight = self._weights["weight"]
        matrix = (weight.frame, *weight.packed.shape, weight.grid)
        y = ops.product(x, *matrix, activations, transposed)
        bias: Any = self.bias
        return y if bias is None else y + bias.to(y.dtype)


class PackedLinear(PackedMatrix, nn.Linear):  # type: ignore[override]  # its weight is read-only
    """A linear layer that multiplies packed weights directly: ``y = x W^T + b``.

    Up to 16 rows of x are multiplied by the codes while reading them, in float32. For more rows,
    256 rows of weights at a time are decoded into the cache, and torch multiplies. The result has
    the dtype of x. float64 is multiplied in float64, by weights of float32; bfloat16 of more than
    16 rows by weights rounded to bfloat16; everything else in float32. On devices other than the
    CPU, each call decodes the weights (see `backend`).

    Gradients flow to x and to the bias. The weight has none.

    Parameters
    ----------
    packed : gradwire.weights.Packed
        The weight, of shape (out_features, in_features).
    bias : torch.Tensor, optional
        The bias, of shape (out_features,). It becomes a parameter.
    activations : {"float32", "int8"}
        The precision of x for up to 16 rows on the CPU: unchanged, or rounded to 8 bits in runs of
        64 entries, which is faster. Can be changed at any time.

    Raises
    ------
    TypeError
        x holds integers; a value is assigned to ``weight``.
    ValueError
        x has the wrong width, or is on a different device than the weight; ``weight`` is written
        to in place.
    """

    activations: Activations
    _base = nn.Linear

    def __init__(
        self,
        packed: Packed,
        bias: torch.Tensor | None = None,
        activations: Activations = "float32",
    ) -> None:
        nn.Module.__init__(self)
        _validate.choice("activations", activations, get_args(Activations))
        self.out_features, self.in_features = packed.shape
        if bias is not None:
            width, shape = self.out_features, tuple(bias.shape)
            require(shape == (width,), "bias must have shape ({},), got {}", width, shape)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias))
        self._hold(packed)
        self.activations = activations

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x W^T + b``, of shape (..., out_features) and x's dtype."""
        return self._times(x, self.activations)


class PackedEmbedding(PackedMatrix, nn.Embedding):  # type: ignore[override]  # likewise
    """An embedding that decodes the rows it looks up.

    Parameters
    ----------
    packed : gradwire.weights.Packed
        The weight, of shape (num_embeddings, embedding_dim).
    padding_idx : int, optional
        As in `torch.nn.Embedding`. It only affects gradients there, so it has no effect here.

    Raises
    ------
    IndexError
        An index is negative or not below ``num_embeddings``.
    TypeError
        Indices are not int64 or int32; a value is assigned to ``weight``.
    ValueError
        Indices are on another device than the weight; ``weight`` is written to in place.
    """

    _base = nn.Embedding

    def __init__(self, packed: Packed, padding_idx: int | None = None) -> None:
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = packed.shape
        self.padding_idx = padding_idx
        self.max_norm, self.norm_type = None, 2.0
        self.scale_grad_by_freq = self.sparse = False
        self._hold(packed)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """Return rows, of shape (..., embedding_dim) and the module's dtype."""
        weight, shape = self._weights["weight"], (self.num_embeddings, self.embedding_dim)
        rows: torch.Tensor = torch.ops.gradwire.packed_rows(
            weight.frame, indices, *shape, weight.grid, self._dtype
        )
        return rows


class PackedConv1D(PackedMatrix):
    """What a Conv1D of Transformers becomes: ``y = x W + b``, with a weight of shape (in, out).

    256 rows of the weight at a time are decoded into the cache, for any number of rows of x.
    """

    __repr__ = nn.Module.__repr__  # Conv1D has its own, without the bits

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._times(x, "float32", transposed=True)


class PackedExperts(PackedModule):
    """What a module with parameters of three dimensions becomes, such as experts of a mixture.

    Its own ``forward`` gets decoded weights: ``self.down_proj[3]`` decodes one expert, everything
    else all of them, for as long as they are used.
    """

    def __getattr__(self, name: str) -> Any:
        held = self.__dict__.get("_weights", {})
        return self._read(name) if name in held else super().__getattr__(name)


KINDS = {nn.Linear: PackedLinear, nn.Embedding: PackedEmbedding}
"""The packed class for each exact class of module; subclasses may behave differently."""


@functools.cache
def _class_of(base: Any) -> type[PackedModule]:
    if base in KINDS:
        return KINDS[base]
    kind = PackedConv1D if _is_conv1d(base) else PackedExperts
    facts = {"_base": base, "__module__": base.__module__}
    return type(f"Packed{base.__name__}", (kind, base), facts)


def _is_conv1d(kind: type[nn.Module]) -> bool:
    return f"{kind.__module__}.{kind.__qualname__}" == "transformers.pytorch_utils.Conv1D"


def _remade(base: Any) -> PackedModule:
    kind = _class_of(base)
    return kind.__new__(kind)


def reader_of(module: nn.Module, attribute: str) -> str | None:
    """Return how a module would read a packed parameter, as a report says it; None if it cannot."""
    kind = kind_of(module, attribute)
    if kind in KINDS or _is_conv1d(kind):
        if attribute != "weight" or getattr(module, "max_norm", None) is not None:
            return None
        return "embedding" if kind is nn.Embedding else "linear"
    parameter = module._parameters.get(attribute)
    several = parameter is not None and parameter.dim() == 3 and len(parameter) > 1
    if not several or kind.__module__.partition(".")[0] == "torch":
        return None
    dtypes = {parameter.dtype for parameter in module._parameters.values() if parameter is not None}
    return "experts" if len(dtypes) == 1 else None


def convert(
    module: Any, attribute: str, weight: PackedWeight, activations: Activations, to: torch.dtype
) -> None:
    """Make a module read a packed weight; its hooks and other parameters are kept."""
    if not isinstance(module, PackedModule):
        base: Any = type(module)
        module.__class__ = _class_of(base)
        module._weights = {}
    module._parameters.pop(attribute, None)
    module._weights[attribute] = weight
    module._dtype = to  # float64 is held as float32
    if isinstance(module, PackedLinear):
        module.activations = activations


def unpack(model: nn.Module) -> nn.Module:
    """Decode all packed weights of a model into parameters, which can be trained and written to.

    To merge adapters, resize embeddings or train further; call `pack` again afterwards, which
    chooses new grids and codes. Tied weights stay tied.

    Parameters
    ----------
    model : torch.nn.Module
        Changed in place: packed modules become again what they were before `pack`.

    Returns
    -------
    torch.nn.Module
        ``model``.

    Examples
    --------
    Merge the adapters of PEFT into a packed model, and pack the result:

    >>> merged = weights.unpack(model).merge_and_unload()
    >>> weights.pack(merged, {"*": quantize.Affine(4, 64)})
    """
    packed = [module for module in model.modules() if isinstance(module, PackedModule)]
    dense: dict[tuple[PackedWeight, torch.dtype], nn.Parameter] = {}
    for module in packed:
        for weight in module._weights.values():
            if (weight, module._dtype) not in dense:
                values = weight.decoded(module._dtype)
                dense[weight, module._dtype] = nn.Parameter(values)
    for module in packed:
        parameters: dict[str, nn.Parameter | None] = {
            name: dense[weight, module._dtype] for name, weight in module._weights.items()
        }
        for name in ("_weights", "_dtype", "activations"):
            module.__dict__.pop(name, None)
        module.__class__ = module._base
        module._parameters = {**parameters, **module._parameters}
    return model
