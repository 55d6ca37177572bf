"""What each memory promises of one step. A memory that is not here has no promise to test yet."""

import numpy as np

import gradwire
from gradwire.memory import AdamCorrection, LowPass, MomentumCorrection, NoMemory, Residual


def holds(
    codec: gradwire.Codec,
    seen: np.ndarray,
    sent: np.ndarray,
    before: np.ndarray | None,
    after: np.ndarray | None,
    positions: np.ndarray,
) -> bool:
    """Whether memory and frame together are what was there.

    ``seen`` is what was encoded, memory included; ``sent`` what a receiver decodes; ``before`` and
    ``after`` are the residual around the step.
    """
    if isinstance(codec.memory, NoMemory):
        return after is None
    assert before is not None
    assert after is not None
    left = seen - sent
    if isinstance(codec.memory, Residual | MomentumCorrection | AdamCorrection):
        return np.array_equal(after, left)
    if isinstance(codec.memory, LowPass):
        # Chen et al., NeurIPS 2020, section 3: m <- (1 - beta) * m + beta * (what was not sent).
        beta = np.float64(codec.memory.beta)
        expected = (1 - beta) * before.astype(np.float64) + beta * left.astype(np.float64)
        scale = np.abs(before) + np.abs(seen) + np.abs(sent)
        return bool((np.abs(after - expected) <= 4 * np.spacing(scale.astype(np.float32))).all())
    raise AssertionError(f"say here what {codec.memory!r} promises")
