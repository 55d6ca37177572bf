"""Public docstrings say what goes in, with its unit, what comes out, and what is raised."""

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from pathlib import Path

import pytest

import gradwire
from gradwire.presets import OWN

NAMES = (Path(__file__).parent.parent / "public_names.txt").read_text("utf-8").splitlines()

RESULTS = {
    "ActivationReport", "BackendInUse", "DiLoCoReport", "File", "Handle", "ModuleActivations",
    "PackReport", "PackedActivations", "PackedTensor", "Report", "Shards", "Work",
}  # fmt: skip
"""Classes that only the package makes: their attributes have comments of their own."""


def section(text: str, name: str) -> str:
    """The body of a section of a docstring; empty without it."""
    body = text.partition(f"{name}\n{'-' * len(name)}\n")[2]
    return re.split(r"\n\n\w+\n-+\n", body)[0]


def described(text: str, name: str) -> set[str]:
    """Names with a line of their own in a section, or in the words below it."""
    body = section(text, name)
    heads = re.findall(r"^([\w*][\w*, ]*)(?: :|$)", body, re.MULTILINE)
    return {*re.findall(r"\w+", " ".join(heads)), *re.findall(r"``(\w+)``", body)}


def parameters(thing: object) -> set[str]:
    if inspect.isclass(thing) and dataclasses.is_dataclass(thing):
        return {field.name for field in dataclasses.fields(thing) if field.init}
    if inspect.isclass(thing) and "__init__" not in vars(thing):
        return set()
    names = {*inspect.signature(thing).parameters} - {"self", "cls"}  # type: ignore[arg-type]
    return {name for name in names if not name.startswith("_")}


def methods(thing: object) -> list[object]:
    """The public methods and properties of a class, but for those of classes of others."""
    members = inspect.getmembers(thing) if inspect.isclass(thing) else []
    return [
        member
        for name, member in members
        if not name.startswith("_")
        and (inspect.isroutine(member) or isinstance(member, property))
        and str(getattr(getattr(member, "fget", member), "__module__", "")).startswith("gradwire")
    ]


def refuses(thing: object) -> bool:
    """Whether a function, or what checks a new object of a class, raises or checks itself."""
    if inspect.isclass(thing):
        makers = [vars(thing).get(name) for name in ("__init__", "__post_init__")]
        return any(refuses(each) for each in makers if each and each.__module__ == thing.__module__)
    if not inspect.isfunction(thing) or thing.__code__.co_filename == "<string>":
        return False
    tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    checks = any(re.match(r"_validate\.|require|refuse", call) for call in calls)
    return checks or any(isinstance(node, ast.Raise) and node.exc for node in ast.walk(tree))


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("#")])
def test_a_public_name_says_what_it_takes_returns_and_raises(name):
    module, _, attribute = name.rpartition(".")
    thing = getattr(importlib.import_module(module), attribute)
    if not inspect.isfunction(thing) and not inspect.isclass(thing):
        return
    text = inspect.getdoc(thing) or ""
    assert text
    assert all(map(inspect.getdoc, methods(thing)))
    if inspect.isclass(thing) and (attribute in RESULTS or issubclass(thing, Exception)):
        return
    if getattr(thing, "_is_protocol", False):
        return
    assert described(text, "Parameters") | described(text, "Attributes") >= parameters(thing)
    assert section(text, "Raises") or not refuses(thing)
    if not inspect.isclass(thing):
        returned = inspect.signature(thing).return_annotation
        assert returned is None or section(text, "Returns")


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
