"""The interface of what joins the ranks and exchanges gradients: DDP, or Horovod."""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from benches.demo.methods import Exchange
from gradwire.codec import Codec


@dataclass(frozen=True)
class Prepared:
    """A model and its optimizer, whose gradients are exchanged by a method."""

    model: nn.Module
    optimizer: Optimizer
    exchange: Exchange


class Framework(Protocol):
    """The ranks as one of them sees them; all but ``prepare`` of a baseline are collectives.

    Attributes
    ----------
    versions : dict of str to str
        Of its packages, other than torch.
    """

    versions: dict[str, str]

    def prepare(
        self, module: nn.Module, optimizer: Optimizer, method: str, codec: Codec | None
    ) -> Prepared:
        """Make the gradients of a new model be exchanged by a method."""

    def barrier(self) -> None:
        """Wait for all ranks."""

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum over all ranks."""

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks."""

    def broadcast(self, value: Any, source: int) -> Any:
        """Return the value of one rank on every rank."""
