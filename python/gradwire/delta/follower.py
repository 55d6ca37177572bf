"""Keeps a model at the newest version that a publisher has written."""

import contextlib
import functools
import io
import math
import os
import time
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np

from gradwire import weights
from gradwire.delta.folder import Folder, Manifest, Version
from gradwire.delta.patch import applied, digest
from gradwire.delta.tensors import Data, Tensors, check_kinds, copy, distinct, tensors_of
from gradwire.errors import CorruptFileError, CorruptFrameError
from gradwire.weights.header import bits_of

_POLL = 0.1
"""Seconds between looks at the folder."""


T = TypeVar("T")
Chains: TypeAlias = dict[int, list[Version]]
"""Of each part: a version that is there, and those whose patches follow it."""


class Follower:
    """Applies what a `Publisher` writes. Any number of followers read one folder.

    Parameters
    ----------
    folder : path-like or Folder
        The publisher's, or a copy that a tool keeps up to date, in any order of files.
    part : int, optional
        Follow this part alone, as an engine does that is divided like the trainer.

    Attributes
    ----------
    step : int or None
        That of the version that the model has; None before the first one.
    """

    def __init__(self, folder: str | os.PathLike[str] | Folder, part: int | None = None) -> None:
        self._store = Folder(folder) if isinstance(folder, str | os.PathLike) else folder
        self._part = part
        self._at: tuple[str, int] | None = None
        self._names: dict[int, list[str]] = {}

    @property
    def step(self) -> int | None:
        """See `Follower`."""
        return None if self._at is None else self._at[1]

    def pull(self, model: Any, timeout: float = 0.0) -> int:
        """Bring a model to the newest version, and return its step.

        The first time, and after being far behind, it is read from an anchor, then patches follow.
        Each version is applied completely or not at all.

        Parameters
        ----------
        model : mapping of str to array or tensor, array, tensor or torch.nn.Module
            As in `encode`, with the names, dtypes and shapes of the publisher's; changed in place.
            The same one every time, which nothing else changes.
        timeout : float
            Seconds to wait for a version newer than the model's. If there is none by then, the
            model stays as it is.

        Returns
        -------
        int
            The step of the version that the model has now.

        Raises
        ------
        TimeoutError
            There was no version at all.
        BaseMismatchError
            Somebody has changed the model. For another model, make another `Follower`.
        ValueError, TypeError
            The model has other names, dtypes or shapes; as of `encode`.
        CorruptFileError, CorruptFrameError, OSError
            Files are damaged or cannot be read, still after ``timeout``.
        """
        tensors = distinct(tensors_of(model))
        _until(timeout, lambda: self._advance(tensors))
        if self._at is None:
            raise TimeoutError("the folder has no complete version yet")
        return self._at[1]

    def blank(self, timeout: float = 0.0) -> dict[str, weights.RawTensor]:
        """Return tensors of zeros, of the names, dtypes and shapes of the newest anchor.

        For `pull`, if there is no model to change in place: an engine that loads weights by name
        gets them from here.

        Parameters
        ----------
        timeout : float
            Seconds to wait for a first version.

        Returns
        -------
        dict of str to gradwire.weights.RawTensor

        Raises
        ------
        TimeoutError
            There is none by then.
        CorruptFileError, OSError
            Files are damaged or cannot be read, still after ``timeout``.
        """
        if (found := _until(timeout, self._blank)) is None:
            raise TimeoutError("the folder has no complete version yet")
        return found

    def _blank(self) -> dict[str, weights.RawTensor]:
        found = {}
        _, chains = self._start(self._manifests())
        for part, chain in chains.items():
            with weights.open(self._store.get(chain[0].name(part, "safetensors"))) as file:
                for name, each in _saved(file).items():
                    data = np.zeros(each.nbytes, np.uint8)
                    found[name] = weights.RawTensor(each.dtype, each.shape, data)
        return found

    def _manifests(self) -> dict[int, Manifest]:
        first = Manifest.read(self._store, 0)
        others = range(1, first.parts)
        return {0: first} | {part: Manifest.read(self._store, part) for part in others}

    def _chains(
        self,
        manifests: dict[int, Manifest],
        key: tuple[str, int],
        begins: Callable[[Version], bool],
    ) -> Chains | None:
        """Return what leads to a version, of each part that is followed; None: not all is there."""
        chains = {}
        for part in manifests if self._part is None else [self._part]:
            chain = manifests[part].chain(key, begins)
            if chain is None:
                return None
            chains[part] = chain
        return chains

    def _start(self, manifests: dict[int, Manifest]) -> tuple[tuple[str, int], Chains]:
        """Return the version to begin with: the newest of those that need the fewest patches."""
        keys = reversed(_complete(manifests))
        chains = {key: self._chains(manifests, key, lambda each: each.anchor) for key in keys}
        found = [(key, each) for key, each in chains.items() if each is not None]
        if not found:
            raise FileNotFoundError("no version is complete")
        return min(found, key=lambda each: sum(map(len, each[1].values())))

    def _advance(self, tensors: Tensors) -> bool | None:
        """Go from version to version, as far as there are files; None if there is no newer one."""
        before = self._at
        manifests = self._manifests()
        keys = _complete(manifests)
        if self._at not in keys:
            self._load(tensors, manifests)
        while self._at is not None and self._at != keys[-1]:
            at = keys.index(self._at)
            try:
                self._apply(tensors, manifests, keys[at + 1])
            except (OSError, CorruptFrameError):
                if keys.index(self._start(manifests)[0]) > at:
                    self._load(tensors, manifests)
                elif self._at == before:
                    raise
                else:
                    break  # the rest the next time
        return None if self._at == before else True

    def _apply(
        self, tensors: Tensors, manifests: dict[int, Manifest], key: tuple[str, int]
    ) -> None:
        """Apply the patches that lead from where the model is to a version."""
        at = self._at
        chains = self._chains(manifests, key, lambda each: each.key == at)
        if chains is None:
            raise FileNotFoundError(f"no patch leads to step {key[1]}")
        self._at = None  # after an interrupt it is not known
        try:
            self._follow(tensors, chains)
        except Exception:
            self._at = at
            raise
        self._at = key

    def _follow(self, tensors: Tensors, chains: Chains) -> None:
        with contextlib.ExitStack() as undoing:
            for part, (_, *versions) in chains.items():
                own = {name: tensors[name] for name in self._names[part]}
                for version in versions:
                    with open(self._store.get(version.name(part, "gwdl")), "rb") as file:
                        patch = file.read(version.patch + 1)
                    if len(patch) != version.patch:
                        raise CorruptFrameError(f"{file.name} has not {version.patch} bytes")
                    undoing.enter_context(applied(own, patch))

    def _load(self, tensors: Tensors, manifests: dict[int, Manifest]) -> None:
        """Read anchors, after all of them were checked, and the patches to the same version."""
        key, chains = self._start(manifests)
        with contextlib.ExitStack() as files:
            saved: dict[int, Tensors] = {}
            for part, (anchor, *_) in chains.items():
                path = self._store.get(anchor.name(part, "safetensors"))
                saved[part] = _saved(files.enter_context(weights.open(path)))
                if digest(saved[part]) != anchor.digest:
                    raise CorruptFileError(f"{path} is not what its manifest says")
            check_kinds({name: each[name] for each in saved.values() for name in each}, tensors)
            self._at, self._names = None, {part: [*each] for part, each in saved.items()}
            try:
                _fill(tensors, saved)
            except BaseException:
                _fill(tensors, saved)  # all of it, rather than a part
                raise
        self._follow(tensors, chains)
        self._at = key


