"""Public docstrings say what is given, with its unit, and what is returned."""

import dataclasses
import importlib
import inspect
import re

import pytest

import gradwire
from gradwire.presets import OWN

MODULES = ("presets", "cost", "report", "exchange", "schedule", "sparsify", "quantize", "memory")
OBJECTS = {
    f"{module}.{name}": found
    for module in MODULES
    for name in importlib.import_module(f"gradwire.{module}").__all__
    if inspect.isclass(found := getattr(importlib.import_module(f"gradwire.{module}"), name))
    or inspect.isfunction(found)
}


def told(text: str, section: str) -> set[str]:
    """Names with a line of their own in a section of a docstring, and with words below it."""
    body = text.partition(f"{section}\n{'-' * len(section)}\n")[2]
    body = re.split(r"\n\n\w+\n-+\n", body)[0]
    heads = re.findall(r"^([\w*, ]+?)(?: :.*)?\n    \S", body, re.MULTILINE)
    return {name.strip("* ") for head in heads for name in head.split(",")}


def given(thing: object) -> set[str]:
    names = {*inspect.signature(thing).parameters} - {"self", "cls"}  # type: ignore[arg-type]
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("name", OBJECTS)
def test_every_parameter_of_a_public_name_is_explained(name):
    thing = OBJECTS[name]
    text = inspect.getdoc(thing) or ""
    assert text
    if inspect.isfunction(thing):
        assert told(text, "Parameters") >= given(thing)
        assert inspect.signature(thing).return_annotation is None or "Returns\n-------\n" in text
    elif dataclasses.is_dataclass(thing):
        fields = {each.name for each in dataclasses.fields(thing) if each.init}
        # A table of figures with no more than their names and types explains itself.
        plain = {"rank", "world_size", "parameters"} if name == "report.Report" else set()
        assert told(text, "Parameters") | told(text, "Attributes") | plain >= fields


@pytest.mark.parametrize("preset", OWN, ids=lambda preset: preset.name)
def test_a_preset_explains_its_options_with_their_defaults_and_papers(preset):
    text = inspect.getdoc(preset.build) or ""
    assert getattr(gradwire, preset.name) is preset.build
    for part in ("quantize", "memory", "indices", "exchange"):
        option = inspect.signature(preset.build).parameters.get(part)
        if option is not None and preset.name != "scalecom":
            assert f"``{option.default!r}`` by default." in text
    assert ("References\n----------\n" in text) == (preset.paper is not None)
    order = [text.index(f"{each}\n-----") for each in ("Parameters", "Returns", "Raises")]
    assert order == sorted(order)
