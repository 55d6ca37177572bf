"""A transformer on Python source code, character by character."""

import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

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
