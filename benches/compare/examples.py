"""The codec of every preset registered in `gradwire.presets.PRESETS`.

Each is built from its own ``example``, so that its author chooses ratios and bits.
"""

import dataclasses
import inspect

import gradwire
from gradwire.presets import PRESETS, Preset

from .hooks import SIDE

# Blocks that the examples do not have: 32 entries, as in microscaling formats.
SMALL = 32


def has_blocks(preset: Preset) -> bool:
    """Tell whether a preset takes the number of entries that share a scale."""
    block = inspect.signature(preset.build).parameters.get("block")
    return block is not None and type(block.default) is int


ROWS = {
    preset.name: preset
    for preset in (
        *PRESETS.values(),
        *(
            dataclasses.replace(
                preset, name=f"{preset.name}, blocks of {SMALL}", example={"block": SMALL}
            )
            for preset in PRESETS.values()
            if has_blocks(preset)
        ),
    )
}


def build(preset: Preset, numel: int) -> gradwire.Codec:
    """Return the codec of a preset's example, for a layer of that many entries."""
    codec = preset.build(**preset.example)
    return codec.for_shape((numel // SIDE, SIDE) if numel % SIDE == 0 else (numel,))


def selects(preset: Preset) -> bool:
    """Tell whether a preset leaves out entries."""
    return build(preset, SIDE).sparsify.selects


def call(preset: Preset) -> str:
    """Return how a preset's example is written."""
    return f"gradwire.{preset.build.__name__}{preset.call.removeprefix(preset.name)}"
