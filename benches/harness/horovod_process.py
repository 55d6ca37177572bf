"""The process of one rank that `horovodrun` has started: `rank_process` over a socket."""

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from benches.harness import rank_process


def main(setups: list[dict[str, Any]], *, own_name: bool) -> None:
    """Connect standard input and output to the command, and be a rank.

    With ``own_name``, this process has a UTS namespace to itself, in which it names the host.
    """
    setup = setups[int(os.environ["HOROVOD_RANK"])]
    if own_name:
        socket.sethostname(setup["address"])
    for stream in (0, 1):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(Path(setup["folder"], "ranks")))
            connection.sendall(bytes([2 * setup["rank"] + stream]))
            os.dup2(connection.fileno(), stream)
    rank_process.main(setup)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), own_name="--own-name" in sys.argv[2:])
