"""The folders of the kernels include each other in one direction, that of the README's table."""

import re

from tests.csrc.emulated.build import CSRC

LAYERS = [
    "device",
    "pack",
    "quantize",
    "fit",
    "memory",
    "scan",
    "sparsify",
    "frame",
    "bucket",
    "ops",
]
"""From the bottom up."""

ANYWHERE = {"rng.cuh": 1, "bucket/piece.h": 1}
"""What any folder but ``device`` may include."""

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
SOURCES = sorted(path for path in CSRC.rglob("*") if path.suffix in (".cu", ".cuh", ".h", ".cpp"))


def place(name: str) -> int:
    return ANYWHERE[name] if name in ANYWHERE else LAYERS.index(name.partition("/")[0])


def test_arrows_point_one_way() -> None:
    for path in SOURCES:
        name = str(path.relative_to(CSRC))
        here = LAYERS.index("bucket") if name == "bucket/piece.h" else place(name)
        for included in INCLUDE.findall(path.read_text()):
            beside = path.parent / included
            other = str(beside.relative_to(CSRC)) if beside.is_file() else included
            assert (CSRC / other).is_file(), f"{name} includes {included}, which is not there"
            assert place(other) <= here, f"{name} includes {other}"
        if not name.startswith("ops/"):
            assert "torch/" not in path.read_text().partition("namespace")[0], name


def test_the_readme_names_every_folder() -> None:
    readme = (CSRC / "README.md").read_text()
    folders = sorted(path.name for path in CSRC.iterdir() if path.is_dir())
    assert folders == sorted(LAYERS)
    assert all(f"`{folder}/`" in readme for folder in folders)


def test_a_name_of_a_type_means_one_thing() -> None:
    # Two types of one name in two sources would be one type to the linker.
    kinds = r"^(?:struct|union|enum class|enum|class) (?:__attribute__\(.*?\)\)+ )?"
    named = re.compile(rf"{kinds}(\w+)[^;]*$", re.MULTILINE)
    where: dict[str, list[str]] = {}
    for path in SOURCES:
        for name in named.findall(path.read_text()):
            where.setdefault(name, []).append(path.name)
    assert len(where) > 50
    assert {name: files for name, files in where.items() if len(files) > 1} == {}
