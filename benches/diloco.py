"""Loss and bytes of DiLoCo and of dense data parallelism, on the demo's text at equal tokens.

    python -m benches.diloco               # dense, then all settings, each with seed 0
    python -m benches.diloco --only NAME --seeds 3

Two ranks are simulated in one process, with the codecs, limits and outer step of real ones. Every
rank has AdamW, at the learning rate that is best for dense training. Losses are of held-out text.
"""

import argparse
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import gradwire
from gradwire import Codec
from gradwire.cli.training.tasks import share_of_rate
from gradwire.torch.diloco.part import Outer

from .accuracy.averaging import Compressed
from .accuracy.flat import Flat
from .accuracy.methods import ADAMW, METHODS
from .accuracy.run import evaluate, run
from .accuracy.tasks.text import Text

RANKS, STEPS, RATE = 2, 2400, 0.002
_INNER: dict[str, Any] = dict(ADAMW)


@dataclass(frozen=True)
class Setting:
    """One way to train: codec, inner steps, outer learning rate and momentum."""

    codec: Codec
    inner_steps: int
    lr: float
    momentum: float


def _four_bits() -> Codec:
    return gradwire.dense(quantize=gradwire.quantize.Codebook(4), memory=gradwire.memory.Residual())


SETTINGS = {
    "SparseLoCo, 30 steps": Setting(gradwire.sparseloco(), 30, 1.0, 0.0),
    "4 bits, 15 steps, average": Setting(_four_bits(), 15, 1.0, 0.0),
    "4 bits, 15 steps, 0.8, Nesterov 0.4": Setting(_four_bits(), 15, 0.8, 0.4),
    "4 bits, 15 steps, 0.7, Nesterov 0.6": Setting(_four_bits(), 15, 0.7, 0.6),
}


def train(task: Text, setting: Setting, seed: int) -> tuple[float, float]:
    """Return held-out loss of the shared parameters, and bytes that a rank sends per inner step."""
    model = task.model(seed)
    flat = Flat(model)
    shared = flat.parameters.clone()
    velocity = torch.zeros_like(shared)
    outer = Outer(setting.lr, setting.momentum, True, 0.0)
    own = [nn.Parameter(shared.clone()) for _ in range(RANKS)]
    inner = [torch.optim.AdamW([each], lr=0.0, fused=True, **_INNER) for each in own]
    averaging = Compressed(flat, RANKS, setting.codec)
    batches = [task.batches(rank, RANKS, seed) for rank in range(RANKS)]
    mean, sent = torch.zeros_like(shared), 0.0
    for step in range(STEPS):
        for rank in range(RANKS):
            flat.parameters.copy_(own[rank].detach())
            flat.gradients.zero_()
            task.loss(model, next(batches[rank])).backward()  # type: ignore[no-untyped-call]
            own[rank].grad = flat.gradients
            inner[rank].param_groups[0]["lr"] = RATE * share_of_rate(step, STEPS)
            inner[rank].step()
        if (step + 1) % setting.inner_steps == 0:
            for rank in range(RANKS):
                averaging.take(rank, shared - own[rank].detach())
            averaging.average(mean)
            sent += averaging.nbytes
            outer.step(shared, velocity, mean)
            for each in own:
                each.data.copy_(shared)
    flat.parameters.copy_(shared)
    return evaluate(task, model)["loss"], sent / STEPS


def main() -> None:
    """Train and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=SETTINGS, help="one setting, without dense training")
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    task = Text()
    print("| | seed | loss | bytes per step |\n|---|---:|---:|---:|", flush=True)
    for seed in range(options.seeds):
        if options.only is None:
            dense = run(task, METHODS["dense AdamW"], RATE, seed=seed, steps=STEPS)
            loss, sent = dense.points[-1]["loss"], dense.bytes_per_step
            print(f"| dense AdamW | {seed} | {loss:.4f} | {sent:,.0f} |", flush=True)
        for name, setting in SETTINGS.items():
            if options.only in (None, name):
                loss, sent = train(task, setting, seed)
                print(f"| {name} | {seed} | {loss:.4f} | {sent:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
