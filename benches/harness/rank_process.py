"""The process of one rank: read commands, write events.

It starts once, because importing torch is slow, and serves all runs: commands arrive as JSON lines
on standard input, events are written as JSON lines to what was standard output. When the command
ends, for whatever reason, standard input closes and the rank exits at once, even inside a
collective or the import of torch; so no rank outlives the command.
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
    """Join the other ranks and execute commands until standard input ends."""
    # Only events are written to the pipe: output of libraries is redirected to standard error and
    # from there into the log.
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(event: str, **fields: Any) -> None:
        events.write(json.dumps({"event": event, **fields}) + "\n")
        events.flush()

    commands = _commands(setup["folder"])
    try:
        from benches.harness.ranks import join

        rank = join(setup, say)
        while True:
            command = commands.get()
            getattr(rank, command.pop("do"))(**command)
    except BaseException as error:
        say("error", message=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
        os._exit(1)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
