"""The process of one rank: read commands, write events.

It starts once, because importing torch is slow, and serves all runs: commands arrive as JSON lines
on standard input, events are written as JSON lines to what was standard output. When the command
ends, for whatever reason, standard input closes and the rank exits at once, even inside a
collective or the import of torch; so no rank outlives the command.
"""

import importlib
import json
import os
import queue
import shutil
import sys
import threading
import traceback
from datetime import timedelta
from typing import Any


def _commands(folder: str) -> "queue.SimpleQueue[dict[str, Any]]":
    """Read commands in a separate thread, which ends the process at the end of its input."""
    commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            commands.put(json.loads(line))
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    threading.Thread(target=read, name="commands", daemon=True).start()
    return commands


def main(setup: dict[str, Any]) -> None:
    # Only events are written to the pipe: output of libraries is redirected to standard error and
    # from there into the log.
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(event: str, **fields: Any) -> None:
        events.write(json.dumps({"event": event, **fields}) + "\n")
        events.flush()

    commands = _commands(setup["folder"])
    try:
        rank = importlib.import_module(setup["module"]).join(setup, say)
        say("ready", value=getattr(rank, "versions", None))
        while True:
            command = commands.get()
            say("answer", value=getattr(rank, command.pop("do"))(**command))
    except BaseException as error:
        say("error", message=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
        os._exit(1)


def form_group(setup: dict[str, Any], seconds: float = 600.0) -> None:
    """Form a process group of Gloo with the other ranks, in which collectives may take so long."""
    import torch
    import torch.distributed as dist

    import gradwire

    torch.set_num_threads(setup["threads"])
    gradwire.set_num_threads(setup["threads"])
    # A file, not a port: it works across namespaces, and no socket is open to strangers.
    dist.init_process_group(
        "gloo",
        init_method=f"file://{setup['folder']}/store",
        rank=setup["rank"],
        world_size=setup["ranks"],
        timeout=timedelta(seconds=seconds),
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
