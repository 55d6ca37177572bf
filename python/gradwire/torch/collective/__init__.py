"""Compressed collectives for tensors of any loop."""

from gradwire.torch.collective.calls import all_reduce
from gradwire.torch.collective.reducer import Reducer
from gradwire.torch.collective.work import Work

__all__ = ["Reducer", "Work", "all_reduce"]
