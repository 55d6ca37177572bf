"""The process of one rank: where its commands come from and its events go.

It starts once, because importing torch is slow, and serves all runs: commands come as JSON lines on
standard input, events leave as JSON lines on what was standard output. Standard input has a second
job. When the command ends, by whatever cause, it closes, and the rank leaves at once, be it from
inside a collective or from the import of torch; so no rank outlives it.
"""

import json
import os
import queue
import shutil
import sys
import threading
import traceback
from typing import Any


def _commands(folder: str) -> "queue.SimpleQueue[dict[str, Any]]":
    """Read commands in a thread of their own, which ends the process with its input."""
    commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            commands.put(json.loads(line))
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    threading.Thread(target=read, name="commands", daemon=True).start()
    return commands


def main(setup: dict[str, Any]) -> None:
    """Join the other ranks and do as told until standard input ends."""
    # Events keep the pipe to themselves: what libraries print goes to standard error, and from
    # there into the log.
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(event: str, **fields: Any) -> None:
        events.write(json.dumps({"event": event, **fields}) + "\n")
        events.flush()

    commands = _commands(setup["folder"])
    try:
        from gradwire.cli.training.ranks import join

        rank = join(setup, say)
        while True:
            command = commands.get()
            getattr(rank, command.pop("do"))(**command)
    except BaseException as error:
        say("error", message=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
        os._exit(1)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
