"""Published methods and common baselines, each a composition of parts.

The options ``quantize``, ``memory`` and ``exchange`` are the other parts of the `gradwire.Codec`:
how values are coded, what happens to what is not sent, and how ranks combine their frames, which
follows from the number of ranks unless it is given.

`PRESETS` lists them by name for tools and command lines.
"""

from collections.abc import Mapping

from gradwire.presets._registry import OWN as OWN
from gradwire.presets._registry import Preset as Preset
from gradwire.presets._registry import Registry

# One line a family, in display order: importing a function registers it.
# isort: off
from gradwire.presets.sparse import *  # noqa: F403
from gradwire.presets.low_rank import *  # noqa: F403
from gradwire.presets.quantized import *  # noqa: F403
from gradwire.presets.hybrid import *  # noqa: F403
# isort: on

PRESETS: Mapping[str, Preset] = Registry(OWN)  #: in display order; those of plugins come last

__all__ = ["PRESETS", "Preset", *(each.name for each in OWN)]
