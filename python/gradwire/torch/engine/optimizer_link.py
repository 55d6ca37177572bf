"""Tracks exchanged gradients: whether the optimizer applies them or the program drops them."""

import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
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
    held_by,
    name_of,
    options_of,
    slots_of,
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


Rate = tuple[Callable[[], float], list[ParameterSlot]]  # a reader of it, and who applies it


class OptimizerLinks:
    """The links between the optimizers and the passes of one model, and what these share.

    A pass whose gradients were cleared before the optimizer's step must leave no trace in the
    residuals of its parameters. Whether it was applied is known when the next pass begins, at the
    latest, and on each rank without a message: the ranks run the same program. If they do not, the
    step numbers or what is undone differ, which the next exchange detects.

    ``each`` has a link for each optimizer, whose parameters are those of its groups. The parameters
    are those with a codec; ``scaled`` tells that a loss scaler rewrites the gradients before each
    step. ``last`` is the last exchanged pass, since `attach` or a resume. With ``defers``, a
    non-finite gradient raises in an optimizer's step instead of the pass.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], parameters: list[ParameterSlot], *, scaled: bool
    ) -> None:
        self.parameters = {id(slot.tensor): slot for slot in parameters}
        self.warned: set[str] = set()  # of what: each is said once
        # By ids of tensors: the parameters whose codec applies the learning rate.
        self.updated = {
            key: slot for key, slot in self.parameters.items() if slot.codec.memory.updates
        }
        self.estimates = {
            key: slot for key, slot in self.parameters.items() if slot.codec.memory.estimates
        }
        # An optimizer must know that, because no other gradient may be added to an update.
        self.computed = any(slot.computed for slot in parameters)
        self.watches = self.computed and not scaled
        self.exchange: Callable[[], Callable[[str], None] | None] = lambda: None
        self._after: Callable[[], Callable[[], None] | None] | None = None
        self._stepped: set[OptimizerLink] = set()  # since that was called
        self.tracker = GradTracker(parameters if optimizers else [])
        self.last: Step | None = None
        self.defers = False
        self.each = [OptimizerLink(each, self) for each in optimizers]
        for at, link in enumerate(self.each if len(self.each) > 1 else ()):
            link.name = str(at)
        # Of all optimizers; it keeps nothing alive.
        checked = functools.partial(_before_step, weakref.ref(self))
        self._hooks = [register_optimizer_step_pre_hook(checked)] if optimizers else []

    def connect(self, exchange: Callable[[str], None]) -> None:
        """Exchange through this method of the handle; keeps only a weak reference to it."""
        self.exchange = weakref.WeakMethod(exchange)

    def after_step(self, act: Callable[[], None]) -> None:
        """Call this method when all optimizers have made a step; keeps only a weak reference."""
        self._after = weakref.WeakMethod(act)

    def releaser(self) -> Callable[[], None]:
        """Return a function that removes all hooks; it keeps no optimizer and no link alive."""
        hooks: list[Any] = [*self.tracker.marks, *self._hooks]
        links = list(map(weakref.ref, self.each))  # which optimizers keep alive

        def release() -> None:
            for hook in hooks:
                hook.remove()
            for link in links:
                if (alive := link()) is not None:
                    alive.release()

        return release

    # Called by optimizers ---------------------------------------------------------------------

    def before_step(self, optimizer: Optimizer) -> None:
        """Raise an UpdateError for another optimizer, a ValueError for unsuitable options."""
        for link in self.each:
            if link.optimizer is optimizer:
                link.before_step()
                return
        for link in self.each:
            link.check_other(optimizer)

    def stepped(self, link: "OptimizerLink") -> None:
        """Record that an optimizer has made a step."""
        self._stepped.add(link)
        if len(self._stepped) < len(self.each):
            return
        self._stepped.clear()
        if self._after is not None and (after := self._after()) is not None:
            after()

    # Called by the passes ---------------------------------------------------------------------

    def defer(self) -> None:
        """Raise for non-finite gradients only in an optimizer's step, not if they are dropped."""
        if not self.defers:
            self.defers = True
            for link in self.each:
                link.hooks.append(link.optimizer.register_step_pre_hook(link.refuse_spoiled))

    def refusal(self) -> UpdateError | None:
        """Return the error that forbids to exchange a pass now, if any."""
        slot = self.tracker.mixed() if self.computed else None
        return None if slot is None else _mixed(slot.name)

    def forgive(self) -> None:
        """Allow passes to be undone: those before were not for the optimizers."""
        for link in self.each:
            link.undone = 0

    def follow_momentum(self) -> None:
        """Let estimates follow the momentum of the optimizers."""
        for link in self.each:
            link.follow_momentum()

    def rates(self) -> list[Rate]:
        """Return a reader of each learning rate, with the parameters whose codec applies it.

        The sending thread calls it. The rate of parameters that are in no group is 0.
        """
        absent = dict(self.updated)
        rates = [rate for link in self.each for rate in link.rates(absent)]
        return [*rates, (float, list(absent.values()))]

    def watch(self) -> None:
        """Remember the averages of a pass, to detect changes."""
        if self.watches and _CHANGED not in self.warned:
            self.tracker.watch()

    # Moments, which are an optimizer's while a parameter is uncompressed ------------------------

    def take_over(self, *, anew: bool = False) -> None:
        """Take over the moments that the optimizers kept while parameters were uncompressed.

        Call it when no state is in use. Later, states have moments of their own; with ``anew``,
        after `give_back`, momentum replaces that of the states. Second moments of averages are
        divided by the ratio of squares that is known; the next 16 measurements correct that.
        """
        for link in self.each if self.computed else ():
            link.take_over(anew=anew)

    def give_back(self, parameters: Sequence[ParameterSlot], channel: Channel) -> None:
        """Hand the moments of parameters that become uncompressed to their optimizers.

        A collective, between steps: each rank has its own moments, so their mean is used, which
        keeps replicas equal. Adam's first moments start at zero; SGD's momentum is added to that of
        the optimizer, which has that of weight decay. With shards, the channel connects the ranks
        that own the same shard.
        """
        for link in self.each:
            link.give_back(link.own(parameters), channel)

    def give_all_back(self) -> Callable[[Channel], None] | None:
        """Return a function that hands all missing moments to the optimizers; None if none are."""
        coded = [slot for link in self.each for slot in link.whole()]
        return functools.partial(self.give_back, coded) if coded else None


