"""More while it matters, less otherwise."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from gradwire import _validate
from gradwire._part import Part
from gradwire.codec import Codec
from gradwire.schedule._amount import with_ratio

__all__ = ["Accordion"]


@dataclasses.dataclass(frozen=True, repr=False)
class Accordion(Part):
    """Low compression in critical regimes of training, high compression in all others.

    Each parameter has a regime of its own. After every `interval` epochs the norm of the sum of a
    parameter's gradients over that epoch is compared with the norm `interval` epochs ago: it is
    critical if the norm has changed by the fraction `eta` or more. The first epochs are critical,
    and so are all parameters once the learning rate has been lowered. Measuring takes a buffer of
    n entries, and one pass a step, on rank 0 in one epoch of each interval.

    Parameters
    ----------
    low, high : float or Codec
        The two settings: ratios of the codec that is attached, ``low`` the larger one; or codecs
        that differ from it in nothing but how much they send.
    eta : float
        The change that is critical, greater than 0.
    interval : int
        Epochs between two looks, at least 1: 10 in the paper, 5 for language models.

    References
    ----------
    Agarwal, Wang, Lee, Venkataraman, Papailiopoulos, "Accordion: Adaptive Gradient Communication
    via Critical Learning Regime Identification", MLSys 2021, algorithm 1.
    """

    low: float | Codec
    high: float | Codec
    eta: float = 0.5
    interval: int = 10
    kind: ClassVar[str] = "accordion"

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            value = getattr(self, name)
            if not isinstance(value, Codec):
                self._set(name, _validate.unit_interval(name, value))
        ratios = [each for each in (self.low, self.high) if not isinstance(each, Codec)]
        if ratios != sorted(ratios, reverse=True):
            raise ValueError(
                "low is the low compression, which sends more: low must be at least high, "
                f"got {self.low} and {self.high}"
            )
        self._set("eta", _validate.positive("eta", self.eta))
        if self.eta == 0.0:
            raise ValueError("eta must be greater than 0: everything would be critical at 0")
        self._set("interval", _validate.integer("interval", self.interval, low=1))

    def is_critical(self, previous: float, current: float) -> bool:
        """Tell whether a norm that was previous and is current shows a critical regime.

        A change by exactly `eta` is critical, so is one from zero, and a norm that is not finite.
        """
        if previous == 0.0:
            return True
        return not abs(previous - current) / previous < self.eta  # so that NaN is critical

    def is_measured(self, epoch: int) -> bool:
        """Tell whether the gradients of an epoch are summed up."""
        return epoch % self.interval == 0

    def codec_for(
        self, codec: Codec, *, critical: bool, shape: Sequence[int] | None = None
    ) -> Codec:
        """Return the codec of a regime, for tensors of a shape if that is given.

        Raises
        ------
        ValueError
            A setting that differs from the codec in more than how much is sent, or a ratio for a
            codec without one.
        """
        setting = self.low if critical else self.high
        if not isinstance(setting, Codec):
            return with_ratio(codec, setting)
        setting = setting if shape is None else setting.for_shape(shape)
        if not codec._codec.same_kind(setting._codec) or setting.exchange != codec.exchange:
            raise ValueError(
                f"the settings of Accordion may differ from the codec attached only in how much "
                f"is sent, got {setting!r} for {codec!r}"
            )
        return setting

    def get_config(self) -> dict[str, Any]:
        """Return ``{"kind": ..., field: value, ...}``, with the config of a codec for a codec."""
        config = super().get_config()
        return {
            name: value.get_config() if isinstance(value, Codec) else value
            for name, value in config.items()
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Build the schedule that `get_config` describes; the inverse of it."""
        codecs = {
            name: Codec.from_config(config[name])
            for name in ("low", "high")
            if isinstance(config.get(name), dict)
        }
        return super().from_config(config | codecs)
