"""Attaches packing to the modules of a model."""

import contextlib
import itertools
import threading
from typing import Any, Self

import torch
from torch import nn

from gradwire import _validate
from gradwire.torch.activations.forms import Encoder
from gradwire.torch.activations.report import ActivationReport, Tally
from gradwire.torch.activations.saved import Origins, Packing, Saved
from gradwire.torch.activations.table import Bounds, Reads, Rules, chosen


def attach(
    model: nn.Module,
    bits: int = 4,
    block: int = 64,
    least: int = 4096,
    rules: Rules | None = None,
    seed: int = 0,
) -> "PackedActivations":
    """Pack the tensors that layers save for backward in a few bits; forward is unchanged.

    Values are rounded stochastically between the minimum and maximum of their block, as with
    ``gradwire.quantize.Affine(bits, block, "range", "stochastic")``, so that gradients linear in
    them are unbiased. For ReLU, dropout and pooling, backward does not need the values: one bit per
    entry, or none, is kept without loss.

    Packed are modules whose backward tolerates noise: linear layers, convolutions, embeddings,
    norms, element-wise activations, dropout and pooling (see ``docs/activations-inside.md``), if
    they have no submodules and use the forward of their class. Attention, softmax and losses are
    not packed: their backward takes exponentials of saved values. For attention, use
    `torch.utils.checkpoint` instead.

    Parameters
    ----------
    model : torch.nn.Module
        Hooks are added; nothing else changes, and copies of the model are not packed.
    bits : int
        Bits of a code, 1 to 8.
    block : int
        Number of values that share a step and a base, of 16 bits each; at least 1.
    least : int
        Tensors with fewer entries are not packed; at least 1.
    rules : mapping of (str or class) to (int or None), optional
        Bits of modules, or None for no packing, by names as in ``model.named_modules()``, by
        patterns with ``*`` and ``?``, or by classes. The first match applies. A class that is not
        in the table is thereby added to it, with all of its submodules.
    seed : int
        Seed of the rounding, 0 to 2**64 - 1. Ranks that train together should use different seeds.

    Returns
    -------
    PackedActivations
        Reports bytes, and ends the packing. You need not keep it.

    Raises
    ------
    TypeError
        ``model`` is not a module, or is compiled; ``rules`` has invalid keys or values.
    ValueError
        An argument is out of its range; packing is attached already; the model has no module that
        can be packed, or a rule matches none.

    Notes
    -----
    float32, float16 and bfloat16 are packed, and booleans. Parameters, integers, float64 and
    complex numbers, and tensors with NaN or infinity are kept unchanged. So is everything while
    other saved-tensor hooks are active, as in `torch.utils.checkpoint`.

    A backward pass raises a RuntimeError if a saved tensor was changed in place, as without
    packing, and with ``create_graph=True``. `torch.compile` raises one for a packed module: it
    would unpack all tensors at once.

    It costs two reads of each saved tensor, and a write of the unpacked one; on the CPU with
    kernels, elsewhere with torch's operators, which give the same codes and wait for the device
    twice per tensor.

    References
    ----------
    Chen, Zheng, Yao, Wang, Stoica, Mahoney, Gonzalez, "ActNN: Reducing Training Memory Footprint
    via 2-Bit Activation Compressed Training", ICML 2021, section 4: stochastic rounding by groups.
    The choice of modules, and of what each needs, is ours.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if any(hasattr(each, "_orig_mod") or each._compiled_call_impl for each in model.modules()):
        raise TypeError(_COMPILED)
    bits = _validate.integer("bits", bits, low=1, high=8)
    block = _validate.integer("block", block, low=1, high=_validate.MAX_NUMEL)
    least = _validate.integer("least", least, low=1)
    seed = _validate.integer("seed", seed, low=0, high=2**64 - 1)
    packed, left = chosen(model, bits, rules)
    every = dict(model.named_modules())
    for name in packed:
        if any(isinstance(each, _Begin) for each in every[name]._forward_pre_hooks.values()):
            raise ValueError(
                f"activations of {name!r} are already packed: first call remove() on what attach() "
                "returned"
            )
    return PackedActivations(model, packed, left, (block, least, seed))


_COMPILED = (
    "activations cannot be packed in a compiled model: its backward pass unpacks all of them at "
    "once, which takes more memory, not less. Attach to the model itself, and do not compile it"
)


class PackedActivations:
    """The result of `attach`: reports packed bytes, and ends the packing.

    As a context manager, it ends the packing at the end of the block.
    """

    def __init__(
        self,
        model: nn.Module,
        packed: dict[str, tuple[int, Reads | Bounds]],
        left: dict[str, str],
        how: tuple[int, int, int],
    ) -> None:
        (block, least, seed), every = how, dict(model.named_modules())
        stream, self._origins = itertools.count(), Origins()
        encoders = {
            bits: Encoder(bits, block, seed, stream)
            for bits in {each for each, _ in packed.values()}
        }
        self._left = left
        self._rows: dict[str, tuple[str, int, Tally]] = {}
        with contextlib.ExitStack() as hooks:
            for name, (bits, reads) in packed.items():
                module, tally = every[name], Tally()
                self._rows[name] = type(module).__name__, bits, tally
                begin = _Begin(reads, encoders[bits], self._origins, tally, least)
                end = _End(begin)
                # Last before the module's own forward, and first after it: other hooks are outside.
                hooks.callback(module.register_forward_pre_hook(begin).remove)
                ending = module.register_forward_hook(end, prepend=True, always_call=True)
                hooks.callback(ending.remove)
            tallies = [tally for _, _, tally in self._rows.values()]
            start = model.register_forward_pre_hook(_Start(tallies, self._origins), prepend=True)
            hooks.callback(start.remove)
            self._hooks = hooks.pop_all()

    def report(self) -> ActivationReport:
        """Return the bytes saved, and the bytes kept, since the model was last called.

        Passes without gradients do not count.
        """
        rows = (tally.row(name, kind, bits) for name, (kind, bits, tally) in self._rows.items())
        return ActivationReport(tuple(rows), dict(self._left))

    def remove(self) -> None:
        """End the packing. Tensors already packed still serve their backward pass."""
        self._hooks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class _Hook:
    """A hook that does nothing: it replaces the hooks below in copies and pickles."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return _Hook, ()

    def __call__(self, *_: Any) -> None:
        """Do nothing."""


