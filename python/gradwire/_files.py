"""Files: read up to a limit, and written completely or not at all."""

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

if sys.platform != "win32":
    import fcntl


def read_json(path: str | os.PathLike[str], most: int) -> Any:
    """Read a JSON file, of which no more than ``most`` bytes, a multiple of 1 MiB, are read.

    Raises a ValueError if it has more, is invalid, not UTF-8, or too deeply nested.
    """
    with open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most >> 20} MiB")
    try:
        return json.loads(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


_HOST = f"{zlib.crc32(socket.gethostname().encode()):08x}"
_PART = re.compile(r"\.gradwire-([0-9a-f]{8})[0-9a-f]{16}")
STAGED = ".files"  # ends the name of a folder that belongs to the part of that name
_DAY = 86400.0


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that replaces another once it is complete.

    After an exception, of the disk or of the caller, the old file is unchanged, and no new one is
    left. What killed processes left in the folder is removed. A pipe or a device, as
    ``/dev/stdout``, is written to as it is. The ``filename`` of an OSError is ``path``.
    """
    target = Path(os.path.realpath(path))  # a link stays one
    try:
        if os.path.exists(path) and not target.is_file():
            with open(path, "wb") as special:
                yield special
            return
        file = part(target.parent)
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                if target.exists():
                    Path(file.name).chmod(stat.S_IMODE(target.stat().st_mode))
                # It is renamed while locked, so that nobody takes it for a killed process's.
                if sys.platform == "win32":
                    file.close()  # an open file cannot be renamed there, and has no lock
                Path(file.name).replace(target)
        finally:
            Path(file.name).unlink(missing_ok=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def part(folder: Path) -> BinaryIO:
    """Return a new, locked file in a folder, from which those of killed processes are removed."""
    with contextlib.suppress(OSError):  # a folder that cannot be listed
        for found in filter(None, map(_PART.fullmatch, os.listdir(folder))):
            _remove_left(folder / found[0], found[1] == _HOST)
    while True:
        # Never through somebody's link.
        file = (folder / f".gradwire-{_HOST}{secrets.token_hex(8)}").open("xb")
        if sys.platform == "win32":
            return file
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(file.name), os.fstat(file.fileno())):
                return file
        file.close()  # it was removed between the two steps


def _remove_left(path: Path, ours: bool) -> None:
    """Remove a file, and its folder, unless a process is writing to them: that holds a lock.

    Where a file system keeps locks to one host, those of others are not seen: their files are left
    for a day. On Windows, all are left.
    """
    if sys.platform == "win32":
        return
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with contextlib.suppress(OSError), open(os.open(path, flags), "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if ours or time.time() - os.fstat(file.fileno()).st_mtime > _DAY:
            shutil.rmtree(f"{path}{STAGED}", ignore_errors=True)
            path.unlink()


def write(path: str | os.PathLike[str], data: str | bytes) -> None:
    """Write a file, text in UTF-8; see `replacing`."""
    with replacing(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


_BEGINNINGS = (
    (b"\x80", "a pickle: convert it with safetensors.torch.save_file"),
    (b"PK\x03\x04", "a pickle of torch.save: convert it with safetensors.torch.save_file"),
    (b"GGUF", "a GGUF file: take the safetensors files that it was made from"),
    (b"version https://git-lfs", "a pointer of git-lfs: fetch the file with git lfs pull"),
    (b"{", "JSON: the index of a sharded checkpoint is named *.safetensors.index.json"),
    (b"<", "a page of HTML, as a failed download leaves it: download the file again"),
)


def word_for(head: bytes) -> str | None:
    """Return what is no safetensors file, by its first bytes, and what to do with it."""
    begun = head.lstrip(b" \n")
    return next((word for beginning, word in _BEGINNINGS if begun.startswith(beginning)), None)
