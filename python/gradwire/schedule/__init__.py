"""Schedules: how much is sent, and when.

A codec does not change; a schedule says which codec every parameter has in which epoch. All of them
differ in nothing but how much they send, so that a tensor's state, with what has not been sent,
goes on through every change. `gradwire.torch.ddp.attach` takes one, and ``handle.epoch(epoch)``
moves it on.
"""

from gradwire._part import Part
from gradwire.schedule.accordion import Accordion
from gradwire.schedule.constant import Constant
from gradwire.schedule.dense_warm_up import DenseWarmUp
from gradwire.schedule.warm_up import WarmUp

__all__ = ["SCHEDULES", "Accordion", "Constant", "DenseWarmUp", "Schedule", "WarmUp"]

Schedule = Constant | WarmUp | DenseWarmUp | Accordion
"""Any of the schedules."""

SCHEDULES: tuple[type[Part], ...] = (Constant, WarmUp, DenseWarmUp, Accordion)
"""All of them, for configurations to be read back."""
