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
    silence : float
        Seconds after which a rank without a sign of life is given up.
    trained : bool
        This rank has shared parameters.
    """

    watch: Watch
    min_size: int
    timeout: float
    patience: float
    grace: float
    silence: float
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
        alive = self.watch.alive(roster.waiting, self.silence)
        if roster.apart(alive, self.min_size):
            return (
                f"fewer than min_size={self.min_size} ranks reached each other for "
                f"{self.patience:g} seconds, of {', '.join(alive)}: name a network that connects "
                "them by GLOO_SOCKET_IFNAME"
            )
        return (
            f"there were fewer than min_size={self.min_size} ranks for {self.patience:g} seconds: "
            f"{', '.join(alive)}"
        )

    def _awaited(self, roster: Roster) -> tuple[bool, str]:
        """Return whether somebody should look at it, and what it is."""
        others = [each for each in roster.members or roster.waiting if each != self.watch.name]
        names = ", ".join(others)
        if self._outside(roster):
            if any(self.watch.beats(each) for each in self.watch.alive(others, self.silence)):
                return False, f"waiting until {names} take this rank in, after their next exchange"
            text = f"waiting for {names}, the members of this run, which show no sign of life in "
            return True, f"{text}the store. {self._then()}"
        alive = self.watch.alive(roster.waiting, self.silence)
        if len(alive) < self.min_size:
            return True, (
                f"waiting for more ranks: there are {len(alive)}, and min_size="
                f"{self.min_size}; it gives up after {self.patience:g} seconds"
            )
        if roster.apart(alive, self.min_size):
            return True, (
                f"waiting until ranks reach each other: of the {len(alive)} that are there, fewer "
                f"than min_size={self.min_size} do; all of them connect again after "
                f"{self.timeout:g} seconds"
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
