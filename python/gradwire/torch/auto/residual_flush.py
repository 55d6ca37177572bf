"""Has parameters leave the codec: what residuals hold of them is sent before they become dense."""

from collections.abc import Mapping
from dataclasses import dataclass

from gradwire.auto import OWNERS_FROM
from gradwire.torch.auto.candidates import Automatic
from gradwire.torch.engine.backward import BackwardPasses
from gradwire.torch.engine.consensus import ControlChannel
from gradwire.torch.engine.optimizer_link import OptimizerLink
from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.engine.scheduler import ParameterPlan
from gradwire.torch.transport import Channel

__all__ = ["Leaving", "Sent"]

Half = set[tuple[int, ...]]
"""The buckets that are averaged in bfloat16, by the ids of their parameters."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What is sent from now on.

    Attributes
    ----------
    chosen : ParameterPlan
    half : set of tuple of int
    saved : ParameterPlan or None
        What a checkpoint has, if not the same.
    """

    chosen: ParameterPlan
    half: Half
    saved: ParameterPlan | None = None


@dataclass(frozen=True, slots=True)
class _Flush:
    """A step that sends all that residuals hold of parameters that become dense.

    Attributes
    ----------
    step : int
        Passes that counted before it.
    target : Sent
        What is sent after it.
    """

    step: int
    target: Sent


class Leaving:
    """Goes from one choice to another one, by way of a step that sends all if it takes one.

    Parameters
    ----------
    choices : Automatic
    parameters : mapping of int to ParameterSlot
        All parameters, by the ids of their tensors.
    passes : BackwardPasses
    control : ControlChannel
    applying : OptimizerLink
        The optimizer.
    ranks : int
        How many exchange gradients.
    between : Channel or None
        Their channel, if they are not all ranks.
    """

    def __init__(
        self,
        choices: Automatic,
        parameters: Mapping[int, ParameterSlot],
        passes: BackwardPasses,
        control: ControlChannel,
        applying: OptimizerLink | None,
        ranks: int,
        between: Channel | None,
    ) -> None:
        self._choices = choices
        self._parameters = parameters
        self._passes = passes
        self._control = control
        self._applying = applying
        self._between = between
        self._owned = choices.owners is not None and ranks >= OWNERS_FROM
        self._flush: _Flush | None = None

    @property
    def under_way(self) -> bool:
        """Whether a step that sends all has begun."""
        return self._flush is not None

    def forget(self) -> None:
        """Go nowhere."""
        self._flush = None

    def go(self, now: Sent, target: Sent) -> Sent:
        """Return what to send first: all of what residuals hold of parameters that become dense."""
        leaving = [each for each in self._leavers(target.chosen) if each.codec.memory.keeps]
        if not leaving or not self._choices.ratios:
            return self._arrive(target)
        self._flush = _Flush(self._passes.step, target)
        # A run that resumes in between goes on as before, and decides anew. Asked for all entries,
        # owners send all of their sums: the time and the memory of two frames and not of N.
        every = {each.name: 1.0 for each in leaving}
        owned = now.chosen.owned
        owned = owned | every.keys() if self._owned else owned - every.keys()
        return Sent(ParameterPlan({**now.chosen.ratios, **every}, owned), now.half, now.chosen)

    def end(self) -> Sent | None:
        """Return what to send then if the pass that has sent all counted; None to wait for one."""
        flush = self._flush
        assert flush is not None
        if self._passes.step <= flush.step:
            return None
        self._flush = None
        return self._arrive(flush.target)

    def _arrive(self, target: Sent) -> Sent:
        leaving = [each for each in self._leavers(target.chosen) if each.codec.memory.updates]
        if leaving and self._applying is not None:
            with self._control.act("moments of auto") as channel:
                self._applying.give_back(leaving, self._between or channel)
        return target

    def _leavers(self, target: ParameterPlan) -> list[ParameterSlot]:
        return [
            each
            for each in self._parameters.values()
            if each.compressed and target.ratios[each.name] is None
        ]
