"""Which models are trained, how they are packed, and in which order that is done."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Fit = Literal["range", "zero", "sawb", "squares"]
Activations = Literal["float32", "int8"]

FITS: tuple[Fit, ...] = ("range", "zero", "sawb", "squares")
ACTIVATIONS: tuple[Activations, ...] = ("float32", "int8")
BITS = (8, 4, 3, 2)
BLOCKS = (32, 64, 128)


@dataclass(frozen=True)
class Model:
    """A model with the steps and the highest learning rate of its training by AdamW.

    Raise ``edition`` when the task or the training changes. ``seconds`` is about what training
    takes on one core.
    """

    name: str
    title: str
    steps: int
    learning_rate: float
    seconds: float
    edition: int = 1


TEXT = Model("text", "Text, transformer", 2400, 0.002, 110)
GRU = Model("gru", "Text, GRU", 1600, 0.004, 60)
FASHION = Model("fashion", "Fashion-MNIST, ResNet", 1400, 0.016, 80)
WIDE = Model("wide", "Text, wide transformer", 1600, 0.001, 480)
MIXTURE = Model("mixture", "Text, mixture of experts", 2000, 0.002, 170)
LSTM = Model("lstm", "Text, LSTM", 1600, 0.004, 110)
DIGITS = Model("digits", "Digits, convolutions", 400, 0.002, 5)


@dataclass(frozen=True)
class Setting:
    """How a model is packed and read; 32 bits leave it as it is.

    ``nested``: 8 bits are packed as the first 4 and 4 further ones, and ``bits`` of them read.
    With ``activations``, linear layers multiply from the packed bytes; without, all is decoded.
    """

    bits: int = 32
    fit: Fit = "squares"
    block: int = 64
    nested: bool = False
    activations: Activations | None = None


FLOAT = Setting()
USUAL = tuple(map(Setting, BITS))
GRID = tuple(Setting(bits, fit, block) for bits in BITS for block in BLOCKS for fit in FITS)
NESTED = tuple(Setting(bits, "range", block, nested=True) for bits in (8, 4) for block in BLOCKS)
MULTIPLIED = tuple(Setting(bits, activations=each) for bits in (8, 4) for each in ACTIVATIONS)


@dataclass(frozen=True)
class Run:
    """The evaluation of a model at a setting, a dataclass; its training if there is none."""

    model: Model
    setting: Any = None


class Runs(Protocol):
    """A plan, as far as those that make its runs know it."""

    def runs(self) -> Iterator[Run]: ...


@dataclass(frozen=True)
class Plan:
    """All models at all settings; a quick one has the first model at the usual ones."""

    models: Sequence[Model]
    quick: bool = False

    def runs(self) -> Iterator[Run]:
        """Yield trainings, then evaluations, those shown first before others."""
        models = self.models[:1] if self.quick else self.models
        settings = [FLOAT, *USUAL] if self.quick else [FLOAT, *USUAL, *GRID, *NESTED, *MULTIPLIED]
        yield from map(Run, models)
        for setting in dict.fromkeys(settings):
            yield from (Run(model, setting) for model in models)
