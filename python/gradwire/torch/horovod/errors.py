"""Errors that Horovod's elastic training recognizes."""

from gradwire.torch.errors import ExchangeError
from gradwire.torch.transport.horovod import InternalError

__all__ = ["LostRankError", "recognized"]


class LostRankError(ExchangeError, InternalError):  # type: ignore[misc]  # it has no types
    """An `ExchangeError` because Horovod lost a rank: also a ``HorovodInternalError``.

    ``hvd.elastic.run`` restores the last commit after it, and goes on with the ranks that are left.
    """


def recognized(error: BaseException) -> BaseException:
    """Return an error as a `LostRankError` if it comes from Horovod."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, InternalError):
        cause = cause.__cause__
    if cause is None or isinstance(error, LostRankError):
        return error
    lost = LostRankError(str(error), getattr(error, "rank", None))
    lost.__cause__ = error.__cause__ or error
    return lost
