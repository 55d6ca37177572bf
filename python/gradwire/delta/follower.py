"""Keeps a model at the newest version that a publisher has written."""

import contextlib
import functools
import math
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from gradwire import weights
from gradwire.delta.folder import Folder, Key, Manifest, Version
from gradwire.delta.patch import applied, digest
from gradwire.delta.tensors import Remote, Tensors, check_kinds, copy, distinct, tensors_of
from gradwire.errors import CorruptFileError, CorruptFrameError
from gradwire.weights.header import bits_of

_POLL = 0.1
"""Seconds between looks at the folder."""

T = TypeVar("T")
Chains = dict[int, list[Version]]
"""Of each part: a version that is there, and those whose patches follow it."""


class Follower:
    """Applies what a `Publisher` writes. Any number of followers read one folder.

    Parameters
    ----------
    folder : path-like or Folder
        The publisher's, or a copy that a tool keeps up to date, in any order of files.
    part : int, optional
        Follow this part alone, as an engine does that is divided like the trainer.
    """

    def __init__(self, folder: str | os.PathLike[str] | Folder, part: int | None = None) -> None:
        self._store = Folder(folder) if isinstance(folder, str | os.PathLike) else folder
        self._part = part
        self._at: Key | None = None  # after an interrupt: an anchor comes next
        self._names: dict[int, list[str]] = {}

    @property
    def step(self) -> int | None:
        """The step of the version that the model has, an int; None before the first one."""
        return None if self._at is None else self._at[1]

    def pull(self, model: Any, timeout: float = 0.0) -> int:
        """Bring a model to the newest version: from an anchor the first time, then by patches.

        Each version is applied completely or not at all.

        Parameters
        ----------
        model : mapping of str to array or tensor, array, tensor or torch.nn.Module
            As in `encode`, with the names, dtypes and shapes of the publisher's; changed in place.
            The same one every time, which nothing else changes.
        timeout : float
            Seconds to wait for a version newer than the model's.

        Returns
        -------
        int
            The step of the version that the model has now, newer or not.

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
        """Return a model of zeros for `pull`, with the published names, dtypes and shapes.

        It waits for a first version, and raises, as `pull` does.
        """

        def zeros() -> dict[str, weights.RawTensor]:
            with contextlib.ExitStack() as files:
                _, chains = self._start(self._manifests())
                return {
                    name: weights.RawTensor(each.dtype, each.shape, np.zeros(each.nbytes, np.uint8))
                    for saved in self._anchors(files, chains).values()
                    for name, each in saved.items()
                }

        if (found := _until(timeout, zeros)) is None:
            raise TimeoutError("the folder has no complete version yet")
        return found

    def _manifests(self) -> dict[int, Manifest]:
        first = Manifest.read(self._store, 0)
        others = range(1, first.parts)
        return {0: first} | {part: Manifest.read(self._store, part) for part in others}

    def _chains(
        self, manifests: dict[int, Manifest], key: Key, begins: Callable[[Version], bool]
    ) -> Chains | None:
        """Return what leads to a version, of each part that is followed; None: not all is there."""
        parts = manifests if self._part is None else [self._part]
        found = {part: manifests[part].chain(key, begins) for part in parts}
        chains = {part: chain for part, chain in found.items() if chain is not None}
        return chains if len(chains) == len(found) else None

    def _start(self, manifests: dict[int, Manifest]) -> tuple[Key, Chains]:
        """Return the version to begin with: the newest of those that need the fewest patches."""
        keys = reversed(_complete(manifests))
        chains = {key: self._chains(manifests, key, lambda each: each.anchor) for key in keys}
        found = [(key, each) for key, each in chains.items() if each is not None]
        if not found:
            raise FileNotFoundError("no version is complete")
        return min(found, key=lambda each: sum(map(len, each[1].values())))

    def _advance(self, tensors: Tensors) -> bool | None:
        """Go from version to version, as far as there are files; None if there is no newer one."""
        before, manifests = self._at, self._manifests()
        keys = _complete(manifests)
        if self._at not in keys:
            self._load(tensors, *self._start(manifests))
        while (at := self._at) is not None and at != keys[-1]:
            try:
                self._step(tensors, manifests, at, keys[keys.index(at) + 1])
            except (OSError, CorruptFrameError):
                anchor, chains = self._start(manifests)
                if keys.index(anchor) > keys.index(at):
                    self._load(tensors, anchor, chains)
                elif at == before:
                    raise
                else:
                    break  # the rest the next time
        return None if self._at == before else True

    def _step(self, tensors: Tensors, manifests: dict[int, Manifest], at: Key, key: Key) -> None:
        """Apply the patches that lead from one version to another."""
        chains = self._chains(manifests, key, lambda each: each.key == at)
        if chains is None:
            raise FileNotFoundError(f"no patch leads to step {key[1]}")
        self._at = None
        try:
            self._apply(tensors, chains)
        except Exception:
            self._at = at
            raise
        self._at = key

    def _apply(self, tensors: Tensors, chains: Chains) -> None:
        with contextlib.ExitStack() as undoing:
            for part, (_, *versions) in chains.items():
                own = {name: tensors[name] for name in self._names[part]}
                for version in versions:
                    with open(self._store.get(version.name(part, "gwdl")), "rb") as file:
                        patch = file.read(version.patch + 1)
                    if len(patch) != version.patch:
                        raise CorruptFrameError(f"{file.name} has not {version.patch} bytes")
                    undoing.enter_context(applied(own, patch))

    def _anchors(self, files: contextlib.ExitStack, chains: Chains) -> dict[int, Tensors]:
        found: dict[int, Tensors] = {}
        for part, (anchor, *_) in chains.items():
            file: Any = weights.open(self._store.get(anchor.name(part, "safetensors")))
            files.enter_context(file)
            raw = functools.lru_cache(1)(file.raw)  # one after the other is decoded
            found[part] = {name: _Saved(name, file.kind(name), raw) for name in sorted(file)}
        return found

    def _load(self, tensors: Tensors, key: Key, chains: Chains) -> None:
        """Read anchors, after all of them were checked, and the patches to the same version."""
        with contextlib.ExitStack() as files:
            saved = self._anchors(files, chains)
            for part, (anchor, *_) in chains.items():
                if digest(saved[part]) != anchor.digest:
                    raise CorruptFileError(f"the anchor of step {anchor.step} is damaged")
            whole = {name: each for some in saved.values() for name, each in some.items()}
            check_kinds(whole, tensors)
            self._at, self._names = None, {part: [*some] for part, some in saved.items()}
            try:
                copy(whole, tensors)
            except BaseException:
                copy(whole, tensors)  # all of it, rather than a part
                raise
        self._apply(tensors, chains)
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


def _complete(manifests: dict[int, Manifest]) -> list[Key]:
    """Return the versions that all parts have, the oldest first."""
    if any(each.parts != len(manifests) for each in manifests.values()):
        return []
    first, *others = [[each.key for each in every.versions] for every in manifests.values()]
    return [key for key in first if all(key in keys for keys in others)]


class _Saved(Remote):
    """A tensor of a file, which is decoded when it is read."""

    def __init__(self, name: str, kind: tuple[str, tuple[int, ...]], raw: Any) -> None:
        self.dtype, self.shape = kind
        self.place, self._raw = (name, 0), raw
        self.nbytes = math.prod(self.shape) * (bits_of(self.dtype) or 0) // 8

    def read(self, start: int, out: Any) -> None:
        out[:] = self._raw(self.place[0]).data[start : start + len(out)]
