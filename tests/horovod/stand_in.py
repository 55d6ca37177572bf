"""What `horovodrun` starts for a rank: asks the nursery for the rank, and ends as it ends."""

import os
import signal
import sys
from multiprocessing.connection import Client


def main(address: str, folder: str) -> None:
    """Have a rank forked with this environment, and pass signals on to it."""
    with Client(address) as pipe:
        pipe.send((dict(os.environ), folder))
        rank = os.pidfd_open(pipe.recv())
        signal.signal(signal.SIGTERM, lambda number, _: signal.pidfd_send_signal(rank, number))
        status = pipe.recv()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
