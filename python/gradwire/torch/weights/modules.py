"""Linear layers and embeddings that keep their weights packed."""

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import nn

from gradwire import _validate
from gradwire.torch.weights import ops as ops  # registers the operators
from gradwire.torch.weights.rounded import kind_of
from gradwire.torch.weights.weight import Packed, PackedWeight, parse

Activations = Literal["float32", "int8"]


class PackedModule(nn.Module):
    """The base class of packed modules, whose weight is bytes and cannot be trained."""

    _packed: PackedWeight
    _dtype: torch.dtype

    @property
    def packed(self) -> Packed:
        """The packed weight: its shape, its bits, its bytes."""
        return self._packed.packed

    @property
    def weight(self) -> torch.Tensor:
        """The decoded weight, in the module's dtype: a new tensor each time, without gradient."""
        return self._packed.decoded(self._dtype)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight":
            raise TypeError(
                f"the weight of a {type(self).__name__} is packed: it accepts no values and has no "
                "gradient. Replace the module to train its weight"
            )
        super().__setattr__(name, value)

    def reset_parameters(self) -> None:
        """Raise a TypeError: packed weights cannot be reset."""
        setattr(self, "weight", None)  # noqa: B010

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        # The bytes move, and are never converted; the dtype is that of what they decode to.
        probe = fn(torch.empty(0, dtype=self._dtype, device=self._packed.frame.device))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._packed.to(probe.device)
        self._dtype = probe.dtype
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for name, tensor in self._packed.tensors().items():
            destination[f"{prefix}weight{name}"] = tensor
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        name = f"{prefix}weight"
        own = [name, *(key for key in state_dict if key.startswith(f"{name}.more."))]
        unexpected_keys[:] = [key for key in unexpected_keys if key not in own]
        if name not in state_dict:
            if strict:
                missing_keys.append(name)
            return
        try:
            packed = parse([state_dict[key] for key in own], self.packed)
        except (TypeError, ValueError) as error:
            error_msgs.append(f"{name}: {error}")
        else:
            self._packed.set(packed, self._packed.frame.device)


class PackedLinear(PackedModule, nn.Linear):  # type: ignore[override]  # its weight is read-only
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

    Attributes
    ----------
    in_features, out_features, bias
        As in `torch.nn.Linear`.
    weight : torch.Tensor
        Decoded on each access, in the module's dtype; it requires no gradient.

    Raises
    ------
    TypeError
        x holds integers; a value is assigned to ``weight``.
    ValueError
        x has the wrong width, or is on a different device than the weight.
    """

    activations: Activations

    def __init__(
        self,
        packed: Packed,
        bias: torch.Tensor | None = None,
        activations: Activations = "float32",
    ) -> None:
        nn.Module.__init__(self)
        _validate.choice("activations", activations, get_args(Activations))
        if len(packed.shape) != 2:
            raise ValueError(f"a linear layer needs a weight with 2 dimensions, got {packed.shape}")
        self.out_features, self.in_features = packed.shape
        if bias is not None and bias.shape != (self.out_features,):
            raise ValueError(
                f"bias must have shape ({self.out_features},), got {tuple(bias.shape)}"
            )
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias))
        hold(self, PackedWeight(packed), activations)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x W^T + b``, of shape (..., out_features) and x's dtype."""
        kind = x.device.type
        # There is no autocast on meta, and asking for it is an error.
        if kind != "meta" and x.dtype is not torch.float64 and torch.is_autocast_enabled(kind):
            x = x.to(torch.get_autocast_dtype(kind))
        held = self._packed
        y: torch.Tensor = torch.ops.gradwire.packed_linear(
            x, held.frame, self.out_features, self.in_features, held.grid, self.activations
        )
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def extra_repr(self) -> str:
        """Return what `print` shows in the parentheses."""
        return f"{super().extra_repr()}, {self._packed}"


class PackedEmbedding(PackedModule, nn.Embedding):  # type: ignore[override]  # likewise
    """An embedding that decodes the rows it looks up.

    Parameters
    ----------
    packed : gradwire.weights.Packed
        The weight, of shape (num_embeddings, embedding_dim).
    padding_idx : int, optional
        As in `torch.nn.Embedding`. It only affects gradients there, so it has no effect here.

    Attributes
    ----------
    num_embeddings, embedding_dim, padding_idx
        As in `torch.nn.Embedding`.
    weight : torch.Tensor
        Decoded on each access, in the module's dtype; it requires no gradient.

    Raises
    ------
    IndexError
        An index is negative or not below ``num_embeddings``.
    TypeError
        Indices are not int64 or int32; a value is assigned to ``weight``.
    ValueError
        Indices are on another device than the weight.
    """

    def __init__(self, packed: Packed, padding_idx: int | None = None) -> None:
        nn.Module.__init__(self)
        if len(packed.shape) != 2:
            raise ValueError(f"an embedding needs a weight with 2 dimensions, got {packed.shape}")
        self.num_embeddings, self.embedding_dim = packed.shape
        self.padding_idx = padding_idx
        self.max_norm, self.norm_type = None, 2.0
        self.scale_grad_by_freq = self.sparse = False
        hold(self, PackedWeight(packed))

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """Return rows, of shape (..., embedding_dim) and the module's dtype."""
        held = self._packed
        rows: torch.Tensor = torch.ops.gradwire.packed_rows(
            held.frame, indices, self.num_embeddings, self.embedding_dim, held.grid, self._dtype
        )
        return rows

    def extra_repr(self) -> str:
        """Return what `print` shows in the parentheses."""
        return f"{super().extra_repr()}, {self._packed}"


KINDS = {nn.Linear: PackedLinear, nn.Embedding: PackedEmbedding}
"""The packed class for each exact class of module; subclasses may behave differently."""


def hold(module: Any, weight: PackedWeight, activations: Activations = "float32") -> None:
    """Set the weight of a packed module."""
    module._packed = weight
    module._dtype = getattr(torch, weight.packed.dtype)
    if isinstance(module, PackedLinear):
        module.activations = activations


def takes_packed(module: nn.Module) -> bool:
    """Tell whether a module supports a packed weight."""
    return kind_of(module, "weight") in KINDS and getattr(module, "max_norm", None) is None


def convert(module: Any, weight: PackedWeight, activations: Activations, to: torch.dtype) -> None:
    """Convert a linear layer or an embedding to a packed one; hooks and bias are kept."""
    if type(module) in KINDS:
        del module.weight
        module.__class__ = KINDS[type(module)]
    hold(module, weight, activations)
    module._dtype = to  # float64 is held as float32
