"""How much time may be lost by looking at what is not in use."""

__all__ = ["Budget"]

SHARE = 0.01
"""The share of the time that may be lost."""
PROBE_SECONDS, PROBE_BITS = 0.1, 2e7
"""A link is measured for about so long, and with about so many bits."""


class Budget:
    """Counts the seconds since a plan was chosen, and those that comparisons have lost."""

    def __init__(self) -> None:
        self._passed = 0.0
        self._lost = 0.0
        self._probed = 0.0
        self._probing = 0.0  # seconds of the last measurement of the link

    def begin(self) -> None:
        """Count from now on."""
        self._passed = self._lost = self._probed = 0.0

    def earn(self, seconds: float) -> None:
        """Count time with the plan in use."""
        self._passed += seconds

    def spend(self, seconds: float, without: float) -> None:
        """Count time with another plan, and what it would have been without."""
        self._lost += max(0.0, seconds - without)
        self._passed += seconds

    def allows(self, seconds: float) -> bool:
        """Tell whether so much more may be lost."""
        return self._lost + seconds <= SHARE * self._passed

    def may_probe(self, bandwidth: float) -> bool:
        """Tell whether it is time to measure a link, which was last found to be of this speed."""
        seconds = self._probing or PROBE_SECONDS + PROBE_BITS / bandwidth
        return self._passed - self._probed >= seconds / (0.5 * SHARE)

    def probed(self, seconds: float) -> None:
        """Count a measurement of the link that took so long; 0 if steps have told its speed."""
        self._probed, self._probing = self._passed, seconds
