"""Tracks exchanged gradients: whether the optimizer applies them or the program drops them."""

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from gradwire.torch import backends
from gradwire.torch.engine.grad_tracker import GradSource, GradTracker
from gradwire.torch.engine.optimizer_identity import OptimizerIdentity
from gradwire.torch.engine.pairing import PairingWarning
from gradwire.torch.engine.parameter import ParameterSlot, to_logical, to_memory, with_second_moment
from gradwire.torch.engine.sharding import local
from gradwire.torch.engine.square_ratio import SquareRatio
from gradwire.torch.engine.step import Step
from gradwire.torch.errors import GradientError, UpdateError, fresh, warn
from gradwire.torch.optim import OptimizerAdapter, family_of
from gradwire.torch.transport import Channel

_CHANGED = (
    "the program changed .grad between backward() and step(). It holds updates, not gradients. If "
    "a loss scaler divided them by its scale, nothing is trained: pass it to attach(..., "
    "grad_scaler=). Clipping gradients there clips updates. To clip gradients, clip them before "
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
_HALF = (
    "the state of the {} was loaded, but not that of the {}: save and load optimizer.state_dict() "
    "and handle.state_dict() together, on every rank"
)


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
        self, optimizer: Optimizer, parameters: Sequence[ParameterSlot], *, scaled: bool
    ) -> None:
        self._parameters = {id(each.tensor): each for each in parameters}
        self._optimizer = optimizer
        self._warned: set[str] = set()  # of what: each is said once
        self._updates = any(each.codec.memory.updates for each in parameters)
        # The optimizer must know that, because no other gradient may be added to an update.
        self._computed = any(each.computed for each in parameters)
        self._watches = self._computed and not scaled
        # Rates of the groups with such parameters as the last pass began: copies of tensors.
        self._rates: dict[int, float | torch.Tensor] = {}
        # Flags on devices, with what they warn of.
        self._unread: list[tuple[str, str, Callable[[], float]]] = []
        self._exchange: Callable[[], Callable[[], None] | None] = lambda: None
        self._after: Callable[[], Callable[[], None] | None] = lambda: None
        self._resumed = False
        self._expected: int | None = None
        self._took_over = False
        self.tracker = GradTracker(parameters)
        self.last: Step | None = None
        self.defers = False
        self.claim = OptimizerIdentity(optimizer, self._parameters, self.tracker)
        self._hooks = [optimizer.register_step_post_hook(self._stepped), self.claim.hook]
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
            kept, link = optimizer(), mine()
            adapts = None if adapter is None else adapter()
            if adapts is not None and kept is not None and link is not None:
                adapts.detach(kept, link)

        return release

    def resume(self, step: int, optimizer_step: int | None) -> None:
        """Continue from a checkpoint of this step; the optimizer loads its own half."""
        self.last, self._resumed, self._expected = None, step > 0, optimizer_step
        self.claim.excuse()

    def optimizer_step(self) -> int | None:
        """Return how many steps the optimizer has counted; None if it counts none, as SGD."""
        counts = [
            int(state["step"])
            for each, state in self._optimizer.state.items()
            if id(each) not in self._parameters and "step" in state
        ]
        return max(counts, default=None)

    def _stepped(self, *_: object) -> None:
        self.claim.stepped()
        last = self.last
        # Gradients of a later, unexchanged pass may have replaced the exchanged ones.
        if last is not None and not (
            last.finished and self.tracker.replaced(last.encoded.values())
        ):
            last.applied = True
        after = self._after()
        if after is not None:
            after()

    def _refuse_spoiled(self, *_: object) -> None:
        """Raise the deferred error of the last pass when its gradients are about to be applied."""
        last = self.last
        if last is None or not isinstance(last.error, GradientError):
            return
        if self.tracker.kept(last.asked):
            raise fresh(last.error)

    # Called by the optimizer ------------------------------------------------------------------

    def prepare(self) -> None:
        """Exchange gradients that are still local; raise if any cannot be applied."""
        self._check_halves()
        self.tracker.read_pending()
        sent = unsent = False
        for mark in self.tracker.marks:
            if mark.parameter.tensor.grad is None or not mark.parameter.has_state:
                continue
            unsent = unsent or mark.origin is GradSource.LOCAL
            if mark.parameter.paused:
                continue
            sent = sent or mark.origin is GradSource.SENT
            if mark.origin is GradSource.UNKNOWN and mark.value is not None:
                unsent = True
            if mark.parameter.computed:
                unsent = unsent or mark.origin is GradSource.AVERAGED
                if mark.origin is GradSource.MIXED and mark.value is not None:
                    raise _mixed(mark.parameter.name)
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

    def _check_changes(self) -> None:
        """Warn if gradients or rates were changed since the backward pass; on a device, later."""
        unread, self._unread = self._unread, []
        for text, detail, read in unread:
            self._warn_once(text, detail, read() != 0.0)
        if self._watches:
            fused = getattr(self._optimizer, "grad_scale", None) is not None  # not in .grad then
            self._warn_once(_CHANGED, "", fused or self.tracker.changed())
        for at, group in enumerate(self._optimizer.param_groups if self._updates else ()):
            if at not in self._rates and not any(map(self._is_updated, group["params"])):
                continue
            before, now = self._rates.get(at, 0.0), group["lr"]
            known = not isinstance(before, torch.Tensor) and not isinstance(now, torch.Tensor)
            detail = f", from {before:g} to {now:g} in group {at}" if known else ""
            self._warn_once(_LATE, detail, before != now)

    def _is_updated(self, tensor: torch.Tensor) -> bool:
        """Tell whether the codec of a parameter applies the learning rate."""
        found = self._parameters.get(id(tensor))
        return found is not None and found.codec.memory.updates

    def _warn_once(self, text: str, detail: str, flag: bool | torch.Tensor) -> None:
        """Warn if the flag is set, once it can be read without waiting for a device."""
        if text in self._warned:
            return
        if isinstance(flag, torch.Tensor) and backends.backend_for(flag).waits:
            self._unread.append((text, detail, backends.backend_for(flag).number(flag)))
        elif flag:
            self._warned.add(text)
            warn(text.format(detail), PairingWarning)

    def steps(self) -> set[int]:
        """Return the ids of the parameters whose ``.grad`` the codec has turned into a step."""
        computed = (mark for mark in self.tracker.marks if mark.parameter.computed)
        return {id(each.parameter.tensor) for each in computed if each.origin >= GradSource.SENT}

    def _check_halves(self) -> None:
        """Warn if only one half of a checkpoint was loaded: the optimizer's or the handle's."""
        assert self._adapter is not None  # which asks
        resumed, self._resumed = self._resumed, False
        took_over, self._took_over = self._took_over, False
        loaded = self._adapter.take_loaded()
        if not resumed and not loaded:
            return
        if resumed and loaded:
            found = self.optimizer_step()
            if self._expected is not None and found is not None and found != self._expected:
                text = (
                    f"the optimizer's state is from step {found}, but the handle's was saved at "
                    f"step {self._expected}: load both from the same checkpoint"
                )
                warn(text, PairingWarning)
            return
        compressed, dense = self._with_state()
        if resumed and dense is False:
            warn(_HALF.format("handle", "optimizer"), PairingWarning)
        elif loaded and dense and not (compressed or took_over):  # a dense run has both
            warn(_HALF.format("optimizer", "handle"), PairingWarning)

    def _with_state(self) -> tuple[bool, bool | None]:
        """Tell whether the optimizer has state for parameters with a codec, and for others.

        The second is None if there are no others, or if they never have state.
        """
        compressed, dense = False, None
        for group in self._optimizer.param_groups:
            keeps = "betas" in group or group["momentum"] != 0.0
            for each in group["params"] if keeps else ():
                state = self._optimizer.state.get(each, {})
                if id(each) in self._parameters:
                    compressed = compressed or _is_dense(state)
                elif each.requires_grad:
                    dense = dense or bool(state)
        return compressed, dense

    def idle(self) -> set[int]:
        """Return the ids of the parameters that must not be updated, whatever ``.grad`` holds.

        `torch.distributed.checkpoint` makes steps with gradients of zero, so that an optimizer has
        a state. Parameters with a codec need none.
        """
        every = (mark for mark in self.tracker.marks if mark.parameter.compressed)
        computed = (mark for mark in every if mark.parameter.computed)
        return {id(mark.parameter.tensor) for mark in computed if mark.origin is GradSource.UNKNOWN}

    # Called by the passes ---------------------------------------------------------------------

    def defer(self) -> None:
        """Raise for non-finite gradients only in the optimizer's step, not if they are dropped."""
        if self.defers:
            return
        self.defers = True
        self._hooks.append(self._optimizer.register_step_pre_hook(self._refuse_spoiled))

    def refusal(self) -> UpdateError | None:
        """Return the error that forbids to exchange a pass now, if any."""
        found = self.tracker.mixed() if self._computed else None
        return None if found is None else _mixed(found.name)

    def stale(self) -> bool:
        """Tell whether gradients are added to a step that was already applied.

        This happens if a pass through this model computes gradients for another one, as a
        generator's pass through its discriminator. Such a pass is averaged uncompressed; it is an
        error if this model's optimizer, which must be an attachable one, is to apply it.
        """
        last = self.last
        if not self._computed or last is None or not last.applied:
            return False
        return self._adapter is not None and self.tracker.mixed() is not None

    def discarded(self, step: Step) -> None:
        """Record that a pass was undone, on all ranks."""
        self.claim.excuse()
        if step is self.last:
            step.applied = True  # nothing is left to undo

    def keep(self) -> None:
        """Make the last pass final, so that it is not undone, as before a change of codecs."""
        if self.last is not None and self.last.finished:
            self.last.applied = True

    def dropped(self) -> tuple[Step, list[ParameterSlot], bool] | None:
        """Return the last pass if it was not applied, and the parameters cleared since then.

        Third, whether every compressed parameter was cleared. Gradients that are still in
        ``.grad``, as at the start of an accumulation, are applied later.
        """
        if self._adapter is not None:
            self._adapter.forget()
        last = self.last
        if last is None or last.applied or last.error is not None or not last.finished:
            return None
        kept = {each.name for each in self.tracker.kept(last.asked)}
        cleared = [each for name, each in last.encoded.items() if name not in kept]
        return last, cleared, bool(last.asked) and not kept

    def take_over(self, *, anew: bool = False) -> None:
        """Take over the moments that the optimizer kept while parameters were uncompressed.

        Call it when no state is in use. Later, states have moments of their own; with ``anew``,
        after `give_back`, momentum replaces that of the states. Second moments of averages are
        divided by the ratio of squares that is known; the next 16 measurements correct that.
        """
        if not self._computed:
            return
        kept = self._optimizer.state
        for parameter in self._parameters.values():
            if not (parameter.compressed and parameter.computed) or parameter.tensor not in kept:
                continue
            begins = parameter.state.step == 0
            # The momentum of weight decay stays with the optimizer.
            if begins or anew or parameter.codec.memory.updates:
                moments = kept.pop(parameter.tensor)
                self._took_over = self._took_over or _is_dense(moments)
                if begins or parameter.codec.memory.corrects or _is_ahead(moments, parameter):
                    _start(parameter, moments)

    def give_back(self, parameters: Iterable[ParameterSlot], channel: Channel) -> None:
        """Hand the moments of parameters that become uncompressed to the optimizer.

        A collective, between steps: each rank has its own moments, so their mean is used, which
        keeps replicas equal. Adam's first moments start at zero; SGD's momentum is added to that of
        the optimizer, which has that of weight decay. With shards, the channel connects the ranks
        that own the same shard.
        """
        for each in parameters:
            memory, tensor = each.codec.memory, each.tensor
            if memory.updates and each.state.step > 0:
                self._optimizer.state[tensor] = _moments(each, channel)
            elif memory.corrects and each.state.step > 0:
                state = self._optimizer.state[tensor]
                if state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = torch.zeros_like(tensor)
                local(state["momentum_buffer"]).add_(_momentum(each, channel))

    def give_all_back(self) -> Callable[[Channel], None] | None:
        """Return a function that hands all missing moments to the optimizer; None if none are."""
        coded = self._whole()
        return functools.partial(self.give_back, coded) if coded else None

    def moments(self) -> dict[torch.Tensor, dict[str, Any]]:
        """Return the states that the optimizer lacks, from this rank's own second moments."""
        return {each.tensor: _moments(each) for each in self._whole()}

    def _whole(self) -> list[ParameterSlot]:
        """Return the undivided parameters with second moments in the codec."""
        coded = self._coded(self._parameters.values())
        return [each for each in coded if each.share is None and not each.paused]

    def _coded(self, parameters: Iterable[ParameterSlot]) -> list[ParameterSlot]:
        """Return the parameters whose second moments the codec keeps."""
        return [each for each in parameters if each.codec.memory.updates and each.state.step > 0]

    def rates(self) -> list[tuple[ParameterSlot, Callable[[], float]]]:
        """Return a reader of each learning rate, 0 if in no group; the sender calls it."""
        if not self._updates:
            return []
        known = (key for key, each in self._parameters.items() if each.codec.memory.updates)
        rates: dict[int, Callable[[], float]] = dict.fromkeys(known, float)
        self._rates.clear()
        for at, group in enumerate(self._optimizer.param_groups):
            rate = group["lr"]
            read: Callable[[], float] = functools.partial(float, rate)
            if isinstance(rate, torch.Tensor):
                rate = rate.clone()
                read = backends.backend_for(rate).number(rate)
            if any(map(self._is_updated, group["params"])):
                self._rates[at] = rate
            for each in group["params"]:
                if id(each) in rates:
                    rates[id(each)] = read
        return [(self._parameters[key], read) for key, read in rates.items()]

    def watch(self) -> None:
        """Remember the averages of a pass, to detect changes."""
        if self._watches and _CHANGED not in self._warned:
            self.tracker.watch()


