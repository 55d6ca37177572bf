"""Attaches packing to the modules of a model.

A hook after forward is not called after an interrupt from the keyboard, and is not there any more
after it was removed. So a call of a module is in progress as long as its frame is on the stack.
"""

import contextlib
import itertools
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Self

import torch
from torch import nn
from torch.autograd import forward_ad

from gradwire import _validate
from gradwire._validate import require
from gradwire.torch.activations.forms import Encoder
from gradwire.torch.activations.report import ActivationReport, Tally
from gradwire.torch.activations.saved import Origins, Packing, Saved
from gradwire.torch.activations.table import Activation, Reads, Rules, select_modules


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
    compiled = any(hasattr(m, "_orig_mod") or m._compiled_call_impl for m in model.modules())
    require(not compiled, _COMPILED, kind=TypeError)
    bits = _validate.integer("bits", bits, low=1, high=8)
    block = _validate.integer("block", block, low=1, high=_validate.MAX_NUMEL)
    least = _validate.integer("least", least, low=1)
    seed = _validate.integer("seed", seed, low=0, high=2**64 - 1)
    packed, left = select_modules(model, bits, rules)
    modules = dict(model.named_modules())
    for name in packed:
        hooks = modules[name]._forward_pre_hooks.values()
        free = all(not isinstance(hook, _Hook) or hook.function is None for hook in hooks)
        message = (
            "activations of {!r} are already packed: first call remove() on what attach() returned"
        )
        require(free, message, name)
    return PackedActivations(model, packed, left, block, least, seed)


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
        block: int,
        least: int,
        seed: int,
    ) -> None:
        self._left, self._least, self._origins = left, least, Origins()
        self._rows: dict[str, tuple[str, int, Tally]] = {}
        # Hooks after forward stay for calls in progress, which they end.
        self._begins, ends = contextlib.ExitStack(), contextlib.ExitStack()
        self._calls = _Calls(ends)
        modules, stream = dict(model.named_modules()), itertools.count()
        encoders = {
            bits: Encoder(bits, block, seed, stream)
            for bits in {bits for bits, _ in packed.values()}
        }
        for name, (bits, reads) in packed.items():
            module, tally = modules[name], Tally()
            self._rows[name] = type(module).__name__, bits, tally
            begin = _Hook(partial(self._begin, reads, encoders[bits], tally))
            # Last before the module's own forward, and first after it: other hooks are outside.
            self._begins.callback(module.register_forward_pre_hook(begin, with_kwargs=True).remove)
            end = module.register_forward_hook(_Hook(self._end), prepend=True, always_call=True)
            ends.callback(end.remove)
        start = model.register_forward_pre_hook(_Hook(self._start), prepend=True)
        self._begins.callback(start.remove)
        ends.callback(model.register_forward_hook(_Hook(self._last), always_call=True).remove)
        # What was compiled before does not call hooks: it is compiled again, which is refused.
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()

    def _start(self, *arguments: object) -> None:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            _end_interrupted_calls()
            if self._calls.begin_root(_current()):
                self._origins.forget()
                for _, _, tally in self._rows.values():
                    tally.reset()

    def _last(self, *_: object) -> None:
        self._calls.end(_current())

    def _begin(
        self,
        reads: Reads | Activation,
        encoder: Encoder,
        tally: Tally,
        module: nn.Module,
        inputs: tuple[object, ...],
        named: dict[str, object],
    ) -> None:
        if torch.compiler.is_compiling():
            _refuse()
        # In a backward pass a checkpoint runs layers again, whose tensors are read at once.
        if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
            return
        _end_interrupted_calls()
        active, call = _active(), _current()
        if active is None or isinstance(active, Packing):
            why = _other_use()
        else:
            why = "other hooks for saved tensors are on"
        if why is not None:
            tally.leave(why, 0)
        elif self._calls.begin(call):
            packing = Packing(
                module,
                (*inputs, *named.values()),
                reads,
                encoder,
                self._origins,
                tally,
                self._least,
                call,
                self._calls.is_packed,
            )
            torch._C._autograd._push_saved_tensors_default_hooks(packing.pack, Saved.tensor)

    def _end(self, *_: object) -> None:
        """End the packing of a module, also if its forward raised."""
        call = _current()
        _end_interrupted_calls()
        active = _active()
        if isinstance(active, Packing) and active.call is call:
            torch._C._autograd._pop_saved_tensors_default_hooks()
            active.end()
        self._calls.end(call)

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
    """A hook of `attach`; in copies and pickles of a model it does nothing."""

    def __init__(self, function: Callable[..., None] | None = None) -> None:
        self.function = function

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return _Hook, ()

    def __call__(self, *arguments: Any) -> None:
        if self.function is not None:
            self.function(*arguments)

    def __getattr__(self, name: str) -> Any:
        if name == "__name__":  # as torch.jit.script asks first
            raise TypeError(_SCRIPTED)
        raise AttributeError(name)


