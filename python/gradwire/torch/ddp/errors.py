"""What can go wrong between ranks."""

from gradwire.errors import GradwireError, NonFiniteError

__all__ = ["ExchangeError", "GradientError", "fresh"]


class ExchangeError(GradwireError, RuntimeError):
    """A bucket could not be exchanged, so the replicas can no longer be assumed equal.

    The handle stays broken: every later backward raises it again, without waiting for anyone. The
    gradients of such a backward are infinite. Restart from a checkpoint, or `detach()` on every
    rank and attach again.

    Attributes
    ----------
    rank : int or None
        The rank at fault, where it is known.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message, rank)
        self.message = message
        self.rank = rank

    def __str__(self) -> str:
        return self.message


class GradientError(NonFiniteError):
    """A gradient was NaN or infinite on one rank; every rank raises it, for the same parameter.

    The step was rolled back everywhere: no residual changed, and training may go on. Gradients of
    that backward are worthless (infinite, those of some buckets averages), alike on all ranks:
    clear them with ``zero_grad()`` before the next one.

    Attributes
    ----------
    rank : int
        The (first) rank that had it.
    """

    def __init__(self, count: int, first: int, name: str | None, rank: int) -> None:
        super().__init__(count, first, name)
        self.args = (count, first, name, rank)
        self.rank = rank

    def __str__(self) -> str:
        return (
            f"the gradient of {self.name!r} on rank {self.rank} has {self.count} non-finite "
            f"value(s), the first at flat position {self.first}; the step was rolled back on every "
            "rank and no residual changed. In mixed precision pass grad_scaler= to attach()"
        )


def fresh(error: BaseException) -> BaseException:
    """Return a copy to raise: a traceback would keep the frames of its callers alive."""
    copied = type(error)(*error.args)
    copied.__cause__ = error.__cause__
    return copied
