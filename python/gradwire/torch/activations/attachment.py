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
    """Keep in a few bits what layers save for backward; forward stays as it is, bit for bit.

    Values are rounded stochastically between the least and the largest of their block, as by
    ``gradwire.quantize.Affine(bits, block, "range", "stochastic")``, so that a gradient that is
    linear in them is right on average. Of what a ReLU, dropout or pooling saves, backward reads
    less than values: that is kept in one bit an entry, or none, without loss.

    Modules that save so are those whose backward stands noise: linear layers, convolutions,
    embeddings, norms, element-wise activations, dropout and pooling (the table is in
    ``docs/activations-inside.md``), if they have no submodules and the forward of their class.
    Attention, softmax and losses are left: their backward takes exponentials of what was saved.
    Checkpoint attention instead, by `torch.utils.checkpoint`.

    Parameters
    ----------
    model : torch.nn.Module
        Gets hooks; nothing else of it changes, and copies of it are without packing.
    bits : int
        Of a code, 1 to 8.
    block : int
        Values that share a step and a base, which are of 16 bits each; at least 1.
    least : int
        Tensors with fewer entries are left as they are; at least 1.
    rules : mapping of (str or class) to (int or None), optional
        Bits of modules, None for none, by names as in ``model.named_modules()``, by patterns of
        them with ``*`` and ``?``, or by classes. The first that fits counts. A class that is not in
        the table is added to it by this, with whatever its modules hold.
    seed : int
        Of the rounding, 0 to 2**64 - 1. Ranks that train together should have different ones.

    Returns
    -------
    PackedActivations
        Reports bytes, and ends the packing. It need not be kept.

    Raises
    ------
    TypeError
        ``model`` is no module, or a compiled one; ``rules`` has other keys or values.
    ValueError
        An argument is out of its range; packing is attached already; the model has no module whose
        tensors are packed, or a rule fits none.

    Notes
    -----
    float32, float16 and bfloat16 are packed, and booleans. Parameters, integers, float64 and
    complex numbers, and tensors with NaN or infinity are left as they are. So is everything where
    other hooks for saved tensors are on, as in `torch.utils.checkpoint`: they decide what is kept.

    A backward pass raises a RuntimeError where a saved tensor was changed in place, as without
    packing; and with ``create_graph=True``. `torch.compile` raises one when it comes to such a
    module: it would unpack all tensors at once.

    It costs two reads of what is saved, and a write of what backward reads; on the CPU by kernels,
    elsewhere by torch's operators, with the same codes, waiting for the device twice a tensor.

    References
    ----------
    Chen, Zheng, Yao, Wang, Stoica, Mahoney, Gonzalez, "ActNN: Reducing Training Memory Footprint
    via 2-Bit Activation Compressed Training", ICML 2021, section 4: stochastic rounding by groups.
    Which modules, and what each of them needs, are ours.
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
                f"activations of {name!r} are packed already: call remove() of what attach() "
                "returned before"
            )
    return PackedActivations(model, packed, left, (block, least, seed))


_COMPILED = (
    "activations cannot be packed in a compiled model: its backward unpacks all of them at once, "
    "which takes more memory, not less. Attach to the model itself, and do not compile it"
)


class PackedActivations:
    """What `attach` returns: reports what is kept, and ends the packing.

    Used as a context manager, it ends it at the end of the block.
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
        """Return what was saved, and what was kept of it, since the model was last called.

        Passes without gradients do not count.
        """
        rows = (tally.row(name, kind, bits) for name, (kind, bits, tally) in self._rows.items())
        return ActivationReport(tuple(rows), dict(self._left))

    def remove(self) -> None:
        """End the packing. What is kept still serves its backward pass."""
        self._hooks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class _Hook:
    """Does nothing: what copies of a module have in place of the hooks below, pickled ones too."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return _Hook, ()

    def __call__(self, *_: Any) -> None:
        """Do nothing."""


class _Start(_Hook):
    """The model is called: a pass begins."""

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
    """A module is called: its saved tensors are packed from here on."""

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
        """The calls that this thread is in, and whether they pack."""
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
    """A module's forward has ended, or has raised."""

    def __init__(self, begin: _Begin) -> None:
        self._begin = begin

    def __call__(self, *_: Any) -> None:
        # Where a hook before `_Begin` has raised, there is no call.
        calls = self._begin.calls
        if calls and calls.pop():
            torch._C._autograd._pop_saved_tensors_default_hooks()


def _on() -> object:
    """Return whose the hooks are that are on: a `Packing`, something else, or None."""
    top = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return None if top is None else getattr(top[0], "__self__", top)


# The compiler calls it itself, where an error counts: it goes around one in what it compiles.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _refuse() -> None:
    raise RuntimeError(_COMPILED)
