"""What publishers and followers share: a folder, and the versions that its manifests list."""

import contextlib
import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

from gradwire import _files
from gradwire.errors import CorruptFileError, StateInUseError
from gradwire.weights.header import check_version

if sys.platform != "win32":
    import fcntl

Key = tuple[str, int]
"""The run and the step of a version."""

RUN = re.compile(r"[A-Za-z0-9_.]{1,64}")
_MOST = 16 << 20
"""Bytes of a manifest."""


class Folder:
    """A folder as a store of named files; an object store needs the same four methods.

    Parameters
    ----------
    path : path-like
        May be on a network's file system, or one that a tool copies elsewhere.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def put(self, name: str, write: Callable[[Path], None]) -> None:
        """Make a file, which ``write`` writes at a path of this machine; seen complete, or not."""
        write(self.path / name)  # beside it, renamed when it is on the disk
        if sys.platform != "win32":
            with contextlib.suppress(OSError):  # a file system that cannot
                folder = os.open(self.path, os.O_RDONLY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)

    def get(self, name: str) -> Path:
        """Return the path of a file on this machine; a FileNotFoundError, now or then: none."""
        return self.path / name

    def names(self) -> list[str]:
        """Return the names of all files, and perhaps others."""
        return os.listdir(self.path)

    def remove(self, name: str) -> None:
        """Remove a file."""
        (self.path / name).unlink(missing_ok=True)

    def lock(self, name: str) -> BinaryIO:
        """Return a file that nobody else has locked, where the file system can tell."""
        self.path.mkdir(parents=True, exist_ok=True)
        file = (self.path / name).open("ab")
        if sys.platform != "win32":
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                raise StateInUseError(f"{self.path} has another publisher: close that") from None
            except OSError:
                pass
        return file


@dataclasses.dataclass(frozen=True)
class Version:
    """A version of a model, or of a part of it.

    Attributes
    ----------
    run, step : str, int
        As given to `Publisher` and its ``push``.
    digest, base : str, str or None
        `digest` of the tensors, and of those that its patch was made from.
    patch : int
        Bytes of the patch; 0 without one.
    anchor : bool
        Whether it is also there complete.
    """

    run: str
    step: int
    digest: str
    base: str | None
    patch: int
    anchor: bool

    @property
    def key(self) -> Key:
        """What all parts of a version have in common."""
        return self.run, self.step

    def name(self, part: int, kind: str) -> str:
        """Return the name of its file: "gwdl", the patch, or "safetensors", the anchor."""
        return f"part-{part}-{self.run}-{self.step}.{kind}"


_TYPES = {each.name: each.type for each in dataclasses.fields(Version)}


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a publisher has written of a part: versions, the oldest first."""

    writer: str = ""
    parts: int = 1
    versions: Sequence[Version] = ()

    @classmethod
    def read(cls, store: Folder, part: int) -> Self:
        """Read that of a part; raise a FileNotFoundError if there is none."""
        path = store.get(f"part-{part}.json")
        try:
            fields = _files.read_json(path, _MOST)
            check_version(fields, "manifests")
            versions = [_version(each) for each in fields["versions"]]
            return cls(str(fields["writer"]), int(fields["parts"]), versions)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptFileError(f"{path} is no manifest: {error}") from None

    def write(self, store: Folder, part: int) -> None:
        """Write it; followers see the old one or this one."""
        versions = [dataclasses.asdict(each) for each in self.versions]
        fields = {"version": 1, "writer": self.writer, "parts": self.parts, "versions": versions}
        text = json.dumps(fields)
        store.put(f"part-{part}.json", lambda path: _files.write(path, text))

    def chain(self, target: Key, begins: Callable[[Version], bool]) -> list[Version] | None:
        """Return versions up to one, each a patch of the one before, from one that ``begins``."""
        keys = [each.key for each in self.versions]
        found: list[Version] = []
        for version in reversed(self.versions[: keys.index(target) + 1]):
            if found and found[0].base != version.digest:
                return None
            found.insert(0, version)
            if begins(version):
                return found
        return None


def _version(fields: Mapping[str, Any]) -> Version:
    version = Version(**fields)
    for name, kind in _TYPES.items():
        if not isinstance(getattr(version, name), kind):  # type: ignore[arg-type]
            raise ValueError(f"{name} is {getattr(version, name)!r:.100}")
    if not RUN.fullmatch(version.run):
        raise ValueError(f"a run is {version.run!r:.100}")
    return version