def _is_dense(moments: Mapping[str, Any]) -> bool:
    """Tell whether moments come from uncompressed training, not from a codec."""
    # Of a DTensor, any() would be a collective.
    return bool(local(moments["exp_avg"]).any()) if "exp_avg" in moments else bool(moments)


def _is_ahead(moments: Mapping[str, Any], parameter: ParameterSlot) -> bool:
    """Tell whether the optimizer's second moment has seen more gradients than the codec's."""
    if not parameter.codec.memory.updates or moments.get("exp_avg_sq") is None:
        return False
    own = float(parameter.state.state_dict()["scalars"]["second_moment_steps"])
    return float(moments["step"]) > own


def _moments(parameter: ParameterSlot, channel: Channel | None = None) -> dict[str, Any]:
    """Return the optimizer's state for uncompressed training; the mean of all ranks, if given."""
    held = parameter.state.state_dict()
    squares = torch.from_numpy(parameter.state.second_moment)
    if channel is not None:
        channel.all_reduce(squares).wait()
        squares.div_(channel.size)
    squares.mul_(parameter.ratio.factor if parameter.ratio else 1.0)
    mean = to_logical(squares.numpy(), parameter)
    own = torch.zeros_like(parameter.tensor, memory_format=torch.preserve_format)
    second = torch.zeros_like(own)
    local(second).copy_(mean)
    return {
        "step": torch.tensor(held["scalars"]["second_moment_steps"], dtype=torch.float32),
        "exp_avg": own,
        "exp_avg_sq": second,
    }


