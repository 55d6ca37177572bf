"""The bytes of one packed weight, on its device; and the read-only values that modules give out."""

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from gradwire._validate import require
from gradwire.frame import Frame
from gradwire.torch.weights.ops import in_graph
from gradwire.weights import Packed as Packed

_FACTS = {
    *(getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim")),
    *(torch.Tensor.dim, torch.Tensor.size, torch.Tensor.numel, torch.Tensor.is_floating_point),
}
"""What a view answers without its values."""

_IS_LEAF = torch.Tensor.is_leaf.__get__  # type: ignore[attr-defined]


class PackedWeight:
    """One packed tensor on a device. Modules whose weights are tied share one.

    ``packed``, on the host, never changes; ``frame`` is uint8, one frame of all of its bits, on the
    device, and on the CPU in the memory of ``packed``, which may be that of a file; ``grid`` has
    bits, block and exponent.
    """

    def __init__(self, packed: Packed, device: torch.device | str = "cpu") -> None:
        self.set(packed, device)

    def set(self, packed: Packed, device: torch.device | str) -> None:
        frame = as_tensor(packed.joined())
        exponent = int(frame[10:12].view(torch.int16))
        self.packed, self.frame = packed, frame.to(device)
        self.grid = (packed.bits, packed.block, exponent)

    def to(self, device: torch.device) -> None:
        """Move the bytes, for all modules that share them."""
        if device != self.frame.device:
            self.frame = as_tensor(self.packed.joined()).to(device)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the bytes for saving, by the suffix of the tensor's name."""
        parts = {"": self.packed.frame}
        if self.packed.further is not None:
            parts[".more.0"] = self.packed.further
        return {suffix: as_tensor(data).to(self.frame.device) for suffix, data in parts.items()}

    def decoded(self, dtype: torch.dtype, row: int | None = None) -> torch.Tensor:
        """Return the decoded values, in the tensor's shape; or of one row, in ``shape[1:]``."""
        rows, cols = rows_of(self.packed.shape)
        indices = None if row is None else torch.tensor([row], device=self.frame.device)
        out: torch.Tensor = torch.ops.gradwire.packed_rows(
            self.frame, indices, rows, cols, self.grid, dtype
        )
        return out.view(self.packed.shape if row is None else self.packed.shape[1:])

    def read(self, dtype: torch.dtype, refusal: str) -> torch.Tensor:
        """Return the values as a module gives them out: read-only; see `WeightView`."""
        if in_graph():
            return self.decoded(dtype)
        meta = torch.empty(self.packed.shape, dtype=dtype, device="meta")
        now = copy.deepcopy(self)  # the bytes as they are, also if others are loaded later
        return WeightView(meta, self.frame.device, partial(now.decoded, dtype), refusal, self)

    def __str__(self) -> str:
        return f"bits={self.packed.bits}, block={self.packed.block}"

    def __deepcopy__(self, memo: object) -> "PackedWeight":
        # The bytes never change, so copies share them; moving one leaves the other.
        copied = object.__new__(PackedWeight)
        copied.__dict__.update(self.__dict__)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedWeight, (self.packed, self.frame.device)


def parse(tensors: list[torch.Tensor], like: Packed) -> Packed:
    """Return a packed tensor of saved bytes, which replaces one of the same shape and dtype."""
    for tensor in tensors:
        require(
            tensor.dtype is torch.uint8 and tensor.dim() == 1,
            "expected the bytes of a frame, torch.uint8 of one dimension, got {} of shape {}; a "
            "packed module takes no dense weight",
            *(tensor.dtype, tuple(tensor.shape)),
            kind=TypeError,
        )
    arrays = [tensor.detach().cpu().clone().numpy() for tensor in tensors]
    return from_bytes(like.shape, like.dtype, *arrays)


def from_bytes(shape: tuple[int, ...], dtype: str, frame: Any, further: Any = None) -> Packed:
    """Return a packed tensor of the bytes that a state dict has of it."""
    numel = max(math.prod(shape), 1)
    Frame(memoryview(frame), max_numel=numel)
    if further is None:
        return Packed(frame, shape, dtype)
    # All codes but the checksum, of as many bits each.
    packed = Packed(frame, shape, dtype, further, 8 * (further.nbytes - 4) // numel)
    packed.joined()
    return packed


def name_of(dtype: torch.dtype) -> str:
    """Return a dtype's name in files."""
    return str(dtype).removeprefix("torch.")


def packed_name(dtype: torch.dtype) -> str:
    """Return the dtype of a packed tensor in files: float64 was rounded to float32."""
    return "float32" if dtype is torch.float64 else name_of(dtype)


def rows_of(shape: tuple[int, ...]) -> tuple[int, int]:
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)


def as_tensor(data: Any) -> torch.Tensor:
    """Return bytes as a read-only tensor that shares their memory."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.frombuffer(data, dtype=torch.uint8)


class WeightView(torch.Tensor):
    """A weight as its module gives it out: computed when it is used, and read-only.

    The module keeps something else, packed bytes or a parameter that is rounded, so a write to
    these values would be lost: it raises a ValueError, as numpy does for read-only arrays. (After a
    TypeError, Python would go on from ``w += d`` to ``w = w + d``.) Functions get a plain tensor
    and return plain ones; results that share its memory are views as well, so
    ``layer.weight.T[0] = 1`` raises just as ``layer.weight[0] = 1`` does. ``layer.weight[3]``
    computes this row alone.

    Attributes
    ----------
    source : object
        What the module keeps: a PackedWeight or the parameter; None for a view of a view.
    """

    source: Any
    _compute: Callable[..., torch.Tensor]
    _refusal: str
    _known: torch.Tensor | None

    @staticmethod
    def __new__(
        cls,
        like: torch.Tensor,
        device: torch.device,
        compute: Callable[..., torch.Tensor],
        refusal: str,
        source: Any = None,
    ) -> "WeightView":
        """Return a view of the shape and dtype of ``like``.

        ``compute`` returns the values, or those of one row of the first dimension, whose number it
        gets; ``refusal`` is the error of writes: what the weight is, and what to do.
        """
        view: WeightView = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, dtype=like.dtype, device=device
        )
        view._compute, view._refusal, view._known, view.source = compute, refusal, None, source
        # `Module.get_parameter` and what ties weights ask for an nn.Parameter.
        view._is_param = source is not None
        return view

    @classmethod
    def of(cls, values: torch.Tensor, refusal: str, source: Any = None) -> Self:
        view = cls(values, values.device, lambda: values, refusal, source)
        view._known = values
        return view

    def values(self) -> torch.Tensor:
        """Return the values, a plain tensor; they are computed once."""
        if self._known is None:
            # Tensors of inference mode do not count the writes to them.
            with torch.inference_mode(False), torch.no_grad():
                self._known = self._compute()
        return self._known

    def _row(self, index: object) -> torch.Tensor | None:
        """Return the values at a whole number, if they are not known yet."""
        if isinstance(index, torch.Tensor) and index.dim() == 0 and not index.is_floating_point():
            index = None if index.dtype is torch.bool else int(index)
        if type(index) is not int or self._known is not None or not self.dim():
            return None
        count = self.shape[0]
        return self._compute(index % count) if -count <= index < count else None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func == _IS_LEAF:
            return False  # an optimizer refuses tensors that are computed
        views = list(_views((args, kwargs)))
        if _writes(func, args, kwargs):
            raise ValueError(views[0]._refusal)
        of_one = func is torch.Tensor.__getitem__ and isinstance(args[0], cls)
        if of_one and (row := args[0]._row(args[1])) is not None:
            return cls.of(row, args[0]._refusal)
        known = [view.values() for view in views]
        before = [_version(values) for values in known]
        args, kwargs = tree_map_only(cls, cls.values, (args, kwargs))
        result = func(*args, **kwargs)
        for view, values, version in zip(views, known, before, strict=True):
            if _version(values) != version:  # as of `F.relu(w, inplace=True)`
                raise ValueError(view._refusal)

        def guarded(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
            elif isinstance(value, torch.Tensor):
                for view, values in zip(views, known, strict=True):
                    if _share_memory(value, values):
                        return cls.of(value, view._refusal)
            return value

        return tree_map(guarded, result) if type(result) in (tuple, list) else guarded(result)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch has it as a method
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # What torch functions do not see, such as a tensor that autograd has saved.
        for view in _views((args[:1], (kwargs or {}).get("out"))):
            if func._schema.is_mutable:
                raise ValueError(view._refusal)
        args, kwargs = tree_map_only(cls, cls.values, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __deepcopy__(self, memo: object) -> torch.Tensor:
        return self.values().detach().clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.values().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def _views(tree: Any) -> Iterator[WeightView]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, WeightView))


def _writes(func: Any, args: Any, kwargs: Any) -> bool:
    """Tell whether a function's name says that it writes to a view: to its first argument."""
    name = getattr(func, "__name__", "")
    whole = [*args, *kwargs.values()]
    if not list(_views(whole[:1])):
        return False
    if name in ("__set__", "requires_grad_"):
        return len(whole) < 2 or not (whole[1] is None or whole[1] is False)
    return name == "__setitem__" or bool(name.endswith("_") and not name.endswith("__"))


def _version(values: torch.Tensor) -> int:
    return 0 if values.is_inference() else values._version


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    try:
        return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)
    except NotImplementedError:  # within torch.func
        return False
