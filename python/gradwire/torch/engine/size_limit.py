"""Limits the size of each parameter's frame in the next step."""

__all__ = ["SizeLimit"]

FLOOR = 128
"""Lowest limit in bytes, unless the codec's bound is lower: a frame without entries must fit."""

_UNSEEN = -1


class SizeLimit:
    """Size limit of one parameter's frames, from sizes that every rank has seen.

    Every rank makes the same observations, so every rank computes the same limit, in integers,
    without communication. The estimator is that of TCP's retransmission timeout: a running mean
    and a running mean deviation of the largest size wanted on any rank. A frame that would be
    larger is trimmed, and the rest stays in the residual; so a limit that is slightly too low only
    delays entries by a step, while one that is too high costs bytes on the wire in every step.

    Limits belong to parameters, not to buckets: which entries are trimmed must not depend on how
    DDP groups the parameters, or a resumed run would differ from an uninterrupted one.

    Parameters
    ----------
    bound : int
        Upper bound in bytes on any frame of the parameter: the limit until the first observation.
    fixed : bool
        Always use the bound: for codecs without a memory, where trimming would lose entries, or
        whose frames cannot be trimmed.

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
        # Runs once per parameter and step: comparisons are faster than calls of min and max.
        mean = self._mean8 >> 3
        wanted = mean + 2 * (self._dev4 >> 2) + (mean >> 6) + 16
        if wanted < FLOOR:
            wanted = FLOOR
        return wanted if wanted < self._bound else self._bound

    def observe(self, wanted: int) -> None:
        """Record the largest size, in bytes, that any rank wanted to send."""
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
        """Restore what `state` returned."""
        mean8, dev4 = (int(value) for value in state)
        if mean8 < _UNSEEN or dev4 < 0:
            raise ValueError(f"the size history must be two counts of bytes, got {state!r}")
        self._mean8, self._dev4 = mean8, dev4
