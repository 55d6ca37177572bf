"""Serves the store of ranks that come and go: ``python -m gradwire.torch.diloco PORT``."""

import argparse
import threading

from gradwire.torch.transport import stores


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m gradwire.torch.diloco", description=__doc__)
    parser.add_argument("port", type=int, help="0 for any that is free")
    options = parser.parse_args()
    store = stores.TCPStore("localhost", options.port, is_master=True, wait_for_workers=False)
    print(f"serving at port {store.port}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
