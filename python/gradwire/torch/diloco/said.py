"""Says what a rank waits for."""

import logging
import time
from dataclasses import dataclass, field

from gradwire.torch.diloco.roster import Roster
from gradwire.torch.diloco.watch import Watch

__all__ = ["LOG", "Said"]

LOG = logging.getLogger("gradwire.diloco")


@dataclass(slots=True)
class Said:
    """Logs what is waited for: what is usual as information, and what is not as a warning.

    Attributes
    ----------
    watch : Watch
    min_size : int
    timeout, patience : float
        Seconds, as in `gradwire.torch.diloco.Membership`.
    grace : float
        Seconds after which it is a warning: by then, others that run have shown a sign of life.
    trained : bool
        This rank has shared parameters.
    """

    watch: Watch
    min_size: int
    timeout: float
    patience: float
    grace: float
    trained: bool
    _began: float = field(default_factory=time.monotonic)
    _last: str = ""

    def waiting(self, roster: Roster) -> None:
        """Log it, unless it is what was logged last."""
        unusual, text = self._awaited(roster)
        if text == self._last or (unusual and time.monotonic() - self._began < self.grace):
            return
        self._last = text
        LOG.log(logging.WARNING if unusual else logging.INFO, "%s", text)

    def in_vain(self, roster: Roster) -> str:
        """Return why a rank gives up."""
        if self._outside(roster):
            return (
                f"the members did not take this rank in within {self.patience:g} seconds: "
                f"{', '.join(roster.members)}. If none of them is left, begin with another name="
            )
        return (
            f"there were fewer than min_size={self.min_size} ranks for {self.patience:g} seconds: "
            f"{', '.join(roster.waiting)}"
        )

    def _awaited(self, roster: Roster) -> tuple[bool, str]:
        """Return whether somebody should look at it, and what it is."""
        others = [each for each in roster.members if each != self.watch.name]
        names = ", ".join(others)
        if self._outside(roster):
            if any(self.watch.beats(each) for each in others):
                return False, f"waiting until {names} take this rank in, after their next exchange"
            text = f"waiting for {names}, the members of this run, which show no sign of life in "
            return True, f"{text}the store. {self._then()}"
        if len(roster.waiting) < self.min_size:
            return True, (
                f"waiting for more ranks: there are {len(roster.waiting)}, and min_size="
                f"{self.min_size}; it gives up after {self.patience:g} seconds"
            )
        return False, f"waiting for {names} to form the next generation"

    def _then(self) -> str:
        if self.trained:
            return (
                f"After {2 * self.timeout:g} seconds without, this rank goes on in their place, "
                "from its checkpoint"
            )
        return (
            "One that is only suspended still has what was trained, so that this rank does not "
            "begin anew. If they have ended, begin with another name=, or give a checkpoint as "
            f"state_dict=; it gives up after {self.patience:g} seconds"
        )

    def _outside(self, roster: Roster) -> bool:
        return bool(roster.members) and self.watch.name not in roster.members
