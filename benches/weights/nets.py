"""Networks on the text of the accuracy task, beside its own transformer."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from benches.accuracy.tasks.text import Text
from benches.harness.text import ALPHABET, TextNet

LENGTH = 64


class Recurrent(nn.Module):
    """A character-level GRU of one layer: 0.28 M parameters."""

    def __init__(self, width: int = 64, hidden: int = 256) -> None:
        super().__init__()
        self.character = nn.Embedding(len(ALPHABET), width)
        self.cells = nn.GRU(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, len(ALPHABET))

    def forward(self, text: Tensor) -> Tensor:
        logits: Tensor = self.head(self.cells(self.character(text))[0])
        return logits


class Memory(nn.Module):
    """A character-level LSTM of one layer: 0.36 M parameters."""

    def __init__(self, width: int = 64, hidden: int = 256) -> None:
        super().__init__()
        self.character = nn.Embedding(len(ALPHABET), width)
        self.cells = nn.LSTM(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, len(ALPHABET))

    def forward(self, text: Tensor) -> Tensor:
        logits: Tensor = self.head(self.cells(self.character(text))[0])
        return logits


class Experts(nn.Module):
    """Feed-forward networks of which a router picks two for each row of x."""

    def __init__(self, width: int, hidden: int, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
            for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        best, chosen = self.router(rows).topk(2)
        shares = functional.softmax(best, dim=-1)
        y = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            row, place = (chosen == number).nonzero(as_tuple=True)
            if len(row):
                y = y.index_add(0, row, shares[row, place, None] * expert(rows[row]))
        return y.view_as(x)


class Mixture(TextNet):
    """The transformer with six experts of half its hidden width in a block: 0.96 M parameters."""

    def __init__(self, width: int = 128, hidden: int = 256, count: int = 6) -> None:
        super().__init__(LENGTH, width)
        for block in self.blocks:
            block.feed = Experts(width, hidden, count)


class RecurrentText(Text):
    """The text task with a GRU."""

    def model(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Recurrent()


class MemoryText(Text):
    """The text task with an LSTM."""

    def model(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Memory()


class WideText(Text):
    """The text task with four blocks of width 256: 3.2 M parameters."""

    def model(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return TextNet(LENGTH, width=256, depth=4)


class MixtureText(Text):
    """The text task with a mixture of experts."""

    def model(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Mixture()
