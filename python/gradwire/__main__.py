"""``python -m gradwire``: the command line, even if its script is not on the path."""

import sys

from gradwire.cli import main

if __name__ == "__main__":
    sys.exit(main())
