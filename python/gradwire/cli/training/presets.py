"""Build presets from a name and a ratio."""

import inspect
from collections.abc import Callable

from gradwire.codec import Codec
from gradwire.presets import PRESETS


def unfit(name: str) -> str | None:
    """Return why a preset cannot be built from name and ratio alone, or None if it can."""
    if name not in PRESETS:
        known = ", ".join(each for each in PRESETS if unfit(each) is None)
        return f"unknown codec {name!r}; choose from {known}"
    needed = [each for each in _required(PRESETS[name].build) if each != "ratio"]
    return f"{name} needs {', '.join(needed)}, which has no option here" if needed else None


def build(name: str, ratio: float | None) -> Codec:
    """Build a preset by name, with the ratio if it takes one."""
    preset = PRESETS[name].build
    return preset(ratio=ratio) if "ratio" in inspect.signature(preset).parameters else preset()


def _required(preset: Callable[..., Codec]) -> list[str]:
    parameters = inspect.signature(preset).parameters.values()
    return [each.name for each in parameters if each.default is inspect.Parameter.empty]
