"""How many bytes one parameter's frame may take in the next step."""

__all__ = ["SizeLimit"]

FLOOR = 128
"""No limit is below this many bytes (or the codec's bound): room for a frame with no entries."""

_UNSEEN = -1


class SizeLimit:
    """Limit on one parameter's frames, from sizes that every rank has seen.

    Every rank makes the same observations, so every rank computes the same limit, in integers,
    without asking. The estimator is the one that TCP uses for its timeouts: a running mean and a
    running mean deviation of the largest size wanted on any rank. A frame that would be larger is
    trimmed into its residual, so a limit that is a little low costs nothing but a step's delay;
    one that is too high costs bytes on the wire in each step.

    Limits belong to parameters, not to buckets: which entries are trimmed must not depend on how
    DDP happens to group parameters, or a resumed run would differ from an uninterrupted one.

    Parameters
    ----------
    bound : int
        Bytes that no frame of the parameter exceeds: the limit until something was seen.
    fixed : bool
        Always use the bound; for codecs without a memory, where trimming would lose entries.

    References
    ----------
    V. Jacobson, "Congestion Avoidance and Control", SIGCOMM 1988, appendix A.
    """

    __slots__ = ("_bound", "_dev4", "_fixed", "_mean8")

    def __init__(self, bound: int, *, fixed: bool = False) -> None:
        self._bound = bound
        self._fixed = fixed
        self._mean8, self._dev4 = _UNSEEN, 0

    @property
    def nbytes(self) -> int:
        """The limit, in bytes."""
        if self._fixed or self._mean8 == _UNSEEN:
            return self._bound
        # Once per parameter and step, so without the calls of min and max.
        mean = self._mean8 >> 3
        wanted = mean + 2 * (self._dev4 >> 2) + (mean >> 6) + 16
        if wanted < FLOOR:
            wanted = FLOOR
        return wanted if wanted < self._bound else self._bound

    def observe(self, wanted: int) -> None:
        """Take in the largest size, in bytes, that any rank wanted to send."""
        if self._mean8 == _UNSEEN:
            self._mean8, self._dev4 = 8 * wanted, 2 * wanted
            return
        error = wanted - (self._mean8 >> 3)
        self._mean8 += error
        self._dev4 += abs(error) - (self._dev4 >> 2)

    def reset(self) -> None:
        """Forget every observation."""
        self._mean8, self._dev4 = _UNSEEN, 0

    def state(self) -> list[int]:
        """Return the two integers that `load` takes."""
        return [self._mean8, self._dev4]

    def load(self, state: list[int]) -> None:
        """Take over what `state` returned."""
        mean8, dev4 = (int(value) for value in state)
        if mean8 < _UNSEEN or dev4 < 0:
            raise ValueError(f"size history must be two counts of bytes, got {state!r}")
        self._mean8, self._dev4 = mean8, dev4
