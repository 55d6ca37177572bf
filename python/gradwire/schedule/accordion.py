"""Less compression in critical regimes of training (ACCORDION)."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Self

from gradwire import _validate
from gradwire._codec import BY_RANKS, Codec
from gradwire._validate import Check
from gradwire.schedule.base import Schedule, with_ratio


@dataclasses.dataclass(frozen=True, repr=False)
class Accordion(Schedule):
    """Low compression in critical regimes of training, high compression otherwise.

    Each parameter has its own regime. Every `interval` epochs, the norm of the sum of a parameter's
    gradients over one epoch is compared with that of `interval` epochs earlier. The regime is
    critical if it has changed by a fraction of `eta` or more, in the first epochs, and for all
    parameters when the learning rate is lowered. Measuring takes a buffer of n entries and one pass
    per step, on rank 0, in one epoch of each interval; in a hierarchy one of the rank's share, on
    the ranks of the first node.

    Parameters
    ----------
    low, high : float or Codec
        The two settings: ratios for the attached codec, ``low`` the larger one; or codecs that
        differ from it only in how much they send.
    eta : float
        Relative change that is critical, greater than 0.
    interval : int
        Epochs between two measurements, at least 1: 10 in the paper, 5 for language models.

    Raises
    ------
    TypeError, ValueError
        An option is invalid, or ``low`` below ``high``.

    References
    ----------
    Agarwal, Wang, Lee, Venkataraman, Papailiopoulos, "Accordion: Adaptive Gradient Communication
    via Critical Learning Regime Identification", MLSys 2021, algorithm 1.
    """

    low: float | Codec
    high: float | Codec
    eta: Annotated[float, Check(_validate.positive, above=0)] = 0.5
    interval: Annotated[int, Check(_validate.integer, low=1)] = 10
    kind: ClassVar[str] = "accordion"
    by_epoch_alone: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            if not isinstance(getattr(self, name), Codec):
                self._set(name, _validate.unit_interval(name, getattr(self, name)))
        ratios = [ratio for ratio in (self.low, self.high) if not isinstance(ratio, Codec)]
        if ratios != sorted(ratios, reverse=True):
            raise ValueError(
                "low stands for low compression, which sends more: low must be at least high, "
                f"got {self.low} and {self.high}"
            )
        super().__post_init__()

    def is_critical(self, previous: float, current: float) -> bool:
        """Return whether the change from a previous to a current norm is critical.

        A change by exactly `eta` is critical, and so are a change from zero and a non-finite norm.
        """
        if previous == 0.0:
            return True
        return not abs(previous - current) / previous < self.eta  # so that NaN is critical

    def is_measured(self, epoch: int) -> bool:
        """Return whether the gradients of an epoch are accumulated for a measurement."""
        return epoch % self.interval == 0

    def codec_for(
        self, codec: Codec, *, critical: bool, shape: Sequence[int] | None = None
    ) -> Codec:
        """Return the codec for a regime, and for tensors of a shape if given.

        Raises
        ------
        ValueError
            A setting that differs from the codec in more than how much is sent, or a ratio for a
            codec that has none.
        """
        setting = self.low if critical else self.high
        if not isinstance(setting, Codec):
            return with_ratio(codec, setting)
        setting = setting if shape is None else setting.for_shape(shape)
        is_other = setting.exchange not in (BY_RANKS, codec.exchange)
        if is_other or not codec._codec.same_kind(setting._codec):
            raise ValueError(
                "the settings of Accordion may differ from the attached codec only in how much "
                f"they send, got {setting!r} for {codec!r}"
            )
        if setting.exchange == codec.exchange:
            return setting
        return dataclasses.replace(setting, exchange=codec.exchange)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Build a schedule from the result of `get_config`."""
        codecs = {
            name: Codec.from_config(config[name])
            for name in ("low", "high")
            if isinstance(config.get(name), dict)
        }
        return super().from_config(config | codecs)
