"""Publishes the versions of a model."""

import contextlib
import os
import secrets
from typing import Any, Self

import numpy as np

from gradwire import _files, _validate, weights
from gradwire.delta.folder import RUN, Folder, Manifest, Version
from gradwire.delta.patch import applied, digest, digests, encode
from gradwire.delta.tensors import Tensors, copy, distinct, tensors_of
from gradwire.errors import StateInUseError


class Publisher:
    """Writes versions of a model to a folder, as patches and some complete ones: anchors.

    It keeps a copy of the last version in memory. A version is on the disk before followers see it.
    A publisher that follows another one, as of a restarted trainer, begins with an anchor, and the
    one before is refused from then on. Usable in a ``with`` block, which closes it.

    Parameters
    ----------
    folder : path-like or Folder
        Made if it is not there; or a store with the methods of `Folder`.
    anchor_every : int
        Versions from one anchor to the next one.
    keep : int
        Anchors to keep, at least 2, with all patches since: who is no more than ``anchor_every``
        versions behind needs no anchor.
    part, parts : int
        The number of this publisher, and how many publish parts of a model: tensors of different
        names. A version is visible when all parts of its step are there.
    run : str, optional
        Letters, digits, dots and underscores that all parts share, and no run before had. Needed
        for several parts; otherwise drawn.

    Raises
    ------
    StateInUseError
        Another publisher of the part is at work, or has had this run.
    ValueError, TypeError
        An argument is out of range, or of the wrong type.
    OSError
        The folder cannot be made.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | Folder,
        *,
        anchor_every: int = 50,
        keep: int = 2,
        part: int = 0,
        parts: int = 1,
        run: str | None = None,
    ) -> None:
        self._anchor_every = _validate.integer("anchor_every", anchor_every, low=1)
        self._keep = _validate.integer("keep", keep, low=2)
        self._parts = _validate.integer("parts", parts, low=1)
        self._part = _validate.integer("part", part, low=0, high=parts - 1)
        self._run = secrets.token_hex(4) if run is None and parts == 1 else run or ""
        if not RUN.fullmatch(self._run):
            raise ValueError(f"run= needs 1 to 64 letters, digits, dots, underscores, got {run!r}")
        self._locked = contextlib.ExitStack()
        if isinstance(folder, str | os.PathLike):
            folder = Folder(folder)
            self._locked.enter_context(folder.lock(f"part-{part}.lock"))
        self._store, self._writer, self._pushed = folder, secrets.token_hex(8), False
        self._copy: Tensors | None = None
        self._manifest()

    def push(self, step: int, model: Any) -> Version:
        """Publish the model as it is now.

        Parameters
        ----------
        step : int
            The number of the version, larger than that of the last one.
        model : mapping of str to array or tensor, array, tensor or torch.nn.Module
            As in `encode`. Nothing may write to it meanwhile.

        Returns
        -------
        Version
            With the bytes of the patch.

        Raises
        ------
        StateInUseError
            Another publisher has taken the folder.
        ValueError, TypeError
            The step is not larger, or the model is not like the last one; as of `encode`.
        CorruptFileError, OSError
            The manifest is damaged; files cannot be written, as on a full disk. Then the version is
            not published; push again.
        CorruptFrameError
            Somebody wrote to the model meanwhile. The version is not published.
        """
        step = _validate.integer("step", step, low=0)
        versions = [*self._manifest().versions]
        last = versions[-1] if versions else None
        if last is not None and last.run == self._run and step <= last.step:
            raise ValueError(f"step must be larger than the last one, {last.step}, got {step}")
        tensors = distinct(tensors_of(model))
        since = next((i for i, each in enumerate(reversed(versions)) if each.anchor), 0)
        if self._copy is not None and last is not None:
            patch = encode(self._copy, tensors)
            base, result = digests(patch)
            if base == last.digest:
                anchor = since + 1 >= self._anchor_every
                version = Version(self._run, step, result, base, len(patch), anchor)
                with applied(self._copy, patch):
                    self._write([*versions, version], patch)
                return version
        # The first one, or after an error.
        self._copy = {
            name: weights.RawTensor(each.dtype, each.shape, np.empty(each.nbytes, np.uint8))
            for name, each in tensors.items()
        }
        copy(tensors, self._copy)
        version = Version(self._run, step, digest(self._copy), None, 0, True)
        self._write([*versions, version])
        return version

    def _manifest(self) -> Manifest:
        try:
            manifest = Manifest.read(self._store, self._part)
        except FileNotFoundError:
            manifest = Manifest()
        if manifest.writer != self._writer:
            if self._pushed:
                raise StateInUseError("another publisher has taken the folder")
            if any(each.run == self._run for each in manifest.versions):
                raise StateInUseError(f"the run {self._run!r} has been there: give another one")
        return manifest if manifest.parts == self._parts else Manifest()

    def _write(self, versions: list[Version], patch: bytes = b"") -> None:
        """Write patch and anchor of the last one, then the manifest; remove what that lacks."""
        version = versions[-1]
        if patch:
            name = version.name(self._part, "gwdl")
            self._store.put(name, lambda path: _files.write(path, patch))
        if version.anchor:
            anchor: Any = self._copy
            name = version.name(self._part, "safetensors")
            self._store.put(name, lambda path: weights.save(path, anchor, lossless=True))
            anchors = [i for i, each in enumerate(versions) if each.anchor]
            versions = versions[anchors[-self._keep :][0] :]
        Manifest(self._writer, self._parts, versions).write(self._store, self._part)
        self._pushed = True
        if version.anchor:
            names = {
                each.name(self._part, kind) for each in versions for kind in ("gwdl", "safetensors")
            }
            for name in self._store.names():
                if name.startswith(f"part-{self._part}-") and name not in names:
                    with contextlib.suppress(OSError):  # the next time
                        self._store.remove(name)

    def close(self) -> None:
        """Let another publisher have the folder."""
        self._locked.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
