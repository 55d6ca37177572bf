"""Packs saved tensors, and unpacks them for backward."""

import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from gradwire._validate import require
from gradwire.torch.activations.forms import Bits, Encoder, Form, Groups, Shape
from gradwire.torch.activations.report import Tally
from gradwire.torch.activations.table import Activation, Reads, Slope, by_channel, group_entries
from gradwire.torch.tensors import has_no_gaps

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_PLAIN = (torch.Tensor, nn.Parameter)

_NOTHING = torch.empty(0)
"""Memory of tensors on the CPU that are kept in another way."""

_FEW = 8
"""With fewer entries per mean, backward takes small differences: for two entries, zero."""

_WAY = 4
"""Operators between a parameter and what is computed of it alone, as by casting or transposing."""


class Origin:
    """A saved tensor at one version, which lives as long as any of its packed forms.

    Its storage may be freed before: a weak reference to it prevents another storage from getting
    its address.
    """

    __slots__ = ("__weakref__", "_forms", "_storage")

    def __init__(self) -> None:
        # Until something is kept in its place, the tensor itself is, and its storage.
        self._storage: StorageWeakRef | None = None
        self._forms: dict[Any, weakref.ref[Form]] = {}

    def form(self, key: Any) -> Form | None:
        reference = self._forms.get(key)
        return None if reference is None else reference()

    def keep(self, key: Any, form: Form, x: torch.Tensor) -> None:
        """Remember a packed form of the tensor, weakly."""
        self._forms[key] = weakref.ref(form)
        if self._storage is None:
            self._storage = StorageWeakRef(x.untyped_storage())  # type: ignore[no-untyped-call]


class Origins:
    """The saved tensors that have packed forms. Keeps neither of them alive."""

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[Any, Origin] = weakref.WeakValueDictionary()

    def of(self, x: torch.Tensor, dense: bool) -> tuple[Origin, bool]:
        """Return the `Origin` of a tensor, and whether it is new."""
        layout = x.numel() if dense else (x.shape, x.stride())
        key = x.untyped_storage()._cdata, x.storage_offset(), layout, x.dtype, x._version
        origin = self._known.get(key)
        if origin is not None:
            return origin, False
        self._known[key] = origin = Origin()
        return origin, True

    def forget(self) -> None:
        """Forget all tensors: numpy may change them without a new version."""
        self._known.clear()


class Saved:
    """The object that torch saves instead of a tensor: without a form, it keeps the tensor itself.

    A dense tensor fills its memory without gaps.
    """

    __slots__ = ("_form", "_origin", "_seen", "_shape", "_stride", "_version")

    def __init__(
        self,
        x: torch.Tensor,
        origin: Origin | None = None,
        form: Form | None = None,
        dense: bool = False,
    ) -> None:
        self._version = x._version
        self._origin, self._form = origin, form
        if form is None:
            # An output must not be held itself: that would be a cycle.
            self._seen = x if x.is_leaf else x.detach()
            return
        self._shape, self._stride = x.shape, x.stride() if dense else None
        # Has the version of x still, and the memory no more.
        self._seen = x.detach()
        self._seen.data = _NOTHING if x.is_cpu else x.new_empty(0)

    def tensor(self) -> torch.Tensor:
        """Return the tensor, unpacked if necessary."""
        in_backward = torch._C._current_graph_task_id() != -1
        require(
            self._form is None or not torch.is_grad_enabled() or not in_backward,
            "gradients of gradients (create_graph=True) would treat errors of activations that "
            "gradwire has packed as values: first call remove() on what "
            "gradwire.torch.activations.attach() returned",
            kind=RuntimeError,
        )
        versions = self._seen._version, self._version
        require(
            versions[0] == versions[1],
            "one of the variables needed for gradient computation has been modified by an inplace "
            "operation: it is at version {}; expected version {} instead. It was saved within "
            "activations.attach()",
            *versions,
            kind=RuntimeError,
        )
        if self._form is None:
            return self._seen
        values = self._form.values()
        if self._stride is None:
            return values.view(self._shape)
        return values.as_strided(self._shape, self._stride)


