"""What is public: the names of `public_names.txt`, and no others."""

import ast
import importlib
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
LISTED = Path(__file__).with_name("public_names.txt")

INTERNAL = {
    "gradwire.cli",
    "gradwire.examples",  # `python -m gradwire.examples`
    "gradwire.frame",  # `Frame`, `decode` and `decode_add` are in the package
    "gradwire.state",  # likewise `State`
    "gradwire.torch.auto",
    "gradwire.torch.backends",
    "gradwire.torch.cells",
    "gradwire.torch.checkpoint",
    "gradwire.torch.cuda",
    "gradwire.torch.delta",  # torch tensors in `gradwire.delta`
    "gradwire.torch.engine",
    "gradwire.torch.errors",  # in the packages whose functions raise them
    "gradwire.torch.exchange",
    "gradwire.torch.ops",  # `torch.ops.gradwire`
    "gradwire.torch.tensors",
    "gradwire.torch.transport",
}
"""Modules without an underscore that have no public name. What is inside a public package counts
only where its ``__init__`` lists it."""

LAZY = {
    "gradwire": {"cost", "numerics", "torch"},
    "gradwire.torch": {"Reducer", "all_reduce", "build_cuda"},
}
"""Names that a package imports when they are used, and that ``__all__`` leaves out for that."""


def public_modules() -> dict[str, Path]:
    """Every module directly in `gradwire` or `gradwire.torch`, but private and internal ones."""
    found = {}
    for package in ("gradwire", "gradwire.torch"):
        folder = ROOT / "python" / package.replace(".", "/")
        found[package] = folder / "__init__.py"
        for path in (*folder.glob("*.py"), *folder.glob("*/__init__.py")):
            name = path.parent.name if path.name == "__init__.py" else path.stem
            if path.parent == folder and path.name == "__init__.py":
                continue
            if not name.startswith("_"):
                found[f"{package}.{name}"] = path
    return {name: path for name, path in found.items() if name not in INTERNAL}


def exported(module: str, path: Path) -> set[str]:
    """``__all__``, without an import of what may not be installed, and what comes with it."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            try:
                names = ast.literal_eval(node.value)
            except ValueError:  # it is computed
                names = importlib.import_module(module).__all__
            return {*names} | LAZY.get(module, set())
    return set()


def test_the_public_names_are_those_of_the_list():
    lines = [line for line in LISTED.read_text("utf-8").splitlines() if line[:1] not in ("", "#")]
    modules = public_modules()
    found = {f"{name}.{each}" for name, path in modules.items() for each in exported(name, path)}
    listed = set(lines)
    assert lines == sorted(listed), f"sort {LISTED.name}, by bytes, each name once"
    more, less = sorted(found - listed), sorted(listed - found)
    assert not more, f"add to {LISTED.name}, if they are meant to be public for good: {more}"
    assert not less, f"these are gone; take them off {LISTED.name}: {less}"


def test_every_module_is_public_or_internal():
    silent = [name for name, path in public_modules().items() if not exported(name, path)]
    assert silent == [], "give these an __all__, an underscore, or a line in INTERNAL"
    for name in INTERNAL:
        path = ROOT / "python" / name.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").is_file(), f"there is no {name}"


def test_every_public_module_is_documented():
    paths = [ROOT / "docs" / "api.md", *(ROOT / "docs" / "api").glob("*.md")]
    page = "\n".join(path.read_text("utf-8") for path in paths)
    whole = set(re.findall(r"automodule:: ([\w.]+)", page))
    single = set(re.findall(r"autofunction:: ([\w.]+)", page))
    for name, path in public_modules().items():
        names = {f"{name}.{each}" for each in exported(name, path)}
        assert name in whole or names & single, f"docs/api has nothing of {name}"