class OptimizerLink:
    """The link of one optimizer, called "0", "1" and so on if an attachment has several."""

    name = ""

    def __init__(self, optimizer: Optimizer, links: OptimizerLinks) -> None:
        self.optimizer, self._links = optimizer, links
        # Rates of the groups with updated parameters as the last pass began: copies of tensors.
        self._rates: dict[int, float | torch.Tensor] = {}
        # Flags on devices, with what they warn of.
        self._unread: list[tuple[str, str, Callable[[], float]]] = []
        self._options = list(map(options_of, optimizer.param_groups))
        self._had_momentum = has_momentum(optimizer)
        self._stepping = False
        self.undone = 0  # passes in a row, since a step or an explicit undo
        self._sums: torch.Tensor | None = None  # of the parameters, when one was undone
        self.hooks = [optimizer.register_step_post_hook(self._stepped)]
        self._adapter: OptimizerAdapter | None = None
        if family_of(optimizer) is not None:
            self._adapter = OptimizerAdapter.of(optimizer)
            self._adapter.attach(optimizer, self)

    def own(self, parameters: Iterable[ParameterSlot]) -> list[ParameterSlot]:
        """Return those of the parameters that are in its groups; all if there is no other link."""
        return slots_of(self.optimizer, parameters) if self.name else list(parameters)

    def forget(self) -> None:
        """Drop the gradients of a step that raised: a backward pass begins."""
        if self._adapter is not None:
            self._adapter.forget()

    def release(self) -> None:
        """Leave the optimizer as it was."""
        for hook in self.hooks:
            hook.remove()
        if self._adapter is not None:
            self._adapter.detach(self.optimizer, self)

    # Called by optimizers ---------------------------------------------------------------------

    def before_step(self) -> None:
        """Raise a ValueError for options that no longer suit the codecs."""
        options = list(map(options_of, self.optimizer.param_groups))
        if options != self._options:
            self.follow_momentum()
            self._check_options()
            self._options = options
        self._stepping = True

    def _check_options(self) -> None:
        theirs: dict[Codec, list[ParameterSlot]] = {}
        for slot in self.own(self._links.parameters.values()):
            theirs.setdefault(slot.codec, []).append(slot)
        for codec, parameters in theirs.items():
            check_pairing(codec, self.optimizer, parameters)
        if not self._had_momentum and has_momentum(self.optimizer):
            self._had_momentum = True
            for codec, parameters in theirs.items():
                warn_of_pairing(codec, self.optimizer, parameters)

    def check_other(self, optimizer: Optimizer) -> None:
        """Raise an UpdateError if another optimizer would apply what this one is to apply.

        The attached optimizer's step may consist of other optimizers' steps, and a wrapper that has
        it as an attribute, or in a list of them, makes its step.
        """
        theirs, known = held_by(optimizer) & self._links.parameters.keys(), self._links.parameters
        parts = vars(optimizer).values()
        lists = [each for part in parts if isinstance(part, list | tuple) for each in part]
        if self._stepping or not theirs or id(self.optimizer) in map(id, (*parts, *lists)):
            return
        theirs &= held_by(self.optimizer)
        sent = self._links.tracker.holding([known[key] for key in theirs])
        if sent:
            raise UpdateError(
                f"{name_of(optimizer)} would apply gradients that were exchanged for another "
                f"optimizer, the {name_of(self.optimizer)} that attach() was given: the .grad of "
                f"{sent[0].name!r}. Nothing has changed. If this one replaces it, detach() the "
                "handle, and attach(..., optimizer=) with this one: handle.state_dict() and "
                "load_state_dict() carry the residuals over. If the loop steps both, run the "
                "passes for this one within handle.paused()"
            )

    def _stepped(self, *_: object) -> None:
        self._stepping, self.undone = False, 0
        last, tracker = self._links.last, self._links.tracker
        # Gradients of a later, unexchanged pass may have replaced the exchanged ones.
        if last is not None and not (
            last.finished and tracker.replaced(self.own(last.encoded.values()))
        ):
            last.unapplied.discard(self)
        self._links.stepped(self)

    def refuse_spoiled(self, *_: object) -> None:
        """Raise the deferred error of the last pass when its gradients are about to be applied."""
        last = self._links.last
        if last is None or not isinstance(last.error, GradientError):
            return
        if self._links.tracker.holding(self.own(last.asked)):
            raise fresh(last.error)

    def prepare(self) -> dict[int, bool]:
        """Exchange gradients that are still local, of all optimizers; raise if any is unusable.

        Returns the ids of the parameters that torch must not update. Of those with True, ``.grad``
        is a step of the codec. Those with False have no gradient of a pass:
        `torch.distributed.checkpoint` makes steps with gradients of zero, so that an optimizer has
        a state, and parameters with a codec need none.
        """
        tracker, last, held = self._links.tracker, self._links.last, held_by(self.optimizer)
        tracker.read_flags()
        sent = unsent = False
        for mark in tracker.marks:
            parameter, origin = mark.parameter, mark.origin
            if parameter.tensor.grad is None:
                continue
            if origin is GradSource.LOCAL:
                unsent = True
            elif parameter.paused:
                continue
            elif origin is GradSource.SENT:
                sent = sent or id(mark.tensor) in held
            elif origin is GradSource.UNKNOWN:
                unsent = unsent or not mark.is_zero
            elif parameter.computed:
                unsent = unsent or origin is GradSource.AVERAGED
                if origin is GradSource.MIXED and not mark.is_zero:
                    raise _mixed(parameter.name)
        undone = last is not None and (not last.counted or self in last.revoked)
        if sent and last is not None and last.finished and undone:
            raise UpdateError(
                ".grad holds the result of a pass that has since been rolled back, by an error, "
                "discard(), epoch() or state_dict(): call zero_grad() instead of step()"
            )
        if sent:
            self._check_changes(held)
        exchange = self._links.exchange()
        if unsent and exchange is not None:
            exchange(self.name)
        steps = {}
        for mark in tracker.marks:
            parameter, is_step = mark.parameter, mark.origin >= GradSource.SENT
            unknown = mark.origin is GradSource.UNKNOWN and not parameter.paused
            if parameter.computed and (is_step or unknown):
                steps[id(parameter.tensor)] = is_step
        return steps

    def _check_changes(self, held: set[int]) -> None:
        """Warn if gradients or rates were changed since the backward pass; on a device, later."""
        unread, self._unread = self._unread, []
        for text, detail, read in unread:
            self._warn_once(text, detail, read() != 0.0)
        if self._links.watches:
            fused = getattr(self.optimizer, "grad_scale", None) is not None  # not in .grad then
            self._warn_once(_CHANGED, "", fused or self._links.tracker.changed(held))
        updated = self._links.updated.keys()
        for at, group in enumerate(self.optimizer.param_groups if updated else ()):
            if at not in self._rates and updated.isdisjoint(map(id, group["params"])):
                continue
            before, now = self._rates.get(at, 0.0), group["lr"]
            if (differs := before != now) is not False:
                known = not isinstance(before, torch.Tensor) and not isinstance(now, torch.Tensor)
                detail = f", from {before:g} to {now:g} in group {at}" if known else ""
                self._warn_once(_LATE, detail, differs)

    def _warn_once(self, text: str, detail: str, flag: bool | torch.Tensor) -> None:
        """Warn if the flag is set, once it can be read without waiting for a device."""
        if text in self._links.warned:
            return
        if isinstance(flag, torch.Tensor) and backends.backend_for(flag).waits:
            self._unread.append((text, detail, backends.backend_for(flag).number(flag)))
        elif flag:
            self._links.warned.add(text)
            warn(text.format(detail), PairingWarning)

    # Called by the passes ---------------------------------------------------------------------

    def check_undone(self) -> None:
        """Count an undone pass; raise an UpdateError if something else trains the parameters.

        A program may drop any number of passes; but if the parameters still change, it steps an
        optimizer that `attach` was not given.
        """
        if self._stepping:  # LBFGS makes passes within its step
            return
        self.undone += 1
        if self.undone < _PATIENCE - 1:
            return
        with torch.no_grad():
            mine = self.own(self._links.parameters.values())
            tensors = [local(slot.tensor) for slot in mine]
            sums = torch.stack([tensor.sum(dtype=torch.float64).cpu() for tensor in tensors])
        before, self._sums = self._sums, sums.view(torch.int64)
        if self.undone >= _PATIENCE and before is not None and not before.equal(self._sums):
            raise UpdateError(
                f"the last {_PATIENCE} passes were undone, because {name_of(self.optimizer)}, "
                "which attach() was given, made no step after them, although the parameters have "
                "changed. Pass the optimizer that the loop steps to attach(..., optimizer=), or "
                "leave optimizer= out if it is not one of torch's. Run passes that are not for it "
                "within handle.paused()"
            )

    def follow_momentum(self) -> None:
        """Let estimates follow the momentum of this optimizer, which a program may change."""
        estimates, codecs = self._links.estimates, dict[Codec, Codec]()
        for group in self.optimizer.param_groups if estimates else ():
            for slot in filter(None, map(estimates.get, map(id, group["params"]))):
                codec, memory = slot.codec, cast("Any", slot.codec.memory)
                nesterov = group.get("nesterov", memory.nesterov)
                if (memory.momentum, memory.nesterov) != (group["momentum"], nesterov):
                    if codec not in codecs:  # one object for all parameters alike
                        options = {"momentum": group["momentum"], "nesterov": nesterov}
                        memory = dataclasses.replace(memory, **options)
                        codecs[codec] = codec.replace(memory=memory)
                    slot.codec = codecs[codec]
            codecs.clear()

    def rates(self, absent: dict[int, ParameterSlot]) -> list[Rate]:
        """Take this optimizer's parameters out of these, by ids; return readers of their rates."""
        self._rates.clear()
        rates: list[Rate] = []
        for index, group in enumerate(self.optimizer.param_groups if absent else ()):
            slots = [absent.pop(key) for key in map(id, group["params"]) if key in absent]
            if slots:
                rate = group["lr"]
                read: Callable[[], float] = functools.partial(float, rate)
                if isinstance(rate, torch.Tensor):
                    rate = rate.clone()
                    read = backends.backend_for(rate).number(rate)
                self._rates[index] = rate
                rates.append((read, slots))
        return rates

    # Moments: see `OptimizerLinks` -------------------------------------------------------------

    def take_over(self, *, anew: bool) -> None:
        """Take over the moments that the optimizer kept while its parameters were uncompressed."""
        states = self.optimizer.state
        for parameter in self._links.parameters.values():
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
        """Hand the moments of its parameters that become uncompressed to the optimizer."""
        from gradwire.torch.engine.moments import mean_momentum, second_moments

        for slot in parameters:
            memory, tensor = slot.codec.memory, slot.tensor
            if memory.updates and slot.state.step > 0:
                self.optimizer.state[tensor] = second_moments(slot, channel)
            elif memory.corrects and slot.state.step > 0:
                state = self.optimizer.state[tensor]
                if memory.estimates or state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = torch.zeros_like(tensor)
                local(state["momentum_buffer"]).add_(mean_momentum(slot, channel))

    def moments(self) -> dict[torch.Tensor, dict[str, Any]]:
        """Return the states that the optimizer lacks, from this rank's own second moments."""
        from gradwire.torch.engine.moments import second_moments

        return {slot.tensor: second_moments(slot) for slot in self.whole()}

    def whole(self) -> list[ParameterSlot]:
        """Return its undivided parameters whose second moments the codec keeps."""
        return [
            slot
            for slot in self.own(self._links.parameters.values())
            if slot.codec.memory.updates
            and slot.state.step > 0
            and slot.share is None
            and not slot.paused
        ]


def _before_step(links: "weakref.ref[OptimizerLinks]", optimizer: Optimizer, *_: object) -> None:
    if (alive := links()) is not None:
        alive.before_step(optimizer)


def _mixed(name: str) -> UpdateError:
    return UpdateError(
        f"the .grad of {name!r} holds the step of an earlier backward pass: a gradient cannot be "
        "added to it. Call zero_grad() between passes; to accumulate gradients, run all passes but "
        "the last within model.no_sync(), or with Horovod pass backward_passes_per_step="
    )
