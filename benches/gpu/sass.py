"""Machine code of kernels: how many instructions their loops take for an entry.

Reads what ``cuobjdump -sass`` prints of a library or of one compiled source. No GPU is needed.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

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

    def __contains__(self, other: "Loop") -> bool:
        return other is not self and set(other.body) < set(self.body)

    def count(self, prefix: str, suffix: str = "") -> int:
        """Return how many have a name that begins, and ends, like this."""
        return sum(each.name.startswith(prefix) and each.name.endswith(suffix) for each in self.body)


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
