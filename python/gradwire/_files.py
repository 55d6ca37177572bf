"""Files: read up to a limit, and written completely or not at all."""

import contextlib
import errno
import json
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO


def standard_input() -> BinaryIO:
    """Return the bytes of standard input; raise an OSError if the process has none (``<&-``)."""
    if sys.stdin is None:
        raise OSError(errno.EBADF, "standard input is closed")
    return sys.stdin.buffer


def read_text(path: str | os.PathLike[str], most: int) -> str:
    """Read a file of UTF-8, or standard input if its name is ``-``.

    No more than ``most`` bytes, a multiple of 1 MiB, are read or kept in memory. Raises a
    ValueError if the file has more, or is not UTF-8.
    """
    with contextlib.ExitStack() as stack:
        standard = path == "-"
        source = standard_input() if standard else stack.enter_context(open(path, "rb"))
        data = source.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most >> 20} MiB")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None


def read_json(path: str | os.PathLike[str], most: int) -> Any:
    """Read a JSON file with `read_text`; raise a ValueError if invalid or too deeply nested."""
    try:
        return json.loads(read_text(path, most))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that replaces another once it is complete.

    After an exception, of the disk or of the caller, the old file is unchanged, and no new one is
    left. The ``filename`` of an OSError is ``path``.
    """
    target = Path(os.path.realpath(path))  # a link stays one
    special = target.exists() and not target.is_file()  # as /dev/stdout
    part = target if special else target.with_name(f".gradwire-{secrets.token_hex(8)}")
    try:
        try:
            with part.open("wb" if special else "xb") as file:  # never through somebody's link
                yield file
            if not special:
                if target.exists():
                    part.chmod(stat.S_IMODE(target.stat().st_mode))
                part.replace(target)
        finally:
            if not special:
                part.unlink(missing_ok=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def write(path: str | os.PathLike[str], data: str | bytes) -> None:
    """Write a file, text in UTF-8; see `replacing`."""
    with replacing(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)
