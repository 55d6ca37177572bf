"""What tasks with text have in common: windows from random places, and each next character."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from benches.harness.tasks import SEED, Batch, loss_sum

LARGEST = 200_000
"""Larger files of the wheel are tables and lists that a program has written."""


class Windows:
    """Predict the next character everywhere in windows of training text.

    ``texts`` are that for training and that held out, ``codes`` turns one into positions in an
    alphabet. The global batch has ``batch`` windows of ``length`` characters; those for evaluation
    are ``held_out`` windows at equal distances.
    """

    def __init__(
        self,
        data: str,
        texts: tuple[bytes, bytes],
        codes: Callable[[bytes], Tensor],
        *,
        batch: int = 16,
        length: int = 64,
        held_out: int = 1024,
    ) -> None:
        self._data, self._digest = data, hashlib.sha256(texts[0] + texts[1]).hexdigest()
        self._train, self._test = map(codes, texts)
        self._batch, self.length, self._held_out = batch, length, held_out

    def model(self, seed: int) -> nn.Module:
        torch.manual_seed(SEED + seed)
        return self.new()

    def new(self) -> nn.Module:
        """Return a model with weights from torch's generator."""
        raise NotImplementedError

    def batches(self, rank: int, ranks: int, seed: int) -> Iterator[Batch]:
        if self._batch % ranks:
            raise ValueError(f"{self._batch} windows do not divide among {ranks} ranks")
        generator = torch.Generator().manual_seed(SEED + seed)
        last = len(self._train) - self.length - 1
        while True:
            starts = torch.randint(last, (self._batch,), generator=generator)
            yield self._cut(self._train, starts[rank::ranks])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        total, _, count = loss_sum(model, batch)
        return total / count

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        sums = torch.zeros(3, dtype=torch.float64)
        last = len(self._test) - self.length - 2
        for starts in torch.split(torch.linspace(0, last, self._held_out).long(), 16):
            loss, right, count = loss_sum(model, self._cut(self._test, starts))
            sums += torch.tensor([loss.item(), right.item(), count], dtype=torch.float64)
        return {"loss": float(sums[0] / sums[2]), "accuracy": float(sums[1] / sums[2])}

    def facts(self) -> dict[str, object]:
        return {
            "data": self._data,
            "training_characters": len(self._train),
            "sha256": self._digest,
        }

    def _cut(self, text: Tensor, starts: Tensor) -> Batch:
        windows = text[starts[:, None] + torch.arange(self.length + 1)].long()
        return windows[:, :-1], windows[:, 1:]


def octets(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def wheel(*endings: str) -> tuple[bytes, bytes]:
    """Return training and held-out text from the files of the torch wheel that people wrote.

    Of files with the same contents the first counts; then every tenth one is held out.
    """
    root = Path(torch.__file__).parent
    paths = sorted(path for ending in endings for path in root.rglob(f"*{ending}"))
    read = (path.read_bytes() for path in paths if path.stat().st_size <= LARGEST)
    texts = list(dict.fromkeys(text for text in read if b"@generated" not in text[:200]))
    held_out = texts[9::10]
    del texts[9::10]
    return b"".join(texts), b"".join(held_out)
