"""Observes all uses of a model's weights, and their inputs.

A torch function mode sees every function call and its tensors. This covers functional uses, tied
weights, and modules whose forward hooks do not suffice: the last layer of `nn.MultiheadAttention`,
a `nn.TransformerEncoderLayer` that would run as one operator (with a mode it does not), layers
inside an `nn.LSTM`.
"""

import types
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from gradwire.torch.weights import recurrent
from gradwire.torch.weights.inputs import Inputs, Range, patches, rows
from gradwire.torch.weights.recurrent import Uses

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

See = Callable[[str, Range, int, Inputs], None]
"""Takes a weight's name, the rows of it that are used, how many it has, and their inputs."""

_VALUES = ("data", "T", "mT", "H", "mH")  # attributes that give values
_STANDS_FOR = "_gradwire_stands_for"


class Watch(TorchFunctionMode):
    """Reports each use of a weight, before it happens.

    Parameters
    ----------
    parameters : mapping of str to torch.nn.Parameter
        The weights.
    see : callable
        Called with each use.
    names : collection of str, optional
        Weights to report; all by default.
    replaced : mapping of str to torch.Tensor
        Replacements of weights in all functions. Queried at each use.
    others : set of str, optional
        Receives the names of weights that are also used otherwise: looked up by rows, or multiplied
        by inputs along another dimension, as by a transposed convolution.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        see: See,
        names: Collection[str] | None = None,
        replaced: Mapping[str, torch.Tensor] | None = None,
        others: set[str] | None = None,
    ) -> None:
        super().__init__()
        self._others = set[str]() if others is None else others
        self._names = {id(each): name for name, each in parameters.items()}
        self._parameters = parameters
        self._see = see
        self._told = parameters if names is None else names
        self._replaced = replaced or {}

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Report the weights among a function's arguments, and call it."""
        kwargs = kwargs or {}
        if func in _LAYERS:
            weights = args[2] if isinstance(args[3], bool) else args[3]
            if any(map(self._base, weights)):
                self._tell(recurrent.layers(func, self._swap, *args))
        elif func in _USES:
            self._tell(_USES[func](*args, **kwargs))
        elif func in _OTHER_USES and (known := self._base(_OTHER_USES[func](*args, **kwargs))):
            self._others.add(known[0])
        if self._replaced and _takes_values(func):
            args = [self._swapped(each) for each in args]
            kwargs = {name: self._swapped(each) for name, each in kwargs.items()}
        if func is F.multi_head_attention_forward:
            with self:
                return _attention(*args, **kwargs)
        return func(*args, **kwargs)

    def _tell(self, uses: Uses) -> None:
        for weight, make in uses:
            known = self._base(weight)
            if known is None:
                continue
            inputs = make()
            values = inputs.values
            if inputs.samples and values.dtype in FLOATS and not values.is_meta:
                used = self._rows(*known, weight, inputs.width)
                if used is not None:
                    self._see(known[0], *used, inputs)
                elif inputs.width in (weight.shape[-1], weight.shape[1:].numel()):
                    self._others.add(known[0])

    def _base(self, weight: torch.Tensor) -> tuple[str, torch.Tensor] | None:
        """Return the name and the full weight of which a tensor is a view, if it is watched."""
        for base in (weight, weight._base):
            name = None if base is None else self._name(base)
            if base is not None and name is not None:
                return (name, base) if name in self._told else None
        return None

    def _rows(
        self, name: str, base: torch.Tensor, weight: torch.Tensor, width: int
    ) -> tuple[Range, int] | None:
        """Return which rows of a weight a tensor is, and the number of its rows."""
        shape = self._parameters[name].shape
        if width not in (shape[-1], shape[1:].numel()):
            return None  # and torch tells why
        every = int(shape.numel()) // width
        if base is weight:
            return (0, every), every
        if weight.shape[1:] != (width,) or weight.stride() != (width, 1):
            return None
        if not len(weight) or not base.is_contiguous():
            return None
        first = int(weight.storage_offset() - base.storage_offset()) // width
        return (first, first + len(weight)), every

    def _name(self, tensor: torch.Tensor) -> str | None:
        return self._names.get(id(tensor)) or getattr(tensor, _STANDS_FOR, None)

    def _swapped(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._swap(value)
        if type(value) in (list, tuple):
            return type(value)(self._swapped(each) for each in value)
        return value

    def _swap(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the replacement of a tensor."""
        name = self._names.get(id(tensor))
        given = None if name is None else self._replaced.get(name)
        if given is None:
            return tensor
        value = given.detach().to(tensor.device, tensor.dtype)
        if value.shape != tensor.shape:
            raise ValueError(f"{name!r} has shape {tuple(tensor.shape)}, got {tuple(value.shape)}")
        value = value.contiguous()
        base = value if value._base is None else value._base
        setattr(base, _STANDS_FOR, name)
        return value


def _takes_values(func: Any) -> bool:
    """Tell whether a function may read values, unlike getters such as that of ``shape``."""
    return getattr(func, "__name__", "") != "__get__" or func.__self__.__name__ in _VALUES


def _opened(func: types.FunctionType) -> Callable[..., Any]:
    """Return a torch function that does not dispatch itself to a mode.

    Otherwise a mode sees the call of such a function, but none of the calls inside it.
    """
    names = {**func.__globals__, "has_torch_function": lambda *_: False}
    copy = types.FunctionType(func.__code__, names, func.__name__, func.__defaults__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


_attention = _opened(F.multi_head_attention_forward)  # type: ignore[arg-type]


def _linear(input: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> Uses:
    if not input.is_nested:
        yield weight, lambda: rows(input)


def _product(input: torch.Tensor, other: Any, **_: Any) -> Uses:
    if isinstance(other, torch.Tensor) and other.dim() == 2 and input.dim() > 0:
        yield other.t(), lambda: rows(input)


def _mm(input: torch.Tensor, mat2: torch.Tensor, **_: Any) -> Uses:
    return _product(input, mat2)


def _addmm(input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, **_: Any) -> Uses:
    return _product(mat1, mat2)


def _grouped(
    mat_a: torch.Tensor, mat_b: torch.Tensor, offs: Any = None, *_: Any, **__: Any
) -> Uses:
    """Report the experts in a grouped product, each multiplied by some rows."""
    if mat_a.dim() == 2 and mat_b.dim() == 3 and offs is not None:
        start = 0
        for expert, stop in zip(mat_b, offs.tolist(), strict=True):
            yield expert.t(), partial(rows, mat_a[start:stop])
            start = stop


def _convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Uses:
    kernel = tuple(weight.shape[2:])
    dims = len(kernel)

    def by_dimension(value: Any) -> tuple[int, ...]:
        given = (value,) if isinstance(value, int) else tuple(value)
        return given * dims if len(given) == 1 else given

    apart = by_dimension(dilation)
    if padding == "same":
        both = [each * (size - 1) for each, size in zip(apart, kernel, strict=True)]
        pads = tuple((total // 2, total - total // 2) for total in both)
    else:
        pads = tuple((n, n) for n in by_dimension(0 if padding == "valid" else padding))
    yield weight, lambda: patches(input, kernel, by_dimension(stride), pads, apart, groups)


_LAYERS = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}
_USES: dict[Any, Callable[..., Uses]] = {
    F.linear: _linear,
    torch.matmul: _product,
    torch.Tensor.matmul: _product,
    torch.Tensor.__matmul__: _product,
    torch.mm: _mm,
    torch.Tensor.mm: _mm,
    torch.addmm: _addmm,
    torch.Tensor.addmm: _addmm,
    torch.conv1d: _convolution,
    torch.conv2d: _convolution,
    torch.conv3d: _convolution,
    torch.lstm_cell: recurrent.cell,
    torch.gru_cell: recurrent.cell,
    torch.rnn_tanh_cell: recurrent.cell,
    torch.rnn_relu_cell: recurrent.cell,
    getattr(torch, "_grouped_mm", None): _grouped,  # what `F.grouped_mm` calls
}


def _first(input: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return input


def _second(input: torch.Tensor, weight: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return weight


_OTHER_USES: dict[Any, Callable[..., torch.Tensor]] = {
    F.embedding: _second,
    F.embedding_bag: _second,
    F.bilinear: lambda input1, input2, weight, *_, **__: weight,
    torch.conv_transpose1d: _second,
    torch.conv_transpose2d: _second,
    torch.conv_transpose3d: _second,
    torch.index_select: _first,
    torch.Tensor.index_select: _first,
    torch.gather: _first,
    torch.Tensor.gather: _first,
}
