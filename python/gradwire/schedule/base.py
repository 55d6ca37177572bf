"""Schedules of epochs or steps: the base class, none, and warm-ups with less or no compression."""

import dataclasses
from typing import Annotated, Any, ClassVar, Self

from gradwire import _validate
from gradwire._codec import Codec
from gradwire._part import Part, part_from_config
from gradwire._validate import Check


def ratio_of(codec: Codec) -> float:
    """Return the ratio of a codec's sparsifier, or raise a ValueError if it has none."""
    ratio: float | None = getattr(codec.sparsify, "ratio", None)
    if ratio is None:
        raise ValueError(
            f"the schedule changes the ratio, but {codec.sparsify!r} has none; pass ratio= to it, "
            "or use a schedule that takes codecs instead of ratios"
        )
    return ratio


def with_ratio(codec: Codec, ratio: float) -> Codec:
    """Return the codec with another ratio."""
    ratio_of(codec)
    sparsify: Any = codec.sparsify
    return codec.replace(sparsify=dataclasses.replace(sparsify, ratio=ratio))


@dataclasses.dataclass(frozen=True, repr=False)
class Schedule(Part):
    """The base class of schedules."""

    KINDS: ClassVar[dict[str, type[Part]]] = {}
    _STATED: ClassVar[tuple[str, ...]] = ("by_epoch_alone",)

    by_epoch_alone: ClassVar[bool]  #: codecs depend on the epoch alone, as `BySteps` requires

    @property
    def last(self) -> int | None:
        """The first epoch from which the codec stays the same; None if it is not known."""
        return None

    def codec_at(self, codec: Codec, epoch: int) -> Codec | None:
        """Return the codec for an epoch.

        Parameters
        ----------
        codec : gradwire.Codec
            The attached codec.
        epoch : int
            Number of the epoch, from 0.

        Returns
        -------
        gradwire.Codec or None
            None stands for an epoch without compression.

        Raises
        ------
        ValueError
            The schedule changes the ratio, and the codec has none.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, repr=False)
class Constant(Schedule):
    """The same codec in every epoch."""

    kind: ClassVar[str] = "constant"
    by_epoch_alone: ClassVar[bool] = True

    @property
    def last(self) -> int:
        """The first epoch from which the codec stays the same."""
        return 0

    def codec_at(self, codec: Codec, epoch: int) -> Codec | None:
        """Return the codec for an epoch."""
        return codec


@dataclasses.dataclass(frozen=True, repr=False)
class WarmUp(Schedule):
    """A ratio for each of the first epochs, then the ratio of the codec.

    Gradients change quickly early in training, so residuals become stale. The codec must have a
    ratio; no epoch uses a smaller one.

    Parameters
    ----------
    ratios : tuple of float
        Ratios of the first epochs, each in (0, 1]. The default is that of the paper: 25 %, 6.25 %,
        1.5625 %, 0.4 % and 0.1 % of the entries.

    Raises
    ------
    TypeError, ValueError
        A ratio is no number, or out of its range.

    References
    ----------
    Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression: Reducing the Communication Bandwidth
    for Distributed Training", ICLR 2018, sections 3.3 and 4.1.
    """

    ratios: tuple[float, ...] = (0.25, 0.0625, 0.015625, 0.004, 0.001)
    kind: ClassVar[str] = "warm_up"
    by_epoch_alone: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked = (
            _validate.unit_interval(f"ratios[{at}]", ratio) for at, ratio in enumerate(self.ratios)
        )
        self._set("ratios", tuple(checked))

    @classmethod
    def code(cls, ratio: float, epochs: int) -> Self:
        """Return the warm-up of the authors' code, which differs from that of the paper.

        In a warm-up of ``epochs`` epochs to the codec's ratio, epoch e has the ratio ``max(c ** (e
        + 1), ratio)`` with ``c = ratio ** (1 / (epochs + 1))``: for 0.001 over 5 epochs, 0.316,
        0.1, 0.0316, 0.01 and 0.00316.

        Parameters
        ----------
        ratio : float
            The codec's ratio, above 0 and at most 1.
        epochs : int
            Number of epochs of the warm-up, 0 to 10 000.

        Returns
        -------
        WarmUp

        Raises
        ------
        ValueError, TypeError
            An argument is out of range, or of the wrong type.
        """
        ratio = _validate.unit_interval("ratio", ratio)
        epochs = _validate.integer("epochs", epochs, low=0, high=10_000)
        factor = ratio ** (1.0 / (epochs + 1))
        return cls(tuple(max(factor ** (epoch + 1), ratio) for epoch in range(epochs)))

    @property
    def last(self) -> int:
        """The first epoch from which the codec stays the same."""
        return len(self.ratios)

    def codec_at(self, codec: Codec, epoch: int) -> Codec | None:
        """Return the codec for an epoch."""
        ratio = ratio_of(codec)
        if epoch >= len(self.ratios):
            return codec
        return with_ratio(codec, max(self.ratios[epoch], ratio))


@dataclasses.dataclass(frozen=True, repr=False)
class DenseWarmUp(Schedule):
    """No compression in the first epochs, then the codec.

    Gradients are sent dense in their own dtype, as small parameters always are, and residuals stay
    empty. With `gradwire.memory.MomentumCorrection` use `WarmUp` instead: the momentum is kept in
    the codec's memory, which is not used in these epochs.

    Parameters
    ----------
    epochs : int
        Number of epochs without compression.

    References
    ----------
    Chen et al., "ScaleCom: Scalable Sparsified Gradient Compression for Communication-Efficient
    Distributed Training", NeurIPS 2020, section 4: up to a tenth of the epochs.

    Seide, Fu, Droppo, Li, Yu, "1-bit Stochastic Gradient Descent and its Application to
    Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014: the first part of the
    data.
    """

    epochs: Annotated[int, Check(_validate.integer, low=0)]
    kind: ClassVar[str] = "dense_warm_up"
    by_epoch_alone: ClassVar[bool] = True

    @property
    def last(self) -> int:
        """The first epoch from which the codec stays the same."""
        return self.epochs

    def codec_at(self, codec: Codec, epoch: int) -> Codec | None:
        """Return the codec for an epoch, or None for an epoch without compression."""
        return None if epoch < self.epochs else codec


@dataclasses.dataclass(frozen=True, repr=False)
class BySteps(Schedule):
    """A schedule that counts a number of steps as one epoch of another schedule.

    For training that has no epochs, or has very long ones. It advances by itself: ``handle.epoch``
    need not be called, and changes no compression.

    Parameters
    ----------
    schedule : gradwire.schedule.Schedule
        One that depends on the epoch alone: not `Accordion`, which compares whole epochs.
    steps : int
        Steps that count as one epoch, at least 1: exchanged backward passes not rolled back.

    Raises
    ------
    TypeError, ValueError
        An option is invalid, or the schedule depends on more than the epoch.
    """

    schedule: Schedule
    steps: Annotated[int, Check(_validate.integer, low=1)]
    kind: ClassVar[str] = "by_steps"
    by_epoch_alone: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, Schedule):
            raise TypeError(f"schedule must be a schedule, got {self.schedule!r}")
        if not self.schedule.by_epoch_alone:
            raise ValueError(
                f"{self.schedule!r} cannot advance by steps: it depends on more than the epoch; "
                "call handle.epoch() with it"
            )
        super().__post_init__()

    def epoch_at(self, step: int) -> int:
        """Return the epoch of the inner schedule at a step.

        Parameters
        ----------
        step : int
            Number of the step, from 0.

        Returns
        -------
        int
            Number of the epoch, from 0; no more than `last`.
        """
        epoch, last = step // self.steps, self.schedule.last
        return epoch if last is None else min(epoch, last)

    @property
    def last(self) -> int | None:
        """The first epoch of the inner schedule from which the codec stays the same."""
        return self.schedule.last

    def codec_at(self, codec: Codec, epoch: int) -> Codec | None:
        """Return the codec for an epoch of the inner schedule, as `epoch_at` returns it."""
        return self.schedule.codec_at(codec, epoch)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Build a schedule from the result of `get_config`."""
        inner = config.get("schedule")
        schedule = part_from_config("schedule", inner, Schedule.KINDS)
        return super().from_config(config | {"schedule": schedule})


STEPS = 100  # steps of the warm-up
RATIO = 0.02  # share of the entries that is sent in these steps


def recommended(codec: Codec) -> Schedule:
    """Return the default schedule of `attach` and ``"auto"`` for a codec.

    Entries wait for 1 / ratio steps on average, which costs most at the beginning of a training,
    when weights move fastest. So codecs that send steps, as `gradwire.adam` does, send 2 % of the
    entries in their first 100 steps, if they send less later: ``BySteps(WarmUp((0.02,)), 100)``;
    docs/ablations.md compares others. All other codecs send what they send later: ``Constant()``.

    Parameters
    ----------
    codec : gradwire.Codec
        The codec that is attached.

    Returns
    -------
    Schedule
    """
    ratio = getattr(codec.sparsify, "ratio", None)
    if codec.memory.updates and ratio is not None and ratio < RATIO:
        return BySteps(WarmUp((RATIO,)), STEPS)
    return Constant()
