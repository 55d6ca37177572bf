"""What is measured on all ranks together when a decision needs it: the link, and the codec."""

import dataclasses
from typing import TYPE_CHECKING, Any

from gradwire.auto import FP32, Figures, Model, Plan
from gradwire.auto.model import CODEC
from gradwire.cost import Calibration, Link, calibrate
from gradwire.cost.calibration import line
from gradwire.torch.auto.choosing import Automatic
from gradwire.torch.cost import measure_link
from gradwire.torch.transport import Channel

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Measured", "link_of"]

LINK_SECONDS = 0.1
CODEC_SECONDS = 0.1
NUMELS = (1 << 14, 1 << 18)


class Measured:
    """The evidence for one decision.

    Parameters
    ----------
    choices : Automatic
    channel : Channel
        Of all ranks, with nothing under way.
    plan : tuple of Setting
        With which the figures were measured.
    calibration : Calibration or None
        Of an earlier decision.
    """

    def __init__(
        self,
        choices: Automatic,
        channel: Channel,
        plan: Plan,
        calibration: Calibration | None,
    ) -> None:
        self._choices = choices
        self._channel = channel
        self._plan = plan
        self.calibration = calibration

    def model(self, figures: Figures) -> Model:
        """Return the cost model with these figures. A collective."""
        if self.calibration is None:
            self.calibration = self._calibrate()
        if all(each == FP32 for each in self._plan):
            link = link_of(figures, self._channel.size)
        else:
            # Frames are too small to tell the speed of a link.
            group: Any = getattr(self._channel, "group", None)
            link = measure_link(group, seconds=LINK_SECONDS)
        size = self._channel.size
        return Model(figures, size, link, self.calibration, self._choices.ratios)

    def _calibrate(self) -> Calibration:
        """Time the codec on all ranks at once, as in training; the slowest rank counts."""
        mine = calibrate(
            {CODEC: self._choices.codec}, seconds=CODEC_SECONDS, numels=NUMELS, cold=False
        )
        every = [
            Calibration.from_json(each) for each in self._channel.all_gather_object(mine.to_json())
        ]

        def work(each: Calibration) -> float:
            cost = each.codecs[CODEC]
            return cost.encode(1e6, 1e6 * cost.share) + cost.decode(1e6, 1e6 * cost.share)

        slowest = max(every, key=work)
        return dataclasses.replace(
            slowest,
            cast_seconds=max(each.cast_seconds for each in every),
            clear_seconds=max(each.clear_seconds for each in every),
        )


def link_of(figures: Figures, ranks: int) -> Link:
    """Return the link that explains the all-reduces of a dense step."""
    pairs = list(zip(figures.nbytes, figures.exchange, strict=True))
    points = [(nbytes, 0.0, seconds) for nbytes, seconds in pairs if nbytes and seconds]
    if not points:
        return Link(1e15)
    total, seconds = _sum(points, 0), _sum(points, 2)
    # Buckets of one size tell nothing of the latency, and noise may tell anything of it.
    per_byte = max(line(points).per_numel if len(points) > 1 else 0.0, 0.5 * seconds / total)
    fixed = max(0.0, seconds - per_byte * total) / len(points)
    if len({nbytes for nbytes, *_ in points}) == 1:
        per_byte, fixed = seconds / total, 0.0
    return Link(8.0 / per_byte, fixed / (2 * (ranks - 1)))


def _sum(points: "Sequence[tuple[float, float, float]]", at: int) -> float:
    return sum(point[at] for point in points)
