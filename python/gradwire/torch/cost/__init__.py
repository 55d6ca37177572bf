"""What a cost model takes, measured in a training program: its link, and its backward pass."""

from gradwire.torch.cost.link import measure_link
from gradwire.torch.cost.workload import measure_workload

__all__ = ["measure_link", "measure_workload"]