class _Start(_Hook):
    """The hook before the model's forward: a pass begins."""

    def __init__(self, tallies: list[Tally], origins: Origins) -> None:
        self._tallies, self._origins = tallies, origins

    def __call__(self, *_: Any) -> None:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            # An interrupt from the keyboard skips the ends of calls.
            while isinstance(_on(), Packing):
                torch._C._autograd._pop_saved_tensors_default_hooks()
            self._origins.forget()
            for each in self._tallies:
                each.reset()


class _Begin(_Hook):
    """The hook before a module's forward: from here on, its saved tensors are packed."""

    def __init__(
        self,
        reads: Reads | Bounds,
        encoder: Encoder,
        origins: Origins,
        tally: Tally,
        least: int,
    ) -> None:
        self._how = reads, encoder, origins, tally, least
        self._thread = threading.local()

    @property
    def calls(self) -> list[bool]:
        """The module calls in progress in this thread, and whether they pack."""
        calls: list[bool] = self._thread.__dict__.setdefault("calls", [])
        return calls

    def __call__(self, module: nn.Module, inputs: tuple[object, ...], *_: Any) -> None:
        if torch.compiler.is_compiling():
            _refuse()
        # In a backward pass a checkpoint runs layers again, whose tensors are read at once.
        if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
            self.calls.append(False)
            return
        on = _on()
        if on is not None and not isinstance(on, Packing):
            self._how[3].leave("other hooks for saved tensors are on", 0)
            self.calls.append(False)
            return
        packing = Packing(module, inputs, *self._how)
        torch._C._autograd._push_saved_tensors_default_hooks(packing.pack, Saved.tensor)
        self.calls.append(True)


class _End(_Hook):
    """The hook after a module's forward, also if it raised."""

    def __init__(self, begin: _Begin) -> None:
        self._begin = begin

    def __call__(self, *_: Any) -> None:
        # Where a hook before `_Begin` has raised, there is no call.
        calls = self._begin.calls
        if calls and calls.pop():
            torch._C._autograd._pop_saved_tensors_default_hooks()


def _on() -> object:
    """Return the owner of the active hooks: a `Packing`, another object, or None."""
    top = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return None if top is None else getattr(top[0], "__self__", top)


# The compiler calls it itself, where an error counts: it goes around one in what it compiles.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _refuse() -> None:
    raise RuntimeError(_COMPILED)
