"""Measurements by all ranks together, when a decision needs them: the link and the codec."""

import dataclasses
import time

import torch

from gradwire._auto import FP32, Figures, Model, Plan
from gradwire._auto.model import CODEC
from gradwire.cost import Calibration, Link, calibrate
from gradwire.torch.auto.candidates import Automatic
from gradwire.torch.cost.link import measure_by
from gradwire.torch.transport import Channel

LINK_SECONDS = 0.1
CODEC_SECONDS = 0.1
PINGS = 8
"""All-reduces of one number, of which the middle one tells the latency."""
NUMELS = (1 << 14, 1 << 18)


class Measured:
    """The measurements for one decision.

    The channel connects all ranks and must be idle; ``between`` connects the ranks that exchange
    gradients, if they are not all. The plan is the one with which the figures were measured, and
    the calibration that of an earlier decision.
    """

    def __init__(
        self,
        choices: Automatic,
        channel: Channel,
        plan: Plan,
        calibration: Calibration | None,
        between: Channel | None = None,
    ) -> None:
        self._choices = choices
        self._channel = channel
        self._between = channel if between is None else between
        self._plan = plan
        self.calibration = calibration

    def model(self, figures: Figures) -> Model:
        """Return the cost model with these figures. A collective."""
        if self.calibration is None:
            self.calibration = self._calibrate()
        probing, size = 0.0, self._between.size
        if all(each == FP32 for each in self._plan):
            link = link_of(figures, size, self._latency())
        else:
            # Frames are too small to tell the speed of a link.
            collectives, begin = _OfChannels(self._channel, self._between), time.perf_counter()
            link = measure_by(collectives, seconds=LINK_SECONDS)
            took = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
            probing = float(collectives.longest(took))
        return Model(
            figures,
            size,
            link,
            self.calibration,
            self._choices.ratios,
            owners=self._choices.owners is not None,
            probing=probing,
        )

    def _latency(self) -> float:
        """Return the seconds of a minimal all-reduce, the same on all ranks."""
        mine, number = torch.empty(PINGS, dtype=torch.float64), torch.zeros(1)
        for at in range(PINGS):
            begin = time.perf_counter()
            self._between.all_reduce(number).wait()
            mine[at] = time.perf_counter() - begin
        # A rank that comes late to one has the others wait, but not itself.
        return float(_of_all(self._channel, mine).amin(0).median())

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


class _OfChannels:
    """The collectives by which the link between some ranks is measured, on all at once."""

    def __init__(self, channel: Channel, between: Channel) -> None:
        self._channel = channel
        self._between = between
        self._number = torch.zeros(1)
        self.size = between.size

    def add_up(self, vector: torch.Tensor) -> None:
        self._between.all_reduce(vector).wait()

    def meet(self) -> None:
        self._channel.all_reduce(self._number).wait()

    def longest(self, times: torch.Tensor) -> torch.Tensor:
        return _of_all(self._channel, times.view(-1)).amax(0).view_as(times)


def _of_all(channel: Channel, mine: torch.Tensor) -> torch.Tensor:
    """Return the numbers of all ranks, a row for each rank."""
    every = mine.new_empty(channel.size, mine.numel())
    channel.all_gather(every.view(-1), mine).wait()
    return every


def link_of(figures: Figures, ranks: int, latency: float) -> Link:
    """Return the link that explains the all-reduces of a dense step.

    The latency is the time of a minimal all-reduce. Buckets say little about it: several are in
    progress at once, and a small one waits for a large one.
    """
    pairs = zip(figures.nbytes, figures.exchange, strict=True)
    # A bucket may take no time: one that ends before the bucket ahead of it, beside which it went.
    known = [(nbytes, seconds) for nbytes, seconds in pairs if nbytes]
    total, seconds = sum(nbytes for nbytes, _ in known), sum(seconds for _, seconds in known)
    if not seconds:
        return Link(1e15)
    fixed = min(latency, 0.5 * seconds / len(known))
    return Link(8.0 * total / (seconds - fixed * len(known)), fixed / (2 * (ranks - 1)))
