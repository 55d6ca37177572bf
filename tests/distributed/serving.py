"""What a rank does once it has joined the others: run scenarios, and answer."""

import importlib
import traceback
import warnings
from multiprocessing.connection import Connection


def serve(pipe: Connection, package: str, rank: int, world_size: int) -> None:
    """Run the scenarios of a package that the pipe names, until it is closed."""
    while True:
        try:
            scenario, arguments = pipe.recv()
        except EOFError:
            return
        module, function = scenario.rsplit(".", 1)
        try:
            run = getattr(importlib.import_module(f"{package}.{module}"), function)
            with warnings.catch_warnings():  # the next scenario has its own filters
                answer = ("returned", run(rank, world_size, **arguments))
        except BaseException:
            answer = ("raised", traceback.format_exc())
        pipe.send(answer)
