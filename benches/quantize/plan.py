"""Which models are packed by which methods, and in which order that is done."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from benches.weights.plan import FASHION, GRU, LSTM, MIXTURE, TEXT, WIDE, Model, Run
from gradwire import weights
from gradwire.weights import Preparation, Solver

BITS = (8, 4, 3, 2)
BLOCK = 64
ROW = 1 << 16
"""More than any row has: blocks are rows then."""
SEEDS = (1, 2, 3)
SPREAD = (TEXT, FASHION)
"""The models that are packed with all seeds of calibration."""


@dataclass(frozen=True)
class Method:
    """What chooses codes: without a solver the nearest ones, with `allot` a budget too.

    ``sequential``: a layer is calibrated on what the packed ones before it make.
    """

    fit: Literal["range", "zero", "squares"] = "squares"
    rounding: Solver | None = None
    prepare: Preparation | None = None
    allot: Literal["loss", "errors"] | None = None
    sequential: bool = False


ZERO, RANGE, SQUARES = 'nearest, "zero"', 'nearest, "range"', 'nearest, "squares"'
GPTQ, PAPER, COMQ = "GPTQ", "COMQ as in the paper", "COMQ"
GPTQ_SEQUENTIAL, COMQ_SEQUENTIAL = "GPTQ, sequential", "COMQ, sequential"
BY_LOSS, BY_ERRORS = "Loss-based budget, COMQ", "Error-based budget, COMQ"
BY_LOSS_SEQUENTIAL = "Loss-based budget, COMQ, sequential"
MAGR_GPTQ, MAGR_COMQ = "MagR + GPTQ", "MagR + COMQ"
METHODS = {
    ZERO: Method("zero"),
    RANGE: Method("range"),
    SQUARES: Method("squares"),
    GPTQ: Method(rounding=weights.GPTQ()),
    PAPER: Method(rounding=weights.COMQ(start="nearest", bases=False)),
    COMQ: Method(rounding=weights.COMQ()),
    MAGR_GPTQ: Method(rounding=weights.GPTQ(), prepare=weights.MagR()),
    MAGR_COMQ: Method(rounding=weights.COMQ(), prepare=weights.MagR()),
    GPTQ_SEQUENTIAL: Method(rounding=weights.GPTQ(), sequential=True),
    COMQ_SEQUENTIAL: Method(rounding=weights.COMQ(), sequential=True),
    BY_LOSS: Method(rounding=weights.COMQ(), allot="loss"),
    BY_ERRORS: Method(rounding=weights.COMQ(), allot="errors"),
    BY_LOSS_SEQUENTIAL: Method(rounding=weights.COMQ(), allot="loss", sequential=True),
}
RECOMMENDED = COMQ_SEQUENTIAL
PLAIN = tuple(name for name, each in METHODS.items() if each.rounding is None)
SOLVED = tuple(name for name, each in METHODS.items() if each.rounding and not each.allot)
BUDGETS = tuple(name for name, each in METHODS.items() if each.allot)
MEANS = (3.0, 2.5)
"""Bits of codes, on average, of which a budget gets the bytes."""


@dataclass(frozen=True)
class Setting:
    """How a model is packed or trained; without a method it is as it was trained.

    ``bits`` are those of a code; of a budget the mean whose bytes it gets. ``seed`` is that of the
    batches of the calibration; 0 where there is none. A ``method`` that is none of `METHODS` is a
    training.
    """

    method: str = ""
    bits: float = 32
    block: int = BLOCK
    seed: int = 0


FLOAT = Setting()
CONTINUED = "float32 trained further"
ABSMAX, SAWB_PACT, SAWB_PLUS = "largest magnitudes", "SAWB, PACT", "SAWB, PACT+"
ALONE, ANY = "one precision", "any precision"
STEPPED = "PACT+ at every time step"
TRAINED: dict[Model, tuple[Setting, ...]] = {
    FASHION: (
        Setting(ANY, 8),
        *(Setting(each, 2) for each in (ABSMAX, SAWB_PACT, SAWB_PLUS)),
        *(Setting(ALONE, bits) for bits in (8, 4, 2)),
        Setting(CONTINUED),
    ),
    LSTM: (Setting(STEPPED, 4), Setting(CONTINUED)),
}
"""What goes on from trained weights, by model: the longest first."""
ANY_BITS = (8, 4, 2)


def usual(seed: int) -> Iterator[Setting]:
    """Yield what every model is packed by."""
    for bits in BITS:
        yield from (Setting(name, bits) for name in PLAIN)
        for name in SOLVED:
            # At 8 bits, nothing is lost that later layers would see.
            if bits < 8 or not METHODS[name].sequential:
                yield Setting(name, bits, seed=seed)
    yield from budgets(seed)


def budgets(seed: int) -> Iterator[Setting]:
    """Yield the budgets with a seed of calibration."""
    yield from (Setting(name, bits, seed=seed) for bits in MEANS for name in BUDGETS)


def spread() -> Iterator[Setting]:
    """Yield what a few models are packed by with further seeds."""
    for seed in SEEDS[1:]:
        yield from (Setting(name, bits, seed=seed) for bits in BITS[1:] for name in SOLVED)
        yield from (Setting(BY_LOSS, bits, seed=seed) for bits in MEANS)


def blocks() -> Iterator[Setting]:
    """Yield what the first model is packed by in other blocks."""
    methods = [name for name in SOLVED if not METHODS[name].sequential]
    for block in (32, ROW):
        for bits in BITS:
            yield from (Setting(name, bits, block) for name in PLAIN)
            yield from (Setting(name, bits, block, SEEDS[0]) for name in methods)


def settings(model: Model) -> Iterator[tuple[int, Setting]]:
    """Yield all settings of a model, each after how much it can wait."""
    if model is not LSTM:
        yield from ((0, each) for each in (FLOAT, *usual(SEEDS[0])))
    yield from ((1, each) for each in TRAINED.get(model, ()))
    if model is LSTM:
        yield 1, FLOAT
    if model in SPREAD:
        yield from ((2, each) for each in spread())
    if model is TEXT:
        yield from ((3, each) for each in blocks())


@dataclass(frozen=True)
class Plan:
    """All models at all settings; a quick one has the first model in blocks of 64, and one seed."""

    models: Sequence[Model]
    quick: bool = False

    def runs(self) -> Iterator[Run]:
        """Yield trainings, those first that take longest, then what tells most."""
        if self.quick:
            yield Run(TEXT)
            yield from (Run(TEXT, each) for each in (FLOAT, *usual(SEEDS[0])))
            return
        yield from map(Run, sorted(self.models, key=lambda model: -model.seconds))
        every = [
            (wait, Run(model, each)) for model in self.models for wait, each in settings(model)
        ]
        yield from (run for _, run in sorted(every, key=lambda each: each[0]))


MODELS = (TEXT, WIDE, GRU, MIXTURE, FASHION, LSTM)
