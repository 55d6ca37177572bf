"""Tasks on text: windows from random places, and each next character or byte."""

import hashlib
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

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


# Newline and printable ASCII; anything else in a source file becomes the last one.
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
UNKNOWN = len(ALPHABET) - 1


def python_sources(limit: int = 1_500_000) -> tuple[bytes, bytes]:
    """Return training text and held-out text; every tenth standard-library module is held out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    train, test = bytearray(), bytearray()
    for number, path in enumerate(sorted(root.glob("*.py"))):
        (test if number % 10 == 9 else train).extend(path.read_bytes())
    if len(train) < 100_000 or len(test) < 10_000:
        raise FileNotFoundError(
            f"{root} contains too little Python source to train on ({len(train) + len(test)} bytes)"
        )
    return bytes(train[:limit]), bytes(test[:limit])


def characters(text: bytes) -> Tensor:
    """Return the text as positions in ``ALPHABET``."""
    table = np.full(256, UNKNOWN, dtype=np.int64)
    table[np.frombuffer(ALPHABET.encode("ascii"), dtype=np.uint8)] = np.arange(len(ALPHABET))
    return torch.from_numpy(table[np.frombuffer(text, dtype=np.uint8)])


class Block(nn.Module):
    """A pre-norm transformer block with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm_feed = nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.query_key_value(self.norm_attention(x)).view(
            batch, length, 3, self.heads, width // self.heads
        )
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        out: Tensor = x + self.feed(self.norm_feed(x))
        return out


class TextNet(nn.Module):
    """A character-level transformer: two blocks of width 128, 0.43 M parameters."""

    def __init__(
        self,
        length: int,
        width: int = 128,
        heads: int = 4,
        depth: int = 2,
        alphabet: int = len(ALPHABET),
    ) -> None:
        super().__init__()
        self.character = nn.Embedding(alphabet, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, alphabet)
        for table in (self.character, self.position):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        positions = torch.arange(text.shape[1], device=text.device)
        x = self.character(text) + self.position(positions)
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


HELD_OUT = 1024


class Text(Windows):
    """A character-level transformer on Python source code: windows of 64 characters."""

    def __init__(self, **options: int) -> None:
        data = "the Python standard library's top-level modules"
        super().__init__(data, python_sources(), characters, **{"held_out": HELD_OUT, **options})

    def new(self) -> nn.Module:
        return TextNet(self.length)


class Code(Windows):
    """Python and C++, one byte at a time: eight windows of 128."""

    def __init__(self, held_out: int = 256) -> None:
        data, texts = "the torch wheel's Python sources and headers", wheel(".py", ".h")
        super().__init__(data, texts, octets, batch=8, length=128, held_out=held_out)

    def new(self) -> nn.Module:
        """Return six blocks of width 384 with six heads: 10.9 M parameters."""
        return TextNet(self.length, width=384, heads=6, depth=6, alphabet=256)


NARROW, WIDE = 128, 256


class HeadersNet(nn.Module):
    """An embedding of bytes, one LSTM layer, and a head: 0.49 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.byte = nn.Embedding(256, NARROW)
        self.layer = nn.LSTM(NARROW, WIDE, batch_first=True)
        self.head = nn.Linear(WIDE, 256)

    def forward(self, text: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(self.byte(text))[0])
        return logits


class Headers(Windows):
    """Headers, one byte at a time: windows of 64, each from an empty state."""

    def __init__(self, held_out: int = 1024) -> None:
        super().__init__("the torch wheel's headers", wheel(".h"), octets, held_out=held_out)

    def new(self) -> nn.Module:
        return HeadersNet()
