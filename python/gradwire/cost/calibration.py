"""The cost of codecs on a machine: lines fitted to timed encodes and decodes, and their file."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from gradwire import _files, _validate
from gradwire._codec import Codec

VERSION = 1
"""Version of the dict that `Calibration.to_json` returns."""
_LARGEST = 1 << 24
"""Bytes of a file."""


@dataclasses.dataclass(frozen=True)
class Line:
    """Seconds of a tensor: ``frames * fixed + numel * per_numel + entries * per_entry``."""

    fixed: float  #: Seconds of a frame, not negative.
    per_numel: float  #: Seconds of an entry of the tensor, not negative.
    per_entry: float  #: Seconds of an entry that is sent, not negative.
    error: float = 0.0  #: The largest relative error at the points that it was fitted to.

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            _validate.positive(name, value)

    def __call__(self, numel: float, entries: float, frames: float = 1) -> float:
        """Return the seconds for a tensor of ``numel`` entries that sends ``entries``."""
        return frames * self.fixed + numel * self.per_numel + entries * self.per_entry


@dataclasses.dataclass(frozen=True)
class CodecCost:
    """The cost of one codec.

    Attributes
    ----------
    codec : Codec
        The codec. The measurements also hold for its other ratios.
    encode : Line
        Seconds of an encode.
    decode : Line
        Seconds of adding a decoded frame to a tensor.
    header : float
        Bytes of a frame without entries.
    entry_bits : float
        Bits per entry, without the information bound of its position.
    share : float
        Share of the entries that is sent: the ratio, or without one that of the calibration data.
    state_bytes : float
        Bytes of state per entry of a tensor.
    """

    codec: Codec
    encode: Line
    decode: Line
    header: float
    entry_bits: float
    share: float
    state_bytes: float

    def __post_init__(self) -> None:
        for name in ("header", "entry_bits", "state_bytes"):
            _validate.positive(name, getattr(self, name))
        _validate.unit_interval("share", self.share)

    def to_json(self) -> dict[str, Any]:
        """Return plain dicts, strings and numbers."""
        lines = {name: dataclasses.asdict(getattr(self, name)) for name in ("encode", "decode")}
        return {**vars(self), **lines, "codec": self.codec.get_config()}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """Return the cost that `to_json` describes."""
        lines = {name: Line(**plain[name]) for name in ("encode", "decode")}
        return cls(**{**plain, **lines, "codec": Codec.from_config(plain["codec"])})


@dataclasses.dataclass(frozen=True)
class Calibration:
    """The cost of codecs on one machine.

    Attributes
    ----------
    codecs : mapping of str to CodecCost
        Costs of the codecs, by name.
    cast_seconds : float
        Seconds per entry of the casts to bfloat16 and back.
    clear_seconds : float
        Seconds per entry of writing zeros.
    threads : int
        Threads of an encode.
    machine : mapping of str to str
        Its processor and SIMD level.
    """

    codecs: Mapping[str, CodecCost]
    cast_seconds: float
    clear_seconds: float
    threads: int
    machine: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("cast_seconds", "clear_seconds"):
            _validate.positive(name, getattr(self, name))
        _validate.integer("threads", self.threads, low=1)

    def to_json(self) -> dict[str, Any]:
        """Return plain dicts, strings and numbers, for `from_json`."""
        codecs = {name: each.to_json() for name, each in self.codecs.items()}
        return {"version": VERSION, **vars(self), "codecs": codecs, "machine": dict(self.machine)}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """Return the calibration that `to_json` describes.

        Parameters
        ----------
        plain : dict
            The result of `to_json`.

        Raises
        ------
        ValueError
            It is no calibration, or one of another version.
        """
        if not isinstance(plain, dict) or "version" not in plain:
            raise ValueError("not a calibration: gradwire.cost.Calibration.save writes them")
        if plain["version"] != VERSION:
            raise ValueError(
                f"the calibration has version {plain['version']!r}, but this gradwire reads "
                f"{VERSION}: calibrate again"
            )
        rest = {name: value for name, value in plain.items() if name != "version"}
        try:
            codecs = {name: CodecCost.from_json(each) for name, each in rest["codecs"].items()}
            return cls(**{**rest, "codecs": codecs})
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not a calibration: {error}; calibrate again") from error

    def save(self, path: str | Path) -> None:
        """Write the calibration to a file as JSON.

        Parameters
        ----------
        path : str or path-like
            The file, which is replaced once the new one is complete.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        text = json.dumps(self.to_json(), indent=1, allow_nan=False)
        _files.write(path, text + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file that `save` wrote.

        Parameters
        ----------
        path : str or path-like
            The file.

        Raises
        ------
        ValueError
            The file has no calibration.
        OSError
            The file cannot be read.
        """
        try:
            return cls.from_json(_files.read_json(path, _LARGEST))
        except ValueError as error:
            raise ValueError(f"{path} has no calibration: {str(error)[:300]}") from error


def line(points: list[tuple[float, float, float]]) -> Line:
    """Fit seconds to points (numel, entries, seconds), by least squares of relative errors.

    No coefficient is negative: of all choices of coefficients, the best feasible one.
    """
    table = np.array(points, np.float64)
    columns = np.column_stack([np.ones(len(table)), table[:, 0], table[:, 1]]) / table[:, 2:]
    best, least = np.zeros(3), math.inf
    for choice in range(1, 8):
        chosen = [at for at in range(3) if choice >> at & 1]
        found = np.linalg.lstsq(columns[:, chosen], np.ones(len(table)), rcond=None)[0]
        whole = np.zeros(3)
        whole[chosen] = found
        squares = float(np.square(columns @ whole - 1).sum())
        if (found >= 0).all() and squares < least:
            best, least = whole, squares
    fixed, per_numel, per_entry = best.tolist()
    return Line(fixed, per_numel, per_entry, float(np.abs(columns @ best - 1).max()))
