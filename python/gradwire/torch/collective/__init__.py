"""Compressed collectives for tensors in any training loop."""

from gradwire.torch.collective.reducer import Reducer, Work, all_reduce

__all__ = ["Reducer", "Work", "all_reduce"]