_CALL = nn.Module._call_impl.__code__


def _current() -> FrameType:
    """Return the frame of the module call whose hook has called the function that asks."""
    frame: FrameType | None = sys._getframe(3)
    while frame is not None and frame.f_code is not _CALL:
        frame = frame.f_back
    return frame or sys._getframe(3)


def _is_live(call: FrameType, frame: FrameType | None = None) -> bool:
    """Return whether a call is on the stack that ends with a frame: this thread's, by default."""
    frame = frame or sys._getframe(1)
    while frame is not None and frame is not call:
        frame = frame.f_back
    return frame is not None


class _Calls:
    """The calls in progress, in all threads, of the modules of one attachment.

    ``ends`` removes the hooks after forward.
    """

    def __init__(self, ends: contextlib.ExitStack) -> None:
        self._ends, self._is_open = ends, True
        self._modules, self._roots = set[FrameType](), set[FrameType]()

    def is_packed(self, call: FrameType) -> bool:
        """Return whether what a call saves is to be packed."""
        return self._is_open and _is_live(call)

    def begin(self, call: FrameType) -> bool:
        """Add the call of a module, and return whether it is to be packed."""
        self._modules.add(call)
        if not self._is_open:
            self.end(call)
        return self._is_open

    def begin_root(self, call: FrameType) -> bool:
        """Add a call of the model, and return whether no other one is in progress here."""
        outer = any(map(_is_live, self._roots.copy()))
        if not outer:
            self._roots = _running(self._roots)
            self._modules = _running(self._modules)
        self._roots.add(call)
        return not outer

    def end(self, call: FrameType) -> None:
        """Forget a call, and remove the hooks if it was the last one since `close`."""
        self._modules.discard(call)
        self._roots.discard(call)
        # After an exception torch loops over the hooks, which must stay then.
        if not (self._is_open or self._modules or self._roots) and sys._getframe(3) is not call:
            self._ends.close()

    def close(self) -> None:
        """Pack no more, and remove the hooks as soon as no call is in progress."""
        self._is_open = False
        self._modules, self._roots = _running(self._modules), _running(self._roots)
        if not self._modules and not self._roots:
            self._ends.close()


def _running(calls: set[FrameType]) -> set[FrameType]:
    """Return those of these calls that are on the stack of any thread."""
    if not calls:
        return calls
    stacks = list(sys._current_frames().values())
    return {call for call in calls.copy() if any(_is_live(call, stack) for stack in stacks)}


def _active() -> object:
    """Return the owner of the active hooks for saved tensors: a `Packing`, another, or None."""
    top = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return None if top is None else getattr(top[0], "__self__", top)


def _end_interrupted_calls() -> None:
    """End the packing of calls that were left without the hook after them, as by an interrupt."""
    while isinstance(active := _active(), Packing):
        if active.call is not None and _is_live(active.call):
            return
        torch._C._autograd._pop_saved_tensors_default_hooks()
        active.end()


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
