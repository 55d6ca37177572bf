"""The methods: how each is timed, and how its curve is trained."""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import gradwire
from benches.accuracy.flat import Flat
from benches.accuracy.methods import ADAMW, METHODS, SGD, Method
from benches.accuracy.rules import ByOptimizer, Rule
from gradwire import Codec
from gradwire.auto import Setting
from gradwire.sparsify import TopK
from gradwire.torch import ddp

from .decisions import Decision
from .half import Half
from .plan import SECTIONS

POWER = 4
"""Rank of PowerSGD's factors: the largest that its authors try, and the one of our benches."""


@dataclass(frozen=True)
class HalfMethod:
    """Everything in bfloat16, as torch's hook sends it, and torch's optimizer."""

    optimizer: str
    options: Mapping[str, Any]
    codec: Codec | None = None

    def rule(self, flat: Flat, ranks: int, steps: int) -> Rule:
        """Return the rule for a run."""
        rule = ByOptimizer(flat, ranks, None, self.optimizer, dict(self.options))
        rule._averaging = Half(flat, ranks)
        return rule

    def config(self) -> dict[str, Any]:
        """Return what determines the method, as plain data."""
        return {**Method(None, self.optimizer, dict(self.options)).config(), "wire": "bfloat16"}


@dataclass(frozen=True)
class Compared:
    """One method of the study.

    Attributes
    ----------
    kind : {"none", "dense", "rival", "ours", "auto"}
        ``none`` exchanges nothing, which no method can beat; ``rival`` is torch's.
    curve : Method or HalfMethod, optional
        How it is trained.
    same_curve_as : str, optional
        The method whose arithmetic is the same, so that one curve serves both.
    phases : tuple of (str, float)
        Contestants whose steps it takes, and the share of a run that each has: itself if empty.
    """

    kind: str
    curve: Method | HalfMethod | None = None
    same_curve_as: str | None = None
    phases: tuple[tuple[str, float], ...] = ()


NONE, FP32, BF16, AUTO = "no exchange", "fp32", "bf16", "auto"
TORCH_POWER = f"torch PowerSGD, rank {POWER}"
OUR_POWER = f"powersgd({POWER})"
DENSE = (FP32, BF16)

CODECS: dict[str, Codec] = {
    OUR_POWER: gradwire.powersgd(POWER),
    "adam(0.05)": gradwire.adam(0.05),
    "adam(0.01)": gradwire.adam(0.01),
    "adam(0.002)": gradwire.adam(0.002),
    "adam_onebit()": gradwire.adam_onebit(),
    "topk(0.01)": gradwire.topk(ratio=0.01),
}
"""Of the contestants whose steps are timed."""

_WARM = (("adam(0.05)", 0.1), ("adam(0.002)", 0.9))  # the schedule's first of ten epochs

_FAMILIES: dict[str, dict[str, Compared]] = {
    "adamw": {
        NONE: Compared("none"),
        FP32: Compared("dense", METHODS["dense AdamW"]),
        BF16: Compared("dense", HalfMethod("adamw", ADAMW)),
        TORCH_POWER: Compared("rival", same_curve_as=OUR_POWER),
        OUR_POWER: Compared("ours", Method(CODECS[OUR_POWER], "adamw", dict(ADAMW))),
        "adam(0.01)": Compared("ours", METHODS["adam(0.01)"]),
        "adam(0.002), warm-up": Compared("ours", METHODS["adam(0.002), warm-up"], phases=_WARM),
        "adam_onebit()": Compared("ours", METHODS["adam_onebit()"]),
    },
    "sgd": {
        NONE: Compared("none"),
        FP32: Compared("dense", METHODS["dense SGD"]),
        BF16: Compared("dense", HalfMethod("sgd", SGD)),
        TORCH_POWER: Compared("rival", same_curve_as=OUR_POWER),
        OUR_POWER: Compared("ours", Method(CODECS[OUR_POWER], "sgd", dict(SGD))),
        "topk(0.01)": Compared("ours", METHODS["topk(0.01), SGD without momentum"]),
    },
}


AUTO_LIKE = {"adamw": "adam(0.01)", "sgd": "topk(0.01)"}
"""The contestant whose optimizer ``auto`` gets."""


def decided(section: str, decision: Decision) -> tuple[str, ...]:
    """Return the methods whose arithmetic ``auto`` had, as it decided; all, if it had not yet."""
    like = AUTO_LIKE[SECTIONS[section].family]
    named = (*(name for name in DENSE if name in decision.text), *[like] * bool(decision.codecs))
    return named if decision.settled else (*DENSE, like)


def curves_stand_for(section: str, codecs: Iterable[Setting]) -> bool:
    """Tell whether the curves that ``auto`` is given stand for all codecs that it uses.

    They do for a larger ratio than the trained one, which is taken to need no more steps. They do
    not for a smaller one, nor for sums through owners, which select from them once more.
    """
    like = CODECS[AUTO_LIKE[SECTIONS[section].family]].sparsify
    assert isinstance(like, TopK)
    assert like.ratio is not None
    least = like.ratio
    return all(
        each.exchange == "gather" and each.ratio is not None and each.ratio >= least
        for each in codecs
    )


def has_auto() -> bool:
    """Tell whether `gradwire.torch.ddp.attach` takes ``"auto"``."""
    return "max_ratio" in inspect.signature(ddp.attach).parameters


def compared(section: str) -> dict[str, Compared]:
    """Return the methods of a section by name."""
    found = dict(_FAMILIES[SECTIONS[section].family])
    if has_auto():
        found[AUTO] = Compared("auto")
    return found


def contestants(section: str) -> list[tuple[str, str, float | None]]:
    """Return what is timed: its name, its method, and the size of its buckets in MiB.

    Dense methods are timed with buckets of several sizes, methods with phases in each of them. All
    of a cell take turns in the same processes, so that any two of them may be compared.
    """
    found: list[tuple[str, str, float | None]] = []
    for name, method in compared(section).items():
        if method.kind == "dense":
            sizes = SECTIONS[section].buckets
            found += [(f"{name}, {size:g} MB", name, size) for size in sizes]
        else:
            found += [(part, part, None) for part, _ in phases(section, name)]
    return found


def phases(section: str, method: str) -> tuple[tuple[str, float], ...]:
    """Return the contestants whose steps a method takes, and the share of each.

    Of a model that is not trained, there is only the last.
    """
    found = compared(section)[method].phases or ((method, 1.0),)
    return found if SECTIONS[section].trained else ((found[-1][0], 1.0),)
