"""The race detector: it finds each kind of mistake, with both places, and nothing in its twin."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.csrc.emulated.build import ROOT, build, proof
from tests.csrc.emulated.kernels import Kernels, LaunchError
from tests.csrc.emulated.operators import RACES, SANITIZED

pytestmark = [
    pytest.mark.full,  # has a build of its own
    pytest.mark.skipif(bool(RACES or SANITIZED), reason="is itself running under one of them"),
    pytest.mark.timeout(900),
]

ANOTHER_BLOCK = "a __threadfence after the first, then"

MISTAKES = {
    "barrier": ("shared", "a __syncthreads"),
    "barrier_of_a_loop": ("shared", "a __syncthreads"),
    "lanes": ("shared", "a __syncwarp"),
    "lanes_of_a_mask": ("shared", "a __syncwarp"),
    "early_fence": ("global", ANOTHER_BLOCK),
    "increment": ("global", ANOTHER_BLOCK),
    "plain_read": ("global", ANOTHER_BLOCK),
    "bytes": ("global", ANOTHER_BLOCK),
    "phases": ("global", ANOTHER_BLOCK),
    "same_value": ("global", ""),
    "beside_look_back": ("global", ANOTHER_BLOCK),
}
"""In which memory each is, and what is said to be needed."""


@pytest.fixture(scope="module")
def watching() -> Kernels:
    return Kernels(build(races=True))


def call(kernels: Kernels, name: str, *right: int) -> str:
    """What the detector says of the kernel, if anything."""
    try:
        kernels.call(
            f"gradwire_test_race_{name}",
            *right,
            np.zeros(256, np.uint32),
            np.zeros(1024, np.uint32),
        )
    except LaunchError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_in_every_order_and_its_twin_passes(
    watching: Kernels, name: str
) -> None:
    memory, needed = MISTAKES[name]
    for _ in watching.orders():
        said = call(watching, name, 0)
        assert f"a race in {memory} memory" in said
        assert f"needed: {needed}" in said
        assert len(re.findall(r"\n  (?:first|second): +\w+\.cuh?:\d+", said)) == 2
        assert not call(watching, name, 1)


@pytest.mark.parametrize("name", ["flag", "last"])
def test_each_of_the_two_fences_of_a_flag_is_needed(watching: Kernels, name: str) -> None:
    for _ in watching.orders():
        assert f"needed: {ANOTHER_BLOCK}" in call(watching, name, 0, 1)
        assert "needed: a __threadfence after the load of the flag" in call(watching, name, 1, 0)
        assert not call(watching, name, 1, 1)


def test_the_two_places_are_lines_of_the_source(watching: Kernels) -> None:
    said = call(watching, "barrier", 0)
    lines = (ROOT / "tests/csrc/races.cu").read_text().splitlines()
    found = [lines[int(number) - 1] for number in re.findall(r"races\.cu:(\d+)", said)]
    assert {
        "shared.word[threadIdx.x] = threadIdx.x;",
        "out[threadIdx.x] = shared.word[63 - threadIdx.x];",
    } <= {line.strip() for line in found}


def test_the_same_seed_finds_the_same(watching: Kernels) -> None:
    said = set()
    for _ in range(3):
        watching.configure(seed=5, resident=4)
        said.add(call(watching, "phases", 0))
    assert len(said) == 1


def test_what_a_device_refuses_is_refused(watching: Kernels) -> None:
    with pytest.raises(
        LaunchError, match=r"uses 4 bytes at an address that is not a multiple .*races\.cu"
    ):
        watching.call("gradwire_test_misaligned", np.zeros(256, np.uint8))
    with pytest.raises(LaunchError, match="49156 bytes of shared memory, more than 48 KiB"):
        watching.call("gradwire_test_hoard", np.zeros(32, np.uint32))


def test_no_kernel_races() -> None:
    """Of each test of the kernels a share of its cases, as under the sanitizers."""
    passed = proof(build(races=True))
    if passed.exists():
        pytest.skip("has passed with these sources, these tests and this core")
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/csrc")
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "GRADWIRE_TEST_RACES": "some"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    passed.touch()
