"""Runs every Python block of some guides, one after another, as a reader would paste them.

    python -m tests.docs.guides PAGE...

The blocks of a page share their names, and have no others: a page has a set-up of its own or links
to that of DDP, which then runs first. A page runs in a folder of its own, in one process as
`python page.py` would be. If it is for several ranks, it also runs in two processes, with the
variables that torchrun sets.
"""

import itertools
import multiprocessing
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401 -- DDP and optimizers import it, which takes seconds

import gradwire.torch.ddp

DOCS = Path(__file__).parents[2] / "docs"
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TORCHRUN_ONLY = ["quickstart", "hierarchy"]
"""Pages whose programs torchrun starts: they say so."""
SET_UP = "ddp", "(ddp.md#set-up)"
"""The page whose first block is a set-up, and how others link to it."""
SHARED = "init_process_group("
"""What pages have that are for a fixed number of ranks."""
SECONDS = 300.0
"""How long a page may take."""


def blocks(page: str) -> Iterator[tuple[str, int, str]]:
    """Return the Python blocks of a page: the page, the number of lines before, and the code."""
    text = (DOCS / f"{page}.md").read_text("utf-8")
    owner, link = SET_UP
    if link in text:
        yield next(blocks(owner))
    for block in FENCED.finditer(text):
        yield page, text.count("\n", 0, block.start(1)), block[1]


def execute(
    page: str, after: Callable[[dict[str, Any]], None] = lambda names: None
) -> dict[str, Any]:
    """Run all blocks of a page, with a call after each; return the names that they have made."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for source, lines, block in blocks(page):
        code = "\n" * lines + block  # so that a traceback has the line of the page
        exec(compile(code, f"docs/{source}.md", "exec"), names)
        after(names)
    return names


def start(page: str, folder: str, variables: dict[str, str]) -> None:
    """Run a page in this process."""
    os.environ.update(variables)
    os.chdir(folder)
    execute(page)


PORTS = itertools.count()


def launched(ranks: int) -> list[dict[str, str]]:
    """Return the variables that torchrun sets for each rank."""
    # Below 32768, so that the system gives it to no other program before the ranks listen there.
    port = str(20_000 + (100 * os.getpid() + next(PORTS)) % 10_000)
    return [
        {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "TORCHELASTIC_RUN_ID": "guides",
        }
        for rank in range(ranks)
    ]


def run(page: str, variables: list[dict[str, str]]) -> None:
    """Run a page in as many processes as there are variables for, forked from this one."""
    forked = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        processes = [forked.Process(target=start, args=(page, folder, each)) for each in variables]
        for process in processes:
            process.start()
        for process in processes:
            process.join(SECONDS)
            process.kill()
            process.join()
    ended = [process.exitcode for process in processes]
    if any(ended):
        raise SystemExit(f"docs/{page}.md: exit codes {ended} of {len(ended)} processes")


def main(pages: list[str]) -> None:
    """Run pages."""
    warnings.simplefilter("error", gradwire.torch.ddp.PairingWarning)
    for page in pages:
        ways: list[list[dict[str, str]]] = [] if page in TORCHRUN_ONLY else [[{}]]
        if any(SHARED in block for *_, block in blocks(page)):
            ways.append(launched(2))
        for way in ways:
            run(page, way)
        counted = sum(1 for _ in blocks(page))
        print(f"docs/{page}.md: {counted} blocks, {len(ways)} ways", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
