"""Programs that users start with torchrun, run in ranks that are there already."""

import contextlib
import io
import runpy
import sys
import warnings
from pathlib import Path

from accelerate.state import AcceleratorState, GradientState

from gradwire.torch.ddp import PairingWarning
from tests.docs.guides import blocks, execute
from tests.trainers.scenarios.started import as_started_by_torchrun

EXAMPLES = Path(__file__).parents[3] / "examples"


def run(rank: int, world_size: int, name: str, arguments: list[str]) -> str:
    """Run an example; return what it prints."""
    become(rank, world_size)
    sys.argv = [name, *arguments]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return out.getvalue()


def page(rank: int, world_size: int, name: str, folder: str) -> int:
    """Run the Python blocks of a page one after another, in a folder; return their number."""
    become(rank, world_size)
    with contextlib.chdir(folder), warnings.catch_warnings():
        warnings.simplefilter("error", PairingWarning)
        execute(name)
    return sum(1 for _ in blocks(name))


def become(rank: int, world_size: int) -> None:
    """Have the variables that torchrun sets, and let Accelerate forget an earlier program."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    as_started_by_torchrun(rank, world_size)
