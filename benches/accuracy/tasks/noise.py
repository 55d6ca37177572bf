"""Noise prediction on scikit-learn's digits, as diffusion models are trained: a smooth regression.

The schedule of the noise and the loss are those of Ho, Jain, Abbeel, "Denoising Diffusion
Probabilistic Models" (NeurIPS 2020), sections 3.4 and 4, with the cosine schedule of Nichol and
Dhariwal, "Improved Denoising Diffusion Probabilistic Models" (ICML 2021), section 3.2.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from benches.harness.digits import Digits as Source

SEED = 20260101
GLOBAL_BATCH = 128
PIXELS = 64
WIDTH, BLOCKS = 192, 3
FREQUENCIES = 32
DRAWS = 16
"""How often each held-out image is noised."""

Batch = tuple[Tensor, Tensor, Tensor]


class Block(nn.Module):
    """Two layers behind a normalization that the time scales and shifts, and a way around them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.time = nn.Linear(WIDTH, 2 * WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Return the activations."""
        scale, shift = self.time(time).chunk(2, dim=1)
        y = self.norm(x) * (1 + scale) + shift
        added: Tensor = self.down(functional.silu(self.up(y)))
        return x + added


class NoiseNet(nn.Module):
    """A residual MLP with LayerNorm that is told the time: 0.71 M parameters."""

    waves: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(2 * FREQUENCIES, WIDTH), nn.SiLU())
        self.stem = nn.Linear(PIXELS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, PIXELS)
        self.register_buffer("waves", torch.logspace(0, 3, FREQUENCIES), persistent=False)

    def forward(self, images: Tensor, time: Tensor) -> Tensor:
        """Return the noise in images at times between 0 and 1."""
        angles = time.unsqueeze(1) * self.waves
        told = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        x = self.stem(images)
        for block in self.blocks:
            x = block(x, told)
        noise: Tensor = self.head(self.norm(x))
        return noise


class Noise:
    """Predict the noise in noisy digits; the loss is the mean square of the error."""

    def __init__(self, global_batch: int = GLOBAL_BATCH) -> None:
        self._global_batch = global_batch
        source = Source(batch=global_batch)
        ((held_out, _),) = source.held_out(0, 1)
        self._source = source
        generator = torch.Generator().manual_seed(SEED)
        self._test = _noised(held_out.repeat(DRAWS, 1, 1, 1), generator)

    def model(self, seed: int) -> nn.Module:
        """Return a newly initialized model."""
        torch.manual_seed(SEED + seed)
        return NoiseNet()

    def batches(self, rank: int, ranks: int, seed: int) -> Iterator[Batch]:
        """Yield a rank's share of every global batch, endlessly."""
        generator = torch.Generator().manual_seed(SEED + seed)
        for images, _ in self._source.batches(0, 1, seed):
            noisy, time, noise = _noised(images, generator)
            yield noisy[rank::ranks], time[rank::ranks], noise[rank::ranks]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of a batch."""
        noisy, time, noise = batch
        return functional.mse_loss(model(noisy, time), noise)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the loss on held-out digits, always with the same noise."""
        loss = float(self.loss(model, self._test))  # of the variance of the noise, which is one
        return {"loss": loss, "explained": 1 - loss}

    def facts(self) -> dict[str, object]:
        """Return facts about data and model, for the record."""
        facts = self._source.facts()
        return {name: facts[name] for name in ("data", "training_images", "held_out_images")}


def _noised(images: Tensor, generator: torch.Generator) -> Batch:
    """Return images between -1 and 1 with noise, the time, and the noise."""
    flat = 2 * images.flatten(1) - 1
    time = torch.rand(len(flat), generator=generator)
    noise = torch.randn(flat.shape, generator=generator)
    angle = (math.pi / 2 * time).unsqueeze(1)
    return angle.cos() * flat + angle.sin() * noise, time, noise
