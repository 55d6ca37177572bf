"""Gives parameters the ratios that were decided for their buckets, and saves these."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from gradwire import _validate
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
    """

    def __init__(self, parameters: Mapping[str, Parameter], *, measures: bool) -> None:
        self.chosen: Mapping[str, float | None] = dict.fromkeys(parameters)
        super().__init__(Constant(), parameters, measures=measures)

    def choose(self, chosen: Mapping[str, float | None]) -> None:
        """Change what is sent. Drop all layouts after it: `Passes.forget`."""
        self.chosen = dict(chosen)
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
            self.chosen = position.chosen
        super().take(position)

    def state_dict(self) -> dict[str, Any]:
        """Return what was chosen, too."""
        return {**super().state_dict(), "chosen": dict(self.chosen)}

    def prepare(self, saved: Mapping[str, Any], measured: Mapping[str, NDArray[Any]]) -> Position:
        """Return a saved position. A run without decisions compressed everything, and so goes on.

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
