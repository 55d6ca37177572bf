"""Attaches packing to the modules of a model."""

import contextlib
import itertools
import sys
from typing import Any, Self

import torch
from torch import nn
from torch.autograd import forward_ad

from gradwire import _validate
from gradwire.torch.activations.calls import Calls, current, is_live
from gradwire.torch.activations.forms import Encoder
from gradwire.torch.activations.report import ActivationReport, Tally
from gradwire.torch.activations.saved import Origins, Packing, Saved
from gradwire.torch.activations.table import Activation, Reads, Rules, chosen


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
        ``model`` is compiled; ``rules`` has invalid values.
    ValueError
        An argument is out of its range; packing is attached already; the model has no module that
        can be packed, or a rule matches none.

    Notes
    -----
    float32, float16 and bfloat16 are packed, and booleans. Parameters, integers, float64 and
    complex numbers, negative views, and tensors with NaN, infinity or values above 3.3e35 are kept
    unchanged. So is everything while other saved-tensor hooks are active, as in
    `torch.utils.checkpoint`, under transforms of `torch.func`, and with forward-mode derivatives.

    A backward pass raises a RuntimeError if a saved tensor was changed in place, as without
    packing, and with ``create_graph=True``. `torch.compile` raises one for a packed module: it
    would unpack all tensors at once. What was compiled before is discarded, and so is refused too.

    It costs three reads of each saved tensor, and a write of the unpacked one; on the CPU with
    kernels, elsewhere with torch's operators, which give the same codes and wait for the device
    a few times per tensor. Slopes of activations, and groups of norms that have a scale of their
    own, are computed before, in memory of the size of the tensor.

    References
    ----------
    Chen, Zheng, Yao, Wang, Stoica, Mahoney, Gonzalez, "ActNN: Reducing Training Memory Footprint
    via 2-Bit Activation Compressed Training", ICML 2021, section 4: stochastic rounding by groups.
    The choice of modules, and of what each needs, is ours.
    """
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


_SCRIPTED = (
    "torch.jit.script cannot compile a model whose activations gradwire packs: first call remove() "
    "on what gradwire.torch.activations.attach() returned"
)

_COMPILED = (
    "gradwire packs no activations in a compiled model: its backward pass unpacks all of them at "
    "once, which takes more memory, not less. Attach to the model itself, and do not compile it"
)


class PackedActivations:
    """The result of `attach`: reports packed bytes, and ends the packing.

    As a context manager, it ends the packing at the end of the block.
    """

    def __init__(
        self,
        model: nn.Module,
        packed: dict[str, tuple[int, Reads | Activation]],
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
        self._begins, ends = contextlib.ExitStack(), contextlib.ExitStack()
        self._calls = Calls(ends)
        for name, (bits, reads) in packed.items():
            module, tally = every[name], Tally()
            self._rows[name] = type(module).__name__, bits, tally
            begin = _Begin(reads, encoders[bits], self._origins, tally, least, self._calls)
            # Last before the module's own forward, and first after it: other hooks are outside.
            pre = module.register_forward_pre_hook(begin, with_kwargs=True)
            self._begins.callback(pre.remove)
            end = module.register_forward_hook(_End(self._calls), prepend=True, always_call=True)
            ends.callback(end.remove)
        tallies = [tally for _, _, tally in self._rows.values()]
        start = _Start(tallies, self._origins, self._calls)
        self._begins.callback(model.register_forward_pre_hook(start, prepend=True).remove)
        ends.callback(model.register_forward_hook(_Last(self._calls), always_call=True).remove)
        # What was compiled before does not call hooks: it is compiled again, which is refused.
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()

    def report(self) -> ActivationReport:
        """Return the bytes saved, and the bytes kept, since the model was last called.

        Passes without gradients do not count.
        """
        rows = (tally.row(name, kind, bits) for name, (kind, bits, tally) in self._rows.items())
        return ActivationReport(tuple(rows), dict(self._left))

    def remove(self) -> None:
        """End the packing, also that of calls in progress in any thread.

        Tensors already packed still serve their backward pass.
        """
        self._begins.close()
        self._calls.close()

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

    def __getattr__(self, name: str) -> Any:
        if name == "__name__":  # as torch.jit.script asks first
            raise TypeError(_SCRIPTED)
        raise AttributeError(name)


class _Start(_Hook):
    """The hook before the model's forward: a pass begins."""

    def __init__(self, tallies: list[Tally], origins: Origins, calls: Calls) -> None:
        self._tallies, self._origins, self._calls = tallies, origins, calls

    def __call__(self, *_: Any) -> None:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            _settle()
            if self._calls.begin_root(current()):
                self._origins.forget()
                for each in self._tallies:
                    each.reset()


class _Last(_Hook):
    """The hook after the model's forward."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def __call__(self, *_: Any) -> None:
        self._calls.end(current())


class _Begin(_Hook):
    """The hook before a module's forward: from here on, its saved tensors are packed."""

    def __init__(
        self,
        reads: Reads | Activation,
        encoder: Encoder,
        origins: Origins,
        tally: Tally,
        least: int,
        calls: Calls,
    ) -> None:
        self._how, self._tally, self._calls = (reads, encoder, origins, tally, least), tally, calls

    def __call__(
        self, module: nn.Module, inputs: tuple[object, ...], named: dict[str, object], *_: Any
    ) -> None:
        if torch.compiler.is_compiling():
            _refuse()
        # In a backward pass a checkpoint runs layers again, whose tensors are read at once.
        if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
            return
        _settle()
        on, call = _on(), current()
        why = _other_use() if on is None or isinstance(on, Packing) else _OTHERS
        if why is not None:
            self._tally.leave(why, 0)
        elif self._calls.begin(call):
            every = (*inputs, *named.values())
            packing = Packing(module, every, *self._how, call, self._calls.is_packed)
            torch._C._autograd._push_saved_tensors_default_hooks(packing.pack, Saved.tensor)


class _End(_Hook):
    """The hook after a module's forward, also if it raised."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def __call__(self, *_: Any) -> None:
        call = current()
        _settle()
        on = _on()
        if isinstance(on, Packing) and on.call is call:
            torch._C._autograd._pop_saved_tensors_default_hooks()
            on.end()
        self._calls.end(call)


_OTHERS = "other hooks for saved tensors are on"


def _on() -> object:
    """Return the owner of the active hooks: a `Packing`, another object, or None."""
    top = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return None if top is None else getattr(top[0], "__self__", top)


def _settle() -> None:
    """End the packing of calls that were left without the hook after them, as by an interrupt."""
    while isinstance(on := _on(), Packing) and (on.call is None or not is_live(on.call)):
        torch._C._autograd._pop_saved_tensors_default_hooks()
        on.end()


def _other_use() -> str | None:
    """Return why tensors that are saved now must be left, or None."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a transform of torch.func is on"
    if forward_ad._current_level >= 0:
        return "forward-mode derivatives are on"
    if torch._C._is_tracing():
        return "torch.jit.trace is on"
    if not torch._C._autograd._saved_tensors_hooks_is_enabled():  # type: ignore[attr-defined]
        return "hooks for saved tensors are disabled"
    return None


# The compiler calls it itself, where an error counts: it goes around one in what it compiles.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _refuse() -> None:
    raise RuntimeError(_COMPILED)
