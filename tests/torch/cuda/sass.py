"""Machine code of kernels: how many instructions the first read of a tensor takes for an entry.

Reads what ``cuobjdump -sass`` prints of a library or of one compiled source. No GPU is needed.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

STEP, ROW = 8, 32
"""Entries that a thread loads at a time, and has of a row: ``csrc/scan/rows.cuh``."""

READ = "4readENS_9SelectingE"
"""How the mangled name of that kernel ends, in ``csrc/bucket/read.cu``."""

FUNCTION = re.compile(r"^\s*Function : (\S+)$")
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\d+ )?\s*([A-Z][A-Z0-9_.]*)([^;]*);")
TARGET = re.compile(r"0x([0-9a-f]+)\s*$")


@dataclass(frozen=True)
class Instruction:
    """One instruction: its address, and its name with all that it is qualified by, as LDG.E.128."""

    address: int
    name: str
    target: int | None = None  # of a branch


@dataclass(frozen=True)
class Loop:
    """The instructions from a loop's first one to the branch back, with all loops in it."""

    body: tuple[Instruction, ...]

    def holds(self, other: "Loop") -> bool:
        """Tell whether the other one is inside of this one."""
        return (
            len(other.body) < len(self.body)
            and self.body[0].address <= other.body[0].address
            and other.body[-1].address <= self.body[-1].address
        )

    def count(self, prefix: str, suffix: str = "") -> int:
        """Return how many have a name that begins, and ends, like this."""
        return sum(
            each.name.startswith(prefix) and each.name.endswith(suffix) for each in self.body
        )


def find_cuobjdump() -> str | None:
    """Return NVIDIA's disassembler: that of the toolkit, or the one that comes with triton."""
    if found := shutil.which("cuobjdump"):
        return found
    triton = find_spec("triton")
    if triton is None or triton.origin is None:
        return None
    here = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return str(here) if here.is_file() else None


def functions(path: Path, *options: str) -> dict[str, list[Instruction]]:
    """Return the instructions of each function in a file, by its mangled name.

    Raises
    ------
    FileNotFoundError
        If there is no disassembler.
    subprocess.CalledProcessError
        If it does not read the file.
    """
    program = find_cuobjdump()
    if program is None:
        raise FileNotFoundError("cuobjdump of the CUDA toolkit is needed; triton has one, too")
    command = [program, "-sass", *options, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, list[Instruction]] = {}
    for line in done.stdout.splitlines():
        if begin := FUNCTION.match(line):
            found[begin[1]] = current = []
        elif one := INSTRUCTION.match(line):
            goes = TARGET.search(one[3].strip()) if one[2].startswith("BRA") else None
            current.append(Instruction(int(one[1], 16), one[2], int(goes[1], 16) if goes else None))
    return found


def loops(code: Sequence[Instruction]) -> Iterator[Loop]:
    """Yield all loops: what is between a branch back and where it goes."""
    for last in code:
        if last.target is not None and last.target < last.address:
            yield Loop(tuple(e for e in code if last.target <= e.address <= last.address))


@dataclass(frozen=True)
class Streams:
    """What a read loads and stores of float32 at a time, which tells its loop from others.

    Parameters
    ----------
    loads, stores : int
        Tensors that are loaded: the gradient and what a memory keeps; and those that are stored.
    roots : bool
        Whether it takes roots, as Adam's correction does.
    sums : bool
        Whether all warps of a block read a tile, and sums are taken of it.
    """

    loads: int
    stores: int
    roots: bool = False
    sums: bool = False

    def match(self, loop: Loop) -> bool:
        whole = STEP // 4
        return (
            loop.count("LDG", ".128") == whole * self.loads
            and loop.count("STG", ".128") == whole * self.stores
            and (loop.count("MUFU") > 0) == self.roots
        )

    def loops(self, code: Sequence[Instruction]) -> tuple[Loop, Loop]:
        """Return the loop over steps and that over rows around it; twice that over tiles."""
        of_all = list(loops(code))
        found = [loop for loop in of_all if self.match(loop)]
        if self.sums:
            tiles = min((e for e in found if e.count("BAR")), key=lambda e: len(e.body))
            return tiles, tiles
        step = min((e for e in found if not e.count("BAR")), key=lambda e: len(e.body))
        return step, min((e for e in of_all if e.holds(step)), key=lambda e: len(e.body))

    def per_entry(self, code: Sequence[Instruction]) -> float:
        """Return the instructions for an entry, with all that is done for candidates of a row once.

        Of a read that takes sums, those of a warp that does not.

        Raises
        ------
        ValueError
            If the code has no such loop.
        """
        step, row = self.loops(code)
        if not self.sums:
            return len(step.body) / STEP + (len(row.body) - len(step.body)) / ROW
        inside = {e for loop in loops(code) if step.holds(loop) for e in loop.body}
        return len(set(step.body) - inside) / STEP


def read_of(found: dict[str, list[Instruction]]) -> list[Instruction]:
    """Return the code of the kernel that reads tensors first."""
    return next(code for name, code in found.items() if name.endswith(READ))
