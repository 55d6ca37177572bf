"""Gives parameters the ratios that were decided for their buckets, and saves these."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from gradwire import _validate
from gradwire.auto import ladder
from gradwire.schedule import Constant
from gradwire.schedule._amount import with_ratio
from gradwire.torch.reducer.record import Parameter
from gradwire.torch.reducer.scheduling import Position, Scheduler

if TYPE_CHECKING:
    from gradwire.codec import Codec

__all__ = ["Adaptive"]


class Adaptive(Scheduler):
    """A scheduler that is told what to do, by whoever decides: all ranks at the same pass.

    Attributes
    ----------
    chosen : mapping of str to (float or None)
        The ratio of each compressed parameter, of which codecs without one take no notice; None if
        it is dense. Another object after every change.
    saved : mapping of str to (float or None)
        What a checkpoint holds: `chosen`, without what is sent for a moment only.
    """

    def __init__(self, parameters: Mapping[str, Parameter], *, measures: bool) -> None:
        self.chosen: Mapping[str, float | None] = dict.fromkeys(parameters)
        self.saved: Mapping[str, float | None] = self.chosen
        super().__init__(Constant(), parameters, measures=measures)

    def choose(
        self, chosen: Mapping[str, float | None], *, saved: Mapping[str, float | None] | None = None
    ) -> None:
        """Change what is sent. Drop all layouts after it: `Passes.forget`.

        Parameters
        ----------
        chosen : mapping of str to (float or None)
        saved : mapping of str to (float or None), optional
            What a run that resumes goes on with, if not with that.
        """
        self.chosen = dict(chosen)
        self.saved = self.chosen if saved is None else dict(saved)
        self._apply()

    def _codec(self, name: str, epoch: int, critical: Mapping[str, bool]) -> "Codec | None":
        del epoch, critical
        ratio, codec = self.chosen[name], self._codecs[name]
        if ratio is None:
            return None
        return with_ratio(codec, ratio) if hasattr(codec.sparsify, "ratio") else codec

    def take(self, position: Position) -> None:
        """Continue from a position. This cannot fail."""
        if position.chosen is not None:
            self.chosen = self.saved = position.chosen
        super().take(position)

    def state_dict(self) -> dict[str, Any]:
        """Return what was chosen, too."""
        return {**super().state_dict(), "chosen": dict(self.saved)}

    def prepare(self, saved: Mapping[str, Any], measured: Mapping[str, NDArray[Any]]) -> Position:
        """Return a saved position. A run without decisions compressed everything, and so goes on.

        A ratio that this run does not try becomes the next larger one that it does, or the largest.

        Raises
        ------
        ValueError, TypeError
            ``saved`` is not what `state_dict` returned, or has other parameters.
        """
        found = super().prepare(saved, measured)
        given = saved.get("chosen")
        if given is None:
            chosen: dict[str, float | None] = {
                name: float(getattr(codec.sparsify, "ratio", 1.0))
                for name, codec in self._codecs.items()
            }
        elif not isinstance(given, Mapping) or given.keys() != self._codecs.keys():
            raise ValueError("the schedule has ratios of other parameters than the model")
        else:
            chosen = {
                name: None if each is None else _validate.unit_interval("chosen", each)
                for name, each in given.items()
            }
        chosen = {
            name: None if each is None else self._tried(name, each) for name, each in chosen.items()
        }
        before, self.chosen = self.chosen, chosen
        try:
            found = self._position(found.epoch, found.lr, found.critical, found.norms, measured)
        finally:
            self.chosen = before
        return Position(
            found.epoch,
            found.lr,
            found.critical,
            found.norms,
            found.codecs,
            found.measured,
            chosen,
        )

    def _tried(self, name: str, ratio: float) -> float:
        """Return the ratio that may be chosen in place of another one."""
        least = getattr(self._codecs[name].sparsify, "ratio", None)
        if least is None:
            return 1.0
        ratios = ladder(least)
        return min((each for each in ratios if each >= ratio), default=ratios[0])
