"""What a rank does once it has joined the others: run scenarios, and answer."""

import importlib
import inspect
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def serve(pipe: Connection, package: str, rank: int, world_size: int) -> None:
    """Run the scenarios of a package, or the bodies of tests, until the pipe is closed."""
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        try:
            with warnings.catch_warnings():  # the next one has its own filters
                if name.startswith("tests."):
                    body = _find(name)
                    place = {"rank": rank, "size": world_size}
                    taken = inspect.signature(body).parameters.keys() & place.keys()
                    answer = ("returned", body(**{key: place[key] for key in taken}, **arguments))
                else:
                    answer = ("returned", _find(f"{package}.{name}")(rank, world_size, **arguments))
        except BaseException:
            answer = ("raised", traceback.format_exc())
        pipe.send(answer)


def _find(name: str) -> Callable[..., Any]:
    module, function = name.rsplit(".", 1)
    found = getattr(importlib.import_module(module), function)
    body: Callable[..., Any] = getattr(found, "body", found)  # of a test marked `on`
    return body
