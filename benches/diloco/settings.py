"""The settings that were tried, by the names that tables and records use."""

from dataclasses import dataclass, replace
from typing import Any

import gradwire
from benches.accuracy.methods import ADAMW
from gradwire import Codec
from gradwire.quantize import Codebook

_INNER: dict[str, Any] = dict(ADAMW)


@dataclass(frozen=True)
class Setting:
    """One way to train across sites.

    Attributes
    ----------
    codec, inner_steps, outer_lr, outer_momentum, fragments, delay, mixing
        See `gradwire.torch.diloco.DiLoCo`; the momentum is Nesterov's.
    rate, beta1 : float
        Of the inner AdamW: the highest learning rate of the schedule, and the decay of its first
        moment.
    """

    codec: Codec
    inner_steps: int
    rate: float = 0.004
    beta1: float = 0.0
    outer_lr: float = 1.0
    outer_momentum: float = 0.0
    fragments: int = 1
    delay: int = 0
    mixing: float | None = 0.0

    def adamw(self) -> dict[str, Any]:
        """Return the options of the inner optimizer."""
        return {**_INNER, "lr": self.rate, "betas": (self.beta1, _INNER["betas"][1])}

    def config(self) -> dict[str, Any]:
        """Return what determines the setting, as plain data."""
        return {**vars(self), "codec": self.codec.get_config()}


def _largest(ratio: float) -> Codec:
    return gradwire.topk(ratio, quantize=Codebook(2))


_FIVE = Setting(_largest(0.05), 5)

TRIED: dict[str, Setting] = {
    "10%, 10 steps": Setting(_largest(0.1), 10),
    "5%, 5 steps": _FIVE,
    "5%, 5 steps, rate 0.001, outer 4": replace(_FIVE, rate=0.001, outer_lr=4.0),
}
"""The recorded ones of the settings that one was chosen of; four earlier ones were not kept."""

CHOSEN = "5%, 5 steps, rate 0.001, outer 4"


def _overlapped() -> dict[str, Setting]:
    """Return the chosen setting in fragments, or delayed by a fifth and about half of the steps."""
    chosen = TRIED[CHOSEN]
    fifth, half = chosen.inner_steps // 5, chosen.inner_steps // 2
    found = {CHOSEN: chosen}
    for fragments, delay, mixing in (
        (2, 0, 0.0),
        (4, 0, 0.0),
        (1, fifth, None),
        (1, half, None),
        (2, half, None),
        (1, fifth, 0.0),
        (1, half, 0.0),
    ):
        rule = "" if mixing is None else f", mixing {mixing}"
        name = f"{fragments} fragments, delay {delay}{rule}"
        found[name] = replace(chosen, fragments=fragments, delay=delay, mixing=mixing)
    return found


OVERLAPPED = _overlapped()


def _streamed() -> dict[str, Setting]:
    """Return every entry in four bits, delayed by a third of the steps, with two outer momenta."""
    found = {}
    for momentum in (0.9, 0.6):
        every = Setting(
            gradwire.dense(quantize=Codebook(4)),
            15,
            rate=0.002,
            beta1=0.9,
            outer_lr=0.7,
            outer_momentum=momentum,
        )
        name = "4 bits, 15 steps" if momentum == 0.9 else f"4 bits, 15 steps, momentum {momentum}"
        found[name] = every
        found[f"{name}, delay 5"] = replace(every, delay=5, mixing=None)
        found[f"{name}, delay 5, mixing 0.5"] = replace(every, delay=5, mixing=0.5)
        found[f"{name}, delay 5, mixing 0.0"] = replace(every, delay=5)
    return found


STREAMED = _streamed()
SETTINGS: dict[str, Setting] = {**TRIED, **OVERLAPPED, **STREAMED}
