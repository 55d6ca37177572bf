"""All kernels are loaded before the first is launched: CUDA would wait to load one in between."""

import re
import subprocess

import pytest
import torch

from gradwire.torch.backends import cuda, dispatch
from gradwire.torch.backends.cuda import operators
from gradwire.torch.backends.cuda import preload as preloading
from tests.csrc.emulated.build import CSRC, build
from tests.csrc.emulated.operators import emulate

LISTS = re.compile(r"^const Kernels kernels\{([^}]*)\};", re.MULTILINE)
KERNEL = re.compile(r"__global__ void (?:__launch_bounds__\([^)]*\)\s*)?(\w+)\(")
CPU = torch.device("cpu")


def listed() -> list[str]:
    lists = (LISTS.findall(path.read_text()) for path in CSRC.rglob("*.cu"))
    return [name.strip() for found in lists for each in found for name in each.split(",")]


@pytest.fixture(scope="module")
def loaded():
    """How many kernels were loaded since; of those from now on the device may refuse one."""
    return emulate()._library.emulated_loaded


def test_every_kernel_is_in_the_list_of_its_source() -> None:
    sources = [path.read_text() for path in CSRC.rglob("*.cu*")]
    kernels = [name for text in sources for name in KERNEL.findall(text)]
    assert len(kernels) == sum(text.count("__global__") for text in sources) > 15
    assert len(set(listed())) == len(listed())
    assert sorted({each.partition("<")[0] for each in listed()}) == sorted(kernels)


def test_every_instance_of_a_template_is_in_a_list() -> None:
    # Symbols as `void gradwire::code_tiles<gradwire::(anonymous namespace)::Entries>(...)`.
    command = ["nm", "-C", "--defined-only", str(build())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    short = re.sub(r"(gradwire::|\(anonymous namespace\)::)", "", done.stdout)
    names = {each.partition("<")[0] for each in listed()}
    instances = re.findall(r"^\w+ \w (?:void )?((\w+)(?:<[\w, ]*>)?)\(", short, re.MULTILINE)
    assert {instance for instance, name in instances if name in names} == set(listed())


def test_a_device_is_asked_to_load_each_before_it_is_used(loaded):
    loaded(0)
    assert operators.hindrance(CPU) is None
    assert loaded(len(listed())) == len(listed())
    assert "CUDA says: invalid device function" in operators.hindrance(CPU)
    assert loaded(0) == len(listed())


def test_kernels_of_torch_are_loaded_where_kernels_encode(monkeypatch):
    asked = []
    monkeypatch.setattr(preloading, "preload", asked.append)
    dispatch.preload([torch.zeros(1)])
    assert asked == []
    monkeypatch.setattr(dispatch, "_IN_PLACE", cuda)
    dispatch.preload([torch.zeros(1), torch.zeros(2)])
    assert asked == [CPU]
