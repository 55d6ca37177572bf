"""Time, bytes and memory of one training step, for each codec, size and ratio."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import gradwire
from gradwire.presets import PRESETS

RATIOS = (0.01, 0.001)


def codecs() -> dict[str, gradwire.Codec]:
    """Return every preset, at each ratio if it takes one, else as in its example."""
    found = {}
    for name, preset in PRESETS.items():
        if "ratio" in preset.example:
            for ratio in RATIOS:
                found[f"{name}, {ratio:g}"] = preset.build(**{**preset.example, "ratio": ratio})
        else:
            found[name] = preset.build(**preset.example)
    return found


def gradients(numel: int, steps: int) -> list[NDArray[np.float32]]:
    """Return ``steps`` tensors with heavy tails, as gradients have them, seeded.

    A normal variable times an exponential one: quick to draw, for every benchmark draws anew.
    """
    generator = np.random.default_rng(20210405)
    return [
        generator.standard_normal(numel, np.float32)
        * generator.standard_exponential(numel, np.float32)
        for _ in range(steps)
    ]


class Step:
    """A steady step: the state has seen a few gradients of the same law."""

    params = [list(codecs()), [1_000, 1_000_000, 25_000_000]]
    param_names = ["codec", "numel"]
    timeout = 300

    def setup(self, codec: str, numel: int) -> None:
        gradwire.set_num_threads(1)
        self.codec = codecs()[codec].for_shape((numel // 100, 100))
        self.state = self.codec.init_state(numel, name="w")
        self.gradients = gradients(numel, 2)
        self.turn = 0
        for _ in range(4):
            self.frame = self.encode()
        self.total = self.gradients[0].copy()

    def encode(self) -> gradwire.Frame:
        self.turn ^= 1
        return self.codec.encode(self.gradients[self.turn], self.state)

    def time_encode(self, codec: str, numel: int) -> None:
        self.encode()

    def time_decode_add(self, codec: str, numel: int) -> None:
        gradwire.decode_add(self.frame, self.total, scale=0.5)

    def peakmem_encode(self, codec: str, numel: int) -> None:
        self.encode()

    def track_bits_per_entry_sent(self, codec: str, numel: int) -> float:
        return 8 * self.frame.nbytes / max(1, self.frame.count)

    def track_sent_over_asked(self, codec: str, numel: int) -> float:
        last = self.state.last or {}
        return self.frame.count / max(1, last["target"] or self.frame.count)


Step.track_bits_per_entry_sent.unit = "bits"  # type: ignore[attr-defined]
Step.track_sent_over_asked.unit = "ratio"  # type: ignore[attr-defined]
