"""Which backend takes a tensor, and why."""

from gradwire.torch.backends import cpu
from gradwire.torch.backends.interface import Backend

__all__ = ["of"]

_IN_PLACE: Backend = cpu


def of(*tensors: object) -> Backend:
    """Return the backend for what a call was given; what is no tensor does not count."""
    return _IN_PLACE
