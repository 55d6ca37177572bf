"""A transformer on Python source code, character by character."""

import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benches.harness.tasks import SEED, Batch

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


@dataclass
class Text:
    """The standard library's sources, one character at a time."""

    batch: int = 8
    length: int = 64
    held_out_windows: int = 64
    usual: ClassVar[str] = "adamw"

    def __post_init__(self) -> None:
        train, test = python_sources()
        self._digest = hashlib.sha256(train + test).hexdigest()
        self._train, self._test = characters(train), characters(test)

    def model(self, seed: int = 0) -> nn.Module:
        torch.manual_seed(SEED + seed)
        return TextNet(self.length)

    def _windows(self, text: Tensor, starts: Tensor) -> Batch:
        windows = text[starts[:, None] + torch.arange(self.length + 1)]
        return windows[:, :-1], windows[:, 1:]

    def batches(self, rank: int, ranks: int, seed: int = 0) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(SEED + seed)
        while True:
            starts = torch.randint(
                len(self._train) - self.length - 1, (self.batch * ranks,), generator=generator
            )
            yield self._windows(self._train, starts[rank::ranks])

    def held_out(self, rank: int, ranks: int) -> list[Batch]:
        starts = torch.linspace(0, len(self._test) - self.length - 2, self.held_out_windows).long()
        return [self._windows(self._test, part) for part in torch.split(starts[rank::ranks], 16)]

    def facts(self) -> dict[str, object]:
        return {
            "data": "the Python standard library's top-level modules",
            "training_characters": len(self._train),
            "held_out_characters": len(self._test),
            "sha256": self._digest,
            "batch_per_rank": f"{self.batch} windows of {self.length} characters",
        }
