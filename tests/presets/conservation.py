"""What each memory promises of one step. A memory that is not here has no promise to test yet."""

import numpy as np

import gradwire
from gradwire.memory import (
    AdamCorrection,
    Estimate,
    LowPass,
    MomentumCorrection,
    NoMemory,
    Residual,
)

TINY = np.finfo(np.float32).smallest_normal


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
    ``after`` are the residual around the step, in which zeros stand for subnormal numbers.
    """
    if isinstance(codec.memory, NoMemory):
        return after is None
    assert before is not None
    assert after is not None
    left, allowed = seen - sent, np.zeros(seen.shape)
    expected = np.where(np.abs(left) < TINY, np.float32(0), left).astype(np.float64)
    if isinstance(codec.memory, LowPass):
        # Chen et al., NeurIPS 2020, section 3: m <- (1 - beta) * m + beta * (what was not sent).
        beta = np.float64(codec.memory.beta)
        expected = (1 - beta) * before.astype(np.float64) + beta * left.astype(np.float64)
        scale = np.abs(before) + np.abs(seen) + np.abs(sent)
        allowed = 4 * np.spacing(scale.astype(np.float32)) + np.float64(TINY)
    elif isinstance(codec.memory, Estimate):
        expected = before.astype(np.float64) + sent.astype(np.float64)
        scale = np.abs(before) + np.abs(seen) + np.abs(sent)
        allowed = 4 * np.spacing(scale.astype(np.float32)) + np.float64(TINY)
    elif not isinstance(codec.memory, Residual | MomentumCorrection | AdamCorrection):
        raise AssertionError(f"say here what {codec.memory!r} promises")
    if getattr(codec.memory, "low_memory", False):  # rounded stochastically
        allowed = allowed + np.abs(expected) * 2.0**-7 + np.float64(TINY)
    return bool((np.abs(after - expected) <= allowed).all())
