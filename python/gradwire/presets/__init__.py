"""Published methods and common baselines, each a composition of parts.

`PRESETS` lists them by name for tools and command lines.
"""

from collections.abc import Mapping
from types import MappingProxyType

from gradwire.presets import _dense, _sidco, _threshold, _topk
from gradwire.presets._dense import dense
from gradwire.presets._preset import Preset
from gradwire.presets._sidco import sidco
from gradwire.presets._threshold import threshold
from gradwire.presets._topk import topk

__all__ = ["PRESETS", "Preset", "dense", "sidco", "threshold", "topk"]

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {each.PRESET.name: each.PRESET for each in (_topk, _sidco, _threshold, _dense)}
)
"""All presets by name, in the order to show them."""
