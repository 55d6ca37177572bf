"""Tracks exchanged gradients: whether the optimizer applies them or the program drops them."""

import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gradwire._codec import Codec
from gradwire.torch import backends
from gradwire.torch.engine.grad_tracker import GradSource, GradTracker
from gradwire.torch.engine.pairing import (
    PairingWarning,
    check_pairing,
    has_momentum,
    name_of,
    options_of,
    warn_of_pairing,
)
from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.engine.sharding import local
from gradwire.torch.engine.step import Step
from gradwire.torch.errors import GradientError, UpdateError, fresh, warn
from gradwire.torch.optim import OptimizerAdapter, family_of
from gradwire.torch.transport import Channel

_CHANGED = (
    "the program changed .grad between backward() and step(). It holds updates, not gradients. If "
    "a loss scaler divided them by its scale, nothing is trained: pass it to attach(..., "
    "grad_scaler=). Clipping gradients there clips updates, and with Muon, which ignores their "
    "length, does nothing. To clip gradients, clip them before "
    "they are exchanged: run the pass within model.no_sync() (with FSDP after "
    "model.set_requires_all_reduce(False), with Horovod as one pass of "
    "backward_passes_per_step=2), clip, and call step(), which exchanges them"
)
_LATE = (
    "a learning rate was changed between backward() and step(){}: the updates in .grad were "
    "computed with the earlier one, because each rank applies the rate before it sends. Set rates "
    "before backward(); or run the pass within model.no_sync(), and step() exchanges with the rate "
    "that it finds"
)
_PATIENCE = 3  # passes in a row that may be undone while somebody else changes the parameters


