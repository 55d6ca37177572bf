"""The bytes of every preset: what was written once is written for ever.

`python -m tests.presets.test_golden NAME` writes the frame of a new preset. None is ever replaced.
"""

import sys
from pathlib import Path
from typing import Any

import pytest

from gradwire.presets import PRESETS, Preset
from gradwire.quantize import BFloat16
from tests.presets.examples import SHAPE, names, presets, steps

WRITTEN_WITH: dict[str, dict[str, Any]] = {
    "adam": {"quantize": BFloat16()},
    "gaussiank": {"rounds": 3},
    "scalecom": {"beta": 0.3},
}
"""Options that the frame of a preset was written with, where its defaults have changed since."""

FOLDER = Path(__file__).parents[1] / "golden" / "presets"


def third_frame(preset: Preset) -> bytes:
    options = {**preset.example, **WRITTEN_WITH.get(preset.name, {})}
    codec = preset.build(**options).for_shape(SHAPE)
    state = codec.init_state(SHAPE[0] * SHAPE[1], name="layer.weight", stream=1)
    return [bytes(codec.encode(x, state)) for x in steps(state.numel, 3)][-1]


@pytest.mark.parametrize("preset", presets, ids=names)
def test_frames_never_change(preset):
    path = FOLDER / f"{preset.name}.gwf"
    assert path.exists(), f"write it: python -m tests.presets.test_golden {preset.name}"
    assert third_frame(preset) == path.read_bytes()


def test_every_file_is_of_a_preset():
    assert {path.stem for path in FOLDER.glob("*.gwf")} <= PRESETS.keys()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:]:
        with (FOLDER / f"{name}.gwf").open("xb") as file:
            file.write(third_frame(PRESETS[name]))
