"""Runs a model again on its earlier batches."""

import contextlib
import copy
import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from gradwire.torch.weights.inputs import Inputs, Range
from gradwire.torch.weights.watch import See, Watch


@dataclasses.dataclass
class Batch:
    """One call of a model, with the conditions under which it ran.

    Attributes
    ----------
    autocast : dict
        By type of device, whether it is enabled, and its dtype.
    random : dict
        States of the generators, by device; None is the CPU.
    uses : dict
        How often each weight was used.
    counts : dict
        Inputs, by weight and rows of it.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    autocast: dict[str, tuple[bool, torch.dtype]]
    random: dict[int | None, torch.Tensor]
    uses: dict[str, int] = dataclasses.field(default_factory=dict)
    counts: dict[tuple[str, Range], int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, args: Any, kwargs: Any) -> "Batch":
        """Record the call that begins."""
        devices = {each.device for each in model.parameters()}
        kinds = {"cpu"} | {each.type for each in devices if each.type != "meta"}
        autocast = {
            kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in kinds
        }
        random: dict[int | None, torch.Tensor] = {None: torch.get_rng_state()}
        for each in devices:
            if each.type == "cuda":
                random[each.index] = torch.cuda.get_rng_state(each)
        return cls(*_copied(args, kwargs), autocast, random)

    def saw(self, name: str, at: Range, count: int) -> None:
        """Count a use of a weight."""
        self.uses[name] = self.uses.get(name, 0) + 1
        self.counts[name, at] = self.counts.get((name, at), 0) + count

    def left(self, name: str, replaced: bool) -> float:
        """Return how often a weight will be used in a replay; infinite if unknown."""
        parts = sum(each == name for each, _ in self.counts)
        return math.inf if replaced and parts != 1 else self.uses.get(name, 0)

    @contextlib.contextmanager
    def conditions(self) -> Iterator[None]:
        """Restore the conditions of the call within this block, without gradients."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(uncompiled())
            devices = [each for each in self.random if each is not None]
            stack.enter_context(torch.random.fork_rng(devices))
            for device, state in self.random.items():
                if device is None:
                    torch.set_rng_state(state)
                else:
                    torch.cuda.set_rng_state(state, device)
            for kind, (enabled, dtype) in self.autocast.items():
                stack.enter_context(torch.autocast(kind, dtype, enabled))
            yield


def _copied(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Copy arguments that a model may write to, such as key-value caches, but not tensors."""
    memo: dict[int, Any] = {}

    def keep(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            memo[id(value)] = value.detach()
        elif isinstance(value, nn.Module):
            memo[id(value)] = value
        elif isinstance(value, (list, tuple, dict)):
            for each in value.values() if isinstance(value, dict) else value:
                keep(each)

    keep((args, kwargs))
    try:
        copied: tuple[Any, Any] = copy.deepcopy((args, kwargs), memo)
    except Exception as error:
        raise TypeError(f"the arguments of a call cannot be kept to repeat it: {error}") from error
    return copied


def uncompiled() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which nothing runs compiled."""
    if "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance"):
        eager: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
        return eager
    return contextlib.nullcontext()


class _ReplayFinished(BaseException):
    """Ends a forward when all requested uses were seen."""


def replay(
    model: nn.Module,
    batches: list[Batch],
    parameters: Mapping[str, nn.Parameter],
    see: See,
    names: list[str],
    replaced: Mapping[str, torch.Tensor],
) -> None:
    """Run a model again, each batch until all uses of the given weights were seen.

    The model does not change: buffers that batch norms write to are restored.

    Parameters
    ----------
    see : callable
        Called with each use.
    names : list of str
        Weights whose uses are reported.
    replaced : mapping of str to torch.Tensor
        See `Watch`. With it, a batch may use a weight more or less often than before, if several
        experts are rows of it: then the batch runs to its end.
    """
    buffers = [(each, each.detach().clone()) for each in model.buffers()]
    try:
        for batch in batches:
            left = {name: batch.left(name, bool(replaced)) for name in names}
            if not replaced and not any(left.values()):
                continue

            def seen(
                name: str, at: Range, rows: int, inputs: Inputs, left: dict[str, float] = left
            ) -> None:
                see(name, at, rows, inputs)
                left[name] -= 1
                if max(left.values()) == 0:
                    raise _ReplayFinished

            watch = Watch(parameters, seen, names, replaced)
            with contextlib.suppress(_ReplayFinished), batch.conditions(), watch:
                args, kwargs = _copied(batch.args, batch.kwargs)
                model(*args, **kwargs)
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