class Packing:
    """One call of a module, whose saved tensors of at least so many entries are packed.

    ``is_on`` tells whether the call still is in progress, and packed.
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: tuple[object, ...],
        reads: Reads | Activation,
        encoder: Encoder,
        origins: Origins,
        tally: Tally,
        least: int,
        call: FrameType,
        is_on: Callable[[FrameType], bool],
    ) -> None:
        self._module, self._reads, self._least = module, reads, least
        self._encoder, self._origins, self._tally = encoder, origins, tally
        self._own = (*module._parameters.values(), *module._buffers.values())
        self._storages: set[int] | None = None
        self._numel = self._entries = 0
        self.call: FrameType | None = call
        self._is_on = is_on
        x = next((value for value in inputs if isinstance(value, torch.Tensor)), None)
        if reads is Reads.NORMED and x is not None and x.numel():
            self._numel, self._entries = x.numel(), group_entries(module, x)

    def end(self) -> None:
        """Let go of the call and of what it holds: torch may keep this object for ever."""
        self.call, self._own = None, ()

    def pack(self, x: torch.Tensor) -> Saved:
        """Return the object to save for a tensor: torch's pack hook."""
        if self.call is None or not self._is_on(self.call):
            return Saved(x)
        if any(x is tensor for tensor in self._own):
            return Saved(x)
        if type(x) not in _PLAIN or x.layout is not torch.strided or x.is_meta:
            self._tally.leave("tensors that are not contiguous", 0)
            return Saved(x)
        if self._is_parameter(x):
            return Saved(x)
        dense = x.is_contiguous() or has_no_gaps(x.shape, x.stride())
        origin, new = self._origins.of(x, dense)
        if new:
            self._tally.saved += x.nbytes
        form = self._why_left(x) or self._form(x, origin, dense)
        if not isinstance(form, str):
            return Saved(x, origin, form, dense)
        if new:
            self._tally.leave(form, x.nbytes)
        return Saved(x, origin)

    def _why_left(self, x: torch.Tensor) -> str | None:
        if x.numel() < self._least:
            return f"fewer than {self._least} entries"
        if x.dtype is not torch.bool and x.dtype not in _FLOATS:
            return str(x.dtype).removeprefix("torch.")
        if x.is_neg():
            return "negative view"
        if 0 in x.stride() or x.nbytes > x.untyped_storage().nbytes():
            return "expanded"
        if self._reads is Reads.NORMED and x.numel() != self._numel:
            return "means and deviations"
        if self._reads is Reads.NORMED and self._entries < _FEW:
            return f"fewer than {_FEW} entries per mean"
        return None

    def _form(self, x: torch.Tensor, origin: Origin, dense: bool) -> Form | str:
        """Return the packed form of a tensor, new or shared with another operator."""
        reads: Any = self._reads if isinstance(self._reads, Reads) else self._reads(self._module)
        key: Any = reads, self._encoder.bits
        if x.dtype is torch.bool:
            key = torch.bool
        elif reads is Reads.SHAPE and x.device.type not in _SHAPES:
            key = Reads.VALUES, self._encoder.bits
        elif reads is Reads.NORMED:
            key = reads, self._encoder.bits, self._entries, x.shape, x.stride()
        form: Form | str | None = origin.form(key)
        if form is None:
            form = self._encode(x, dense, key)
            if not isinstance(form, str):
                origin.keep(key, form, x)
                self._tally.kept += form.nbytes
        return form

    def _encode(self, x: torch.Tensor, dense: bool, key: Any) -> Form | str:
        x, flat = x.detach(), _flat(x, dense)
        if key is torch.bool:
            return Bits(flat, (0.0, 1.0), torch.bool)
        reads, encoder = key[0], self._encoder
        if isinstance(reads, Slope):
            return reads.form(flat, encoder)
        if reads is Reads.SHAPE:
            return Shape(flat)
        if reads is Reads.SCALED:
            chosen, scale = flat.ne(0), float(flat.amax())
            if torch.equal(chosen * flat.new_tensor(scale), flat):
                return Bits(chosen, (0.0, scale), flat.dtype)
            return "more than two values"
        if reads is Reads.NORMED:
            x = x if dense else x.contiguous()
            return Groups.of(x, self._entries, by_channel(self._module), encoder)
        return encoder.encode(flat)

    def _is_parameter(self, x: torch.Tensor) -> bool:
        """Tell whether a tensor shares memory with a parameter or was computed of one alone."""
        if self._storages is None:
            self._storages = {
                tensor.untyped_storage()._cdata
                for tensor in self._own
                if tensor is not None and type(tensor) in _PLAIN and tensor.layout is torch.strided
            }
        if x.untyped_storage()._cdata in self._storages:
            return True
        if x.numel() < self._least or not self._own:
            return False
        if x.requires_grad:
            leaf = _leaf(x)
            return leaf is not None and any(leaf is tensor for tensor in self._own)
        # A cast of one that is frozen, as by autocast, has no graph.
        shape = sorted(x.shape)
        return any(
            tensor is not None
            and not tensor.requires_grad
            and tensor.dtype != x.dtype
            and sorted(tensor.shape) == shape
            for tensor in self._own
        )


_SHAPES = ("cpu", "cuda")
"""Devices on which backward of pooling reads no values."""


def _leaf(x: torch.Tensor) -> torch.Tensor | None:
    """Return the only leaf from which a few operators computed a tensor, if there is one."""
    node = x.grad_fn
    for _ in range(_WAY):
        if node is None:
            return None
        before = [function for function, _ in node.next_functions if function is not None]
        if len(before) != 1:
            leaf: torch.Tensor | None = None if before else getattr(node, "variable", None)
            return leaf
        node = before[0]
    return None


def _flat(x: torch.Tensor, dense: bool) -> torch.Tensor:
    x = x.detach()
    return x.as_strided((x.numel(),), (1,)) if dense else x.contiguous().view(-1)
