"""Published methods and common baselines, each a composition of parts.

`PRESETS` lists them by name for tools and command lines.
"""

from collections.abc import Mapping

from gradwire.presets._every import *  # noqa: F403
from gradwire.presets._preset import OWN as OWN
from gradwire.presets._preset import Preset as Preset
from gradwire.presets._registry import Registry

PRESETS: Mapping[str, Preset] = Registry(OWN)
"""All presets by name, in display order; those of plugins come last."""

__all__ = ["PRESETS", "Preset", *(each.name for each in OWN)]
