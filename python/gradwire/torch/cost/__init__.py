"""Measures the inputs of a cost model in a training program: link and backward pass."""

from gradwire.torch.cost.link import measure_link
from gradwire.torch.cost.workload import measure_workload

__all__ = ["measure_link", "measure_workload"]
