"""The tasks of the headlines: those of `benches.accuracy`, and a recurrent network."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benches.accuracy.tasks.fashion import Fashion
from benches.accuracy.tasks.task import Task
from benches.accuracy.tasks.text import Text
from benches.harness.tasks import SEED
from benches.harness.text import ALPHABET


class RecurrentNet(nn.Module):
    """A character-level LSTM of one layer: 0.43 M parameters, nearly all of them recurrent."""

    def __init__(self, embedding: int = 64, width: int = 288) -> None:
        super().__init__()
        self.character = nn.Embedding(len(ALPHABET), embedding)
        self.recurrent = nn.LSTM(embedding, width, batch_first=True)
        self.head = nn.Linear(width, len(ALPHABET))

    def forward(self, text: Tensor) -> Tensor:
        """Return the logits."""
        found, _ = self.recurrent(self.character(text))
        logits: Tensor = self.head(found)
        return logits


class Recurrent(Text):
    """The text of `benches.accuracy`, with an LSTM."""

    def model(self, seed: int) -> nn.Module:
        """Return a newly initialized model."""
        torch.manual_seed(SEED + seed)
        return RecurrentNet()


class Dense(nn.Module):
    """Three fully connected layers for 28 x 28 images: 0.54 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(784, 512),
            nn.ReLU(),
            nn.Linear(512, 256),
            nn.ReLU(),
            nn.Linear(256, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.layers(images)
        return logits


class FullyConnected(Fashion):
    """The images of `benches.accuracy`, with fully connected layers."""

    def model(self, seed: int) -> nn.Module:
        """Return a newly initialized model."""
        torch.manual_seed(SEED + seed)
        return Dense()


def _digits(batch: int) -> Task:
    from benches.accuracy.tasks.digits import Digits

    return Digits(batch)


def _fashion(batch: int) -> Task:
    return Fashion(global_batch=batch)


def _fully_connected(batch: int) -> Task:
    return FullyConnected(global_batch=batch)


TASKS: dict[str, Callable[[int], Task]] = {
    "digits": _digits,
    "fashion": _fashion,
    "fully connected": _fully_connected,
    "lstm": Recurrent,
}
"""What makes a task for a batch of all ranks together, by its name."""
