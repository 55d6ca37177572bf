"""Serves the store of ranks that come and go: ``python -m gradwire.torch.diloco PORT``.

It only keeps what the ranks write, and needs no token. Whoever reaches it can end the run, but not
take part in it, if the ranks have a token.
"""

import argparse
import threading

from gradwire.torch.diloco.store_client import serve_store
from gradwire.torch.errors import MembershipError


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m gradwire.torch.diloco", description=__doc__)
    parser.add_argument("port", type=int, help="0 for any free port")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="the address to serve at: one that the ranks can reach and, if possible, nobody else; "
        "0.0.0.0 for all of this host's (default: %(default)s, for processes on this host)",
    )
    options = parser.parse_args()
    try:
        store = serve_store(options.host, options.port)
    except MembershipError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    print(f"serving at {options.host}, port {store.port}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