def _momentum(parameter: ParameterSlot, channel: Channel) -> torch.Tensor:
    """Return the mean of all ranks' momentum, as torch keeps it: the inverse of `_start`."""
    values = torch.from_numpy(parameter.state.state_dict()["momentum"].astype("float32"))
    channel.all_reduce(values).wait()
    values.div_(_factor(parameter) * channel.size)
    return to_logical(values.numpy(), parameter).to(parameter.tensor.device)


def _factor(parameter: ParameterSlot) -> float:
    """Return what the codec's momentum is multiplied by beside torch's.

    With Nesterov's momentum, the codec keeps what torch multiplies again in each step.
    """
    memory: Any = parameter.codec.memory
    return float(memory.momentum) if memory.nesterov else 1.0


def _start(parameter: ParameterSlot, moments: Mapping[str, Any]) -> None:
    if parameter.codec.memory.updates and moments.get("exp_avg_sq") is not None:
        parameter.ratio = (parameter.ratio or SquareRatio()).taken_over()
        squares = parameter.own(moments["exp_avg_sq"]) / parameter.ratio.factor
        values = to_memory(squares, parameter)
        taken = with_second_moment(parameter.state, values, int(moments["step"]))
        parameter.state.load_state_dict(taken)
    elif parameter.codec.memory.corrects and moments.get("momentum_buffer") is not None:
        own = _factor(parameter) * parameter.own(moments["momentum_buffer"])
        held = parameter.state.state_dict()
        parameter.state.load_state_dict(held | {"momentum": to_memory(own, parameter)})


def _mixed(name: str) -> UpdateError:
    return UpdateError(
        f"the .grad of {name!r} holds the step of an earlier backward pass: a gradient cannot be "
        "added to it. Call zero_grad() between passes; to accumulate gradients, run all passes but "
        "the last within model.no_sync(), or with Horovod pass backward_passes_per_step="
    )