class OptimizerLink:
    """The link between the optimizer and the passes of one model.

    A pass whose gradients were cleared before the optimizer's step must leave no trace in the
    residuals. Whether it was applied is known when the next pass begins, at the latest, and on each
    rank without a message: the ranks run the same program. If they do not, the step numbers differ,
    which the next exchange detects.

    The parameters are those with a codec; ``scaled`` tells that a loss scaler rewrites the
    gradients before each step. ``last`` is the last exchanged pass, since `attach` or a resume.
    With ``defers``, a non-finite gradient raises in the optimizer's step instead of the pass.
    """

    def __init__(
        self, optimizer: Optimizer, parameters: list[ParameterSlot], *, scaled: bool
    ) -> None:
        self._parameters = {id(slot.tensor): slot for slot in parameters}
        self._optimizer = optimizer
        self._warned: set[str] = set()  # of what: each is said once
        # By ids of tensors: the parameters whose codec applies the learning rate.
        self._updated = {
            key: slot for key, slot in self._parameters.items() if slot.codec.memory.updates
        }
        self._estimates = {
            key: slot for key, slot in self._parameters.items() if slot.codec.memory.estimates
        }
        # The optimizer must know that, because no other gradient may be added to an update.
        self._computed = any(slot.computed for slot in parameters)
        self._watches = self._computed and not scaled
        # Rates of the groups with such parameters as the last pass began: copies of tensors.
        self._rates: dict[int, float | torch.Tensor] = {}
        # Flags on devices, with what they warn of.
        self._unread: list[tuple[str, str, Callable[[], float]]] = []
        self._exchange: Callable[[], Callable[[], None] | None] = lambda: None
        self._after: Callable[[], Callable[[], None] | None] | None = None
        self._options = list(map(options_of, optimizer.param_groups))
        self._had_momentum = has_momentum(optimizer)
        self._stepping = False
        self.undone = 0  # passes in a row, since a step or an explicit undo
        self._sums: torch.Tensor | None = None  # of the parameters, when one was undone
        self.tracker = GradTracker(parameters)
        self.last: Step | None = None
        self.defers = False
        self._hooks = [
            optimizer.register_step_post_hook(self._stepped),
            # Of all optimizers; it keeps nothing alive.
            register_optimizer_step_pre_hook(functools.partial(_before_step, weakref.ref(self))),
        ]
        self._adapter: OptimizerAdapter | None = None
        if family_of(optimizer) is not None:
            self._adapter = OptimizerAdapter.of(optimizer)
            self._adapter.attach(optimizer, self)

    def connect(self, exchange: Callable[[], None]) -> None:
        """Exchange through this method of the handle; keeps only a weak reference to it."""
        self._exchange = weakref.WeakMethod(exchange)

    def after_step(self, act: Callable[[], None]) -> None:
        """Call this method at the end of each step; keeps only a weak reference to it."""
        self._after = weakref.WeakMethod(act)

    def releaser(self) -> Callable[[], None]:
        """Return a function that removes all hooks; it keeps no optimizer and no link alive."""
        tracker, hooks = self.tracker, self._hooks
        optimizer, mine = weakref.ref(self._optimizer), weakref.ref(self)
        adapter = None if self._adapter is None else weakref.ref(self._adapter)

        def release() -> None:
            for mark in tracker.marks:
                mark.remove()
            for hook in hooks:
                hook.remove()
            optimizer_alive, link = optimizer(), mine()
            adapts = None if adapter is None else adapter()
            if adapts is not None and optimizer_alive is not None and link is not None:
                adapts.detach(optimizer_alive, link)

        return release

    # Called by optimizers ---------------------------------------------------------------------

    def before_step(self, optimizer: Optimizer) -> None:
        """Raise an UpdateError for another optimizer, a ValueError for unsuitable options."""
        if optimizer is not self._optimizer:
            self._check_other(optimizer)
            return
        options = list(map(options_of, optimizer.param_groups))
        if options != self._options:
            self.follow_momentum()
            self._check_options()
            self._options = options
        self._stepping = True

    def _check_options(self) -> None:
        theirs: dict[Codec, list[ParameterSlot]] = {}
        for slot in self._parameters.values():
            theirs.setdefault(slot.codec, []).append(slot)
        for codec, parameters in theirs.items():
            check_pairing(codec, self._optimizer, parameters)
        if not self._had_momentum and has_momentum(self._optimizer):
            self._had_momentum = True
            for codec, parameters in theirs.items():
                warn_of_pairing(codec, self._optimizer, parameters)

    def _check_other(self, optimizer: Optimizer) -> None:
        """Raise an UpdateError if another optimizer would apply what this one is to apply.

        The attached optimizer's step may consist of other optimizers' steps, and a wrapper that has
        it as an attribute makes its step.
        """
        theirs = _held(optimizer) & self._parameters.keys()
        wraps = id(self._optimizer) in map(id, vars(optimizer).values())
        if self._stepping or wraps or not theirs:
            return
        theirs &= _held(self._optimizer)
        sent = self.tracker.holding([self._parameters[key] for key in theirs])
        if sent:
            raise UpdateError(
                f"{name_of(optimizer)} would apply gradients that were exchanged for another "
                f"optimizer, the {name_of(self._optimizer)} that attach() was given: the .grad of "
                f"{sent[0].name!r}. Nothing has changed. If this one replaces it, detach() the "
                "handle, and attach(..., optimizer=) with this one: handle.state_dict() and "
                "load_state_dict() carry the residuals over. If the loop steps both, run the "
                "passes for this one within handle.paused()"
            )

    def _stepped(self, *_: object) -> None:
        self._stepping, self.undone = False, 0
        last = self.last
        # Gradients of a later, unexchanged pass may have replaced the exchanged ones.
        if last is not None and not (
            last.finished and self.tracker.replaced(last.encoded.values())
        ):
            last.applied = True
        if self._after is not None and (after := self._after()) is not None:
            after()

    def _refuse_spoiled(self, *_: object) -> None:
        """Raise the deferred error of the last pass when its gradients are about to be applied."""
        last = self.last
        if last is None or not isinstance(last.error, GradientError):
            return
        if self.tracker.holding(last.asked):
            raise fresh(last.error)

    def prepare(self) -> dict[int, bool]:
        """Exchange gradients that are still local; raise if any cannot be applied.

        Returns the ids of the parameters that torch must not update. Of those with True, ``.grad``
        is a step of the codec. Those with False have no gradient of a pass:
        `torch.distributed.checkpoint` makes steps with gradients of zero, so that an optimizer has
        a state, and parameters with a codec need none.
        """
        self.tracker.read_flags()
        sent = unsent = False
        for mark in self.tracker.marks:
            parameter, origin = mark.parameter, mark.origin
            if parameter.tensor.grad is None:
                continue
            if origin is GradSource.LOCAL:
                unsent = True
            elif parameter.paused:
                continue
            elif origin is GradSource.SENT:
                sent = True
            elif origin is GradSource.UNKNOWN:
                unsent = unsent or not mark.is_zero
            elif parameter.computed:
                unsent = unsent or origin is GradSource.AVERAGED
                if origin is GradSource.MIXED and not mark.is_zero:
                    raise _mixed(parameter.name)
        if sent and self.last is not None and self.last.finished and not self.last.counted:
            raise UpdateError(
                ".grad holds the result of a pass that has since been rolled back, by an error, "
                "discard(), epoch() or state_dict(): call zero_grad() instead of step()"
            )
        if sent:
            self._check_changes()
        exchange = self._exchange()
        if unsent and exchange is not None:
            exchange()
        steps = {}
        for mark in self.tracker.marks:
            parameter, is_step = mark.parameter, mark.origin >= GradSource.SENT
            unknown = mark.origin is GradSource.UNKNOWN and not parameter.paused
            if parameter.computed and (is_step or unknown):
                steps[id(parameter.tensor)] = is_step
        return steps

    def _check_changes(self) -> None:
        """Warn if gradients or rates were changed since the backward pass; on a device, later."""
        unread, self._unread = self._unread, []
        for text, detail, read in unread:
            self._warn_once(text, detail, read() != 0.0)
        if self._watches:
            fused = getattr(self._optimizer, "grad_scale", None) is not None  # not in .grad then
            self._warn_once(_CHANGED, "", fused or self.tracker.changed())
        for at, group in enumerate(self._optimizer.param_groups if self._updated else ()):
            if at not in self._rates and self._updated.keys().isdisjoint(map(id, group["params"])):
                continue
            before, now = self._rates.get(at, 0.0), group["lr"]
            if (differs := before != now) is not False:
                known = not isinstance(before, torch.Tensor) and not isinstance(now, torch.Tensor)
                detail = f", from {before:g} to {now:g} in group {at}" if known else ""
                self._warn_once(_LATE, detail, differs)

    def _warn_once(self, text: str, detail: str, flag: bool | torch.Tensor) -> None:
        """Warn if the flag is set, once it can be read without waiting for a device."""
        if text in self._warned:
            return
        if isinstance(flag, torch.Tensor) and backends.backend_for(flag).waits:
            self._unread.append((text, detail, backends.backend_for(flag).number(flag)))
        elif flag:
            self._warned.add(text)
            warn(text.format(detail), PairingWarning)

    # Called by the passes ---------------------------------------------------------------------

    def defer(self) -> None:
        """Raise for non-finite gradients only in the optimizer's step, not if they are dropped."""
        if not self.defers:
            self.defers = True
            self._hooks.append(self._optimizer.register_step_pre_hook(self._refuse_spoiled))

    def refusal(self) -> UpdateError | None:
        """Return the error that forbids to exchange a pass now, if any."""
        slot = self.tracker.mixed() if self._computed else None
        return None if slot is None else _mixed(slot.name)

    def restart(self) -> None:
        """Continue from a checkpoint; the optimizer loads its own half."""
        self.last, self.undone = None, 0

    def discarded(self, step: Step) -> None:
        """Record that a pass was undone, on all ranks."""
        self.undone = 0
        if step is self.last:
            step.applied = True  # nothing is left to undo

    def keep(self) -> None:
        """Make the last pass final, so that it is not undone, as before a change of codecs."""
        if self.last is not None and self.last.finished:
            self.last.applied = True

    def dropped(self) -> tuple[Step, list[ParameterSlot], bool] | None:
        """Return the last pass if it was not applied, and the parameters cleared since then.

        Third, whether every compressed parameter was cleared. Gradients that are still in
        ``.grad``, as at the start of an accumulation, are applied later. Raises an UpdateError if
        several passes in a row were dropped while something else has trained the model.
        """
        if self._adapter is not None:
            self._adapter.forget()
        last = self.last
        if last is None or last.applied or last.error is not None or not last.finished:
            return None
        # If the program has cleared two of three parameters, these two are undone, and the third
        # one's gradient is applied by a later step.
        unapplied = {slot.name for slot in self.tracker.holding(last.asked)}
        cleared = [slot for name, slot in last.encoded.items() if name not in unapplied]
        if cleared and not self._stepping:  # LBFGS makes passes within its step
            self._check_undone()
        return last, cleared, bool(last.asked) and not unapplied

    def _check_undone(self) -> None:
        """Raise an UpdateError if passes are undone while something else trains the model.

        A program may drop any number of passes; but if the parameters still change, it steps an
        optimizer that `attach` was not given.
        """
        self.undone += 1
        if self.undone < _PATIENCE - 1:
            return
        with torch.no_grad():
            tensors = [local(slot.tensor) for slot in self._parameters.values()]
            sums = torch.stack([tensor.sum(dtype=torch.float64).cpu() for tensor in tensors])
        before, self._sums = self._sums, sums.view(torch.int64)
        if self.undone >= _PATIENCE and before is not None and not before.equal(self._sums):
            raise UpdateError(
                f"the last {_PATIENCE} passes were undone, because {name_of(self._optimizer)}, "
                "which attach() was given, made no step after them, although the parameters have "
                "changed. Pass the optimizer that the loop steps to attach(..., optimizer=), or "
                "leave optimizer= out if it is not one of torch's. Run passes that are not for it "
                "within handle.paused()"
            )

    def follow_momentum(self) -> None:
        """Let estimates follow the momentum of the optimizer, which a program may change."""
        groups = self._optimizer.param_groups if self._estimates else ()
        codecs: dict[Codec, Codec] = {}  # one object for all parameters alike
        for group in groups:
            for slot in filter(None, map(self._estimates.get, map(id, group["params"]))):
                codec, memory = slot.codec, cast("Any", slot.codec.memory)
                nesterov = group.get("nesterov", memory.nesterov)
                if (memory.momentum, memory.nesterov) != (group["momentum"], nesterov):
                    if codec not in codecs:
                        options = {"momentum": group["momentum"], "nesterov": nesterov}
                        memory = dataclasses.replace(memory, **options)
                        codecs[codec] = codec.replace(memory=memory)
                    slot.codec = codecs[codec]
            codecs.clear()

    def rates(self) -> list[tuple[Callable[[], float], list[ParameterSlot]]]:
        """Return a reader of each learning rate, with the parameters whose codec applies it.

        The sending thread calls it. The rate of parameters that are in no group is 0.
        """
        if not self._updated:
            return []
        self._rates.clear()
        rates: list[tuple[Callable[[], float], list[ParameterSlot]]] = []
        absent = dict(self._updated)
        for index, group in enumerate(self._optimizer.param_groups):
            slots = [absent.pop(key) for key in map(id, group["params"]) if key in absent]
            if slots:
                rate = group["lr"]
                read: Callable[[], float] = functools.partial(float, rate)
                if isinstance(rate, torch.Tensor):
                    rate = rate.clone()
                    read = backends.backend_for(rate).number(rate)
                self._rates[index] = rate
                rates.append((read, slots))
        return [*rates, (float, list(absent.values()))]

    def watch(self) -> None:
        """Remember the averages of a pass, to detect changes."""
        if self._watches and _CHANGED not in self._warned:
            self.tracker.watch()

    # Moments, which are the optimizer's while a parameter is uncompressed -----------------------

    def take_over(self, *, anew: bool = False) -> None:
        """Take over the moments that the optimizer kept while parameters were uncompressed.

        Call it when no state is in use. Later, states have moments of their own; with ``anew``,
        after `give_back`, momentum replaces that of the states. Second moments of averages are
        divided by the ratio of squares that is known; the next 16 measurements correct that.
        """
        if not self._computed:
            return
        states = self._optimizer.state
        for parameter in self._parameters.values():
            if not parameter.computed or parameter.paused or parameter.tensor not in states:
                continue
            begins = parameter.state.step == 0
            from gradwire.torch.engine.moments import is_ahead, start_with

            # The momentum of weight decay stays with the optimizer.
            if begins or anew or parameter.codec.memory.updates:
                moments = states.pop(parameter.tensor)
                if begins or parameter.codec.memory.corrects or is_ahead(moments, parameter):
                    start_with(parameter, moments)

    def give_back(self, parameters: Iterable[ParameterSlot], channel: Channel) -> None:
        """Hand the moments of parameters that become uncompressed to the optimizer.

        A collective, between steps: each rank has its own moments, so their mean is used, which
        keeps replicas equal. Adam's first moments start at zero; SGD's momentum is added to that of
        the optimizer, which has that of weight decay. With shards, the channel connects the ranks
        that own the same shard.
        """
        from gradwire.torch.engine.moments import mean_momentum, second_moments

        for slot in parameters:
            memory, tensor = slot.codec.memory, slot.tensor
            if memory.updates and slot.state.step > 0:
                self._optimizer.state[tensor] = second_moments(slot, channel)
            elif memory.corrects and slot.state.step > 0:
                state = self._optimizer.state[tensor]
                if memory.estimates or state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = torch.zeros_like(tensor)
                local(state["momentum_buffer"]).add_(mean_momentum(slot, channel))

    def give_all_back(self) -> Callable[[Channel], None] | None:
        """Return a function that hands all missing moments to the optimizer; None if none are."""
        coded = self._whole()
        return functools.partial(self.give_back, coded) if coded else None

    def moments(self) -> dict[torch.Tensor, dict[str, Any]]:
        """Return the states that the optimizer lacks, from this rank's own second moments."""
        from gradwire.torch.engine.moments import second_moments

        return {slot.tensor: second_moments(slot) for slot in self._whole()}

    def _whole(self) -> list[ParameterSlot]:
        """Return the undivided parameters whose second moments the codec keeps."""
        return [
            slot
            for slot in self._parameters.values()
            if slot.codec.memory.updates
            and slot.state.step > 0
            and slot.share is None
            and not slot.paused
        ]


def _before_step(link: "weakref.ref[OptimizerLink]", optimizer: Optimizer, *_: object) -> None:
    if (alive := link()) is not None:
        alive.before_step(optimizer)


def _held(optimizer: Optimizer) -> set[int]:
    return {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}


def _mixed(name: str) -> UpdateError:
    return UpdateError(
        f"the .grad of {name!r} holds the step of an earlier backward pass: a gradient cannot be "
        "added to it. Call zero_grad() between passes; to accumulate gradients, run all passes but "
        "the last within model.no_sync(), or with Horovod pass backward_passes_per_step="
    )
