"""Schedules of compression over the epochs or steps of training.

A codec never changes. A schedule gives each parameter's codec in each epoch. These codecs differ
only in how much they send, so the state of a tensor, with everything not yet sent, carries over.
Pass a schedule to `gradwire.torch.ddp.attach`, and call ``handle.epoch(epoch)`` at the start of
each epoch; `BySteps` advances by itself. Without one, `attach` takes what `recommended` returns for
the codec.
"""

from gradwire._part import own_parts
from gradwire.schedule.base import Schedule as Schedule

# One line each, in the order in which they are listed: importing a class registers it.
# isort: off
from gradwire.schedule.base import Constant as Constant
from gradwire.schedule.base import WarmUp as WarmUp
from gradwire.schedule.base import DenseWarmUp as DenseWarmUp
from gradwire.schedule.accordion import Accordion as Accordion
from gradwire.schedule.base import BySteps as BySteps

# isort: on
from gradwire.schedule.base import recommended as recommended

SCHEDULES: tuple[type[Schedule], ...] = own_parts(Schedule)  #: all schedules

__all__ = ["Schedule", "recommended", *(part.__name__ for part in SCHEDULES)]
