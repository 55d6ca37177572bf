"""Schedules: how much is sent, and when.

A codec never changes. A schedule says which codec each parameter uses in each epoch. These codecs
differ only in how much they send, so the state of a tensor, with everything not yet sent, carries
over. Pass a schedule to `gradwire.torch.ddp.attach`, and call ``handle.epoch(epoch)`` at
the start of each epoch.
"""

from gradwire._part import Part
from gradwire.schedule.accordion import Accordion
from gradwire.schedule.constant import Constant
from gradwire.schedule.dense_warm_up import DenseWarmUp
from gradwire.schedule.warm_up import WarmUp

__all__ = ["SCHEDULES", "Accordion", "Constant", "DenseWarmUp", "Schedule", "WarmUp"]

Schedule = Constant | WarmUp | DenseWarmUp | Accordion
"""Any schedule."""

SCHEDULES: tuple[type[Part], ...] = (Constant, WarmUp, DenseWarmUp, Accordion)
"""All schedules, for reading configurations."""
