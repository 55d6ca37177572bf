"""Train on text with 8-bit tensors and 16-bit sums, and print the cost of each part in nats."""

import dataclasses
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, one_hot

from gradwire.numerics import Float

FILES = sorted(Path(dataclasses.__file__).parent.glob("*.py"))[:40]
CODES = torch.tensor(list(b"".join(file.read_bytes() for file in FILES))).clamp(max=127)
TRAIN, HELD_OUT = CODES.unfold(0, 3, 1).tensor_split([len(CODES) * 9 // 10])
FP8, RUNS = Float(5, 2), {32768: (25, 2.0), 512: (500, 0.03)}  # by batch: steps and rate
ROWS: dict[str, tuple[Float | None, int, Float | None]] = {"float32": (None, 0, None)}
ROWS |= {"FP8, sums in float32": (FP8, 0, None), "sums in FP16, chunks of 64": (FP8, 64, None)}
ROWS |= {"sums in FP16, plain": (FP8, 2**20, None), "updates to nearest": (FP8, 64, Float(6, 9))}
ROWS |= {"updates stochastic": (FP8, 64, Float(6, 9, rounding="stochastic"))}


def fp(x: torch.Tensor, to: Float | None, seed: int = 0) -> torch.Tensor:
    """Return values rounded to a format; None leaves them unchanged."""
    return torch.from_numpy(dataclasses.replace(to, seed=seed).round(x.numpy())) if to else x


def product(a: torch.Tensor, b: torch.Tensor, chunk: int) -> torch.Tensor:
    """Return a @ b in FP8, summed like `numerics.chunked_sum`: the same bits, but faster."""
    if not chunk:
        return a @ b
    x, y = (torch.stack(each.split(chunk), 1) for each in (a.mT[..., None], b[:, None]))
    for _ in ("chunks", "their sums"):
        total = torch.zeros_like(x[0] * y[0])
        for terms in zip(x, y, strict=True):  # adding 1.5 * 2**14 binades cuts behind 9 bits
            bits = total.addcmul_(*terms).view(torch.int32) & 0x7F800000
            total.add_(bits.view(x.dtype), alpha=24576).sub_(bits.view(x.dtype), alpha=24576)
        x, y = total, torch.ones(len(total))
    return total


def train(to: Float | None, chunk: int, update: Float | None, batch: int) -> float:
    """Return the held-out loss, after SGD with momentum on losses times the batch."""
    torch.manual_seed(0)
    (steps, rate), m = RUNS[batch], [torch.zeros(1)] * 2
    w = [torch.randn(256, 16) / 2**0.5, torch.randn(16, 128) / 4]
    for step in range(steps + 1):
        windows = TRAIN[torch.randint(len(TRAIN), (batch,))] if step < steps else HELD_OUT[:16384]
        x, y = one_hot(windows[:, :-1], 128).flatten(1).float(), windows[:, -1]
        z = product(h := fp(product(x, fp(w[0], to), chunk).relu(), to), fp(w[1], to), chunk)
        error = fp(z.softmax(1) - one_hot(y, 128), to)
        below = fp(product(error, fp(w[1], to).T, chunk) * (h > 0), to)
        for i, (a, e) in enumerate(((x, below), (h, error))):
            m[i] = fp(0.9 * m[i] + fp(product(a.T, e, chunk), to) / batch, update, 4 * step + i)
            w[i] = fp(w[i] - (1 - step / steps) * rate * m[i], update, 4 * step + 2 + i)
    return float(cross_entropy(z, y))


if __name__ == "__main__":
    torch.set_num_threads(1)  # operations are small
    for name, row in ROWS.items():
        print(f"{name:26}", {each: round(train(*row, each), 3) for each in RUNS}, flush=True)