def _until(seconds: float, attempt: Callable[[], T | None]) -> T | None:
    """Attempt something until it returns something, or the time is over.

    Missing and damaged files may be on their way; damaged ones are an error in the end.
    """
    deadline = time.monotonic() + seconds
    while True:
        problem: Exception | None = None
        try:
            if (found := attempt()) is not None:
                return found
        except (OSError, CorruptFrameError, CorruptFileError) as error:
            problem = error
        if (left := deadline - time.monotonic()) <= 0:
            break
        time.sleep(min(_POLL, left))
    if isinstance(problem, FileNotFoundError | None):
        return None
    raise problem


def _complete(manifests: dict[int, Manifest]) -> list[tuple[str, int]]:
    """Return the versions that all parts have, the oldest first."""
    if any(each.parts != len(manifests) for each in manifests.values()):
        return []
    first, *others = [[each.key for each in every.versions] for every in manifests.values()]
    return [key for key in first if all(key in keys for keys in others)]


def _fill(tensors: Tensors, saved: dict[int, Tensors]) -> None:
    for each in saved.values():
        copy(each, {name: tensors[name] for name in each})


class _Saved:
    """A tensor of a file, which is decoded when it is read."""

    def __init__(self, name: str, kind: tuple[str, tuple[int, ...]], read: Any) -> None:
        self.dtype, self.shape = kind
        self.nbytes, self.place = _nbytes(*kind), (name, 0)
        self._read = read

    def buffer(self, nbytes: int) -> Data:
        """See `Remote`."""
        return np.empty(nbytes, np.uint8)

    def read(self, start: int, out: Data) -> None:
        """See `Remote`."""
        out[:] = self._read(self.place[0]).data[start : start + len(out)]

    def write(self, start: int, data: Data) -> None:
        """See `Remote`."""
        raise io.UnsupportedOperation


def _saved(file: Any) -> Tensors:
    raw = functools.lru_cache(1)(file.raw)  # one after the other is decoded
    return {name: _Saved(name, file.kind(name), raw) for name in sorted(file)}


def _nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * (bits_of(dtype) or 0) // 8
