"""What nvcc makes of the kernel that reads every entry: instructions, addresses, registers."""

import re
import subprocess
from pathlib import Path

import pytest

from gradwire.errors import ExtensionError
from gradwire.torch.cuda import build
from tests.torch.cuda import sass
from tests.torch.cuda.sass import Instruction, Streams

pytestmark = pytest.mark.full  # runs nvcc

MOST = 25
"""Instructions for an entry of float32 with a residual: what an H100 issues while it loads one."""

RESIDUAL, ADAM = Streams(2, 1), Streams(3, 2, roots=True)
REGISTERS = 64  # of a thread: four blocks of 256 on a multiprocessor
SPILLED = 160  # bytes, of any function of the kernel


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The kernel for one architecture, and what the assembler says of it; some seconds."""
    try:
        toolkit = build.find_toolkit()
    except ExtensionError as error:
        pytest.skip(str(error))
    if sass.find_cuobjdump() is None:
        pytest.skip("no cuobjdump here")
    made = tmp_path_factory.mktemp("code") / "read.cubin"
    source = build.SOURCES / "bucket" / "read.cu"
    folders = [f"-I{path}" for path in (build.SOURCES, *toolkit.include)]
    flags = [*build._FLAGS, *folders, "-arch=sm_90", "-cubin", "-Xptxas", "-v"]
    command = [str(toolkit.nvcc), *flags, str(source), "-o", str(made)]
    done = subprocess.run(command, env=build._environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return made, done.stdout + done.stderr


@pytest.fixture(scope="module")
def code(compiled: tuple[Path, str]) -> list[Instruction]:
    return sass.read_of(sass.functions(compiled[0]))


def test_a_read_takes_few_instructions_an_entry(code: list[Instruction]) -> None:
    assert 5 < RESIDUAL.per_entry(code) <= MOST
    # What Adam's correction has more is a root and a division for each, rounded as the core's.
    assert RESIDUAL.per_entry(code) < ADAM.per_entry(code) <= 70


def test_whole_rows_are_read_from_global_memory_and_nothing_is_spilled(
    code: list[Instruction],
) -> None:
    step, _ = RESIDUAL.loops(code)
    names = {each.name.partition(".")[0] for each in step.body}
    assert {"LDG", "STG"} <= names
    # Generic addresses, local memory, shared memory.
    assert not names & {"LD", "ST", "LDL", "STL", "LDS", "STS"}


def test_registers_leave_room_for_four_blocks(compiled: tuple[Path, str]) -> None:
    _, said = compiled
    assert [int(each) for each in re.findall(r"Used (\d+) registers", said)] == [REGISTERS]
    spilled = [int(each) for each in re.findall(r"(\d+) bytes spill", said)]
    assert len(spilled) > 20
    assert max(spilled) <= SPILLED
