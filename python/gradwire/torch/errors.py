"""Errors of the exchange between ranks, and warnings that name a line of the program."""

import os
import sys
import traceback
import warnings

import torch

from gradwire import errors
from gradwire.errors import GradwireError, NonFiniteError


class ExchangeError(GradwireError, RuntimeError):
    """The ranks could not exchange data, or did not run the same passes or calls.

    If a bucket could not be exchanged, the replicas may differ. The handle is then broken: every
    later backward pass raises this error again without waiting for other ranks, and its gradients
    are infinite. Restart from a checkpoint, or call `detach()` on every rank and attach again.

    Attributes
    ----------
    rank : int or None
        The rank at fault, if known.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message, rank)
        self.message = message
        self.rank = rank

    def __str__(self) -> str:
        return self.message


class AgreementError(ExchangeError, ValueError):
    """The ranks called with different arguments. Every rank raises it.

    Nothing was exchanged and nothing has changed on any rank, so later calls may succeed.
    """


class MembershipError(ExchangeError):
    """A rank cannot continue with others.

    The store does not answer or has entries that no rank has written, no rank can be reached, or
    one without the token takes part. The last shared parameters and all residuals are still
    available to be saved.
    """


class _RankError(NonFiniteError):
    """A non-finite value that some rank has; every rank raises the same error."""

    def __init__(self, count: int, first: int, name: str | None, rank: int) -> None:
        super().__init__(count, first, name)
        self.args = (count, first, name, rank)
        self.rank = rank


class TensorError(_RankError):
    """A tensor was NaN or infinite on some rank; every rank raises this for the same tensor.

    Nothing was averaged, and no tensor and no state has changed on any rank.

    Attributes
    ----------
    rank : int
        The first rank with a non-finite value.
    """

    def __str__(self) -> str:
        return (
            f"tensor {self.name!r} on rank {self.rank} has {self.count} non-finite value(s), the "
            f"first at flat position {self.first}; nothing was averaged, and no tensor and no "
            "state has changed on any rank"
        )


class GradientError(_RankError):
    """A gradient was NaN or infinite on some rank; every rank raises this for the same parameter.

    The step was rolled back on every rank: no residual changed, and training may continue. The
    gradients of that backward pass are unusable (infinite, or averages in some buckets), equally on
    all ranks: clear them with ``zero_grad()`` before the next pass.

    Attributes
    ----------
    rank : int
        The first rank with a non-finite value.
    """

    def __str__(self) -> str:
        return (
            f"the gradient of {self.name!r} on rank {self.rank} has {self.count} non-finite "
            f"value(s), the first at flat position {self.first}; the step was rolled back on every "
            "rank and no residual changed. With mixed precision, pass grad_scaler= to attach()"
        )


class UpdateError(GradwireError, RuntimeError):
    """``.grad`` holds what the optimizer or the codec cannot use, or another optimizer steps.

    Raised only with ``attach(..., optimizer=)``. Either a gradient was added to the step of an
    earlier pass, because ``zero_grad()`` was not called in between: `backward()` raises it, or
    `step()`, if that pass was within ``no_sync()``. Or `step()` was called after that pass had been
    rolled back, or on another optimizer than the attached one. Or three passes in a row were
    undone, because the attached optimizer made no step while something else changed the parameters:
    the next `backward()` raises it. Nothing was compressed or applied. Every rank that runs the
    same program raises it; call ``zero_grad()`` and continue.
    """


def fresh(error: BaseException) -> BaseException:
    """Return a copy to raise: the original's traceback would keep the callers' frames alive."""
    copied = type(error)(*error.args)
    copied.__cause__ = error.__cause__
    return copied


def release_frames(error: BaseException) -> None:
    """Clear the local variables in the tracebacks of an error and its causes; their lines stay.

    An error that is stored would keep alive what failed: a collective, and so its connections,
    which tell the other ranks by closing that this rank has left.
    """
    each: BaseException | None = error
    while each is not None:
        traceback.clear_frames(each.__traceback__)
        each = each.__cause__ or each.__context__


def kind_of(cause: BaseException) -> type[ExchangeError]:
    """Return the class of the `ExchangeError` for a cause: its own if that is more specific."""
    return type(cause) if isinstance(cause, ExchangeError) else ExchangeError


_INNER = tuple(
    os.path.dirname(module.__file__) + os.sep for module in (errors, torch) if module.__file__
)
"""Where the sources of gradwire and torch are."""


def warn(text: str, category: type[Warning]) -> None:
    """Warn at the line of the program that called gradwire, or a function of torch."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INNER):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)
