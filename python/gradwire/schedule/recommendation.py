"""The schedule that goes with a codec, unless a program says otherwise."""

from typing import TYPE_CHECKING

from gradwire.schedule.by_steps import BySteps
from gradwire.schedule.constant import Constant
from gradwire.schedule.warm_up import WarmUp

if TYPE_CHECKING:
    from gradwire.codec import Codec
    from gradwire.schedule.base import Schedule

__all__ = ["RATIO", "STEPS", "recommended"]

STEPS = 100
"""Steps of the warm-up."""
RATIO = 0.02
"""Share of the entries that is sent in these steps."""


def recommended(codec: "Codec") -> "Schedule":
    """Return what `attach` and ``"auto"`` take for a codec by default.

    Entries wait for 1 / ratio steps on average, which costs most at the beginning of a training,
    when weights move fastest. So codecs that send steps, as `gradwire.adam` does, send 2 % of the
    entries in their first 100 steps, if they send less later: as many steps for every ratio,
    because 1 / ratio of them, at 0.1 %, would be the bytes of 20,000 others. 5 % gives back a
    little more, but ruins training at high learning rates (``docs/ablations.md``). All other codecs
    send from the start what they send later.

    Returns
    -------
    gradwire.schedule.Schedule
        ``BySteps(WarmUp((0.02,)), 100)``, or ``Constant()``.
    """
    ratio = getattr(codec.sparsify, "ratio", None)
    if codec.memory.updates and ratio is not None and ratio < RATIO:
        return BySteps(WarmUp((RATIO,)), STEPS)
    return Constant()
