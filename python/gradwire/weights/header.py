"""The headers of safetensors files, with the metadata of packed and coded tensors."""

import base64
import dataclasses
import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from gradwire._validate import MAX_NUMEL
from gradwire.errors import CorruptFileError
from gradwire.weights import coding
from gradwire.weights.packed import DTYPES

KEY = "gradwire"
VERSION = 1
CODED_VERSION = 2
"""Of files whose tensors are codes without loss."""

PACKED = "U8"
MORE = ".more.0"

MOST_BASES = 16
"""Bases that a file of differences may have, one after the other."""

MOST_HEADER = 100 << 20  # what the safetensors library reads at most
_NAMES: dict[str, Any] = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "F16": np.float16,
    "U32": np.uint32,
    "I32": np.int32,
    "F32": np.float32,
    "U64": np.uint64,
    "I64": np.int64,
    "F64": np.float64,
    "C64": np.complex64,
}
_DTYPES = {name: np.dtype(dtype).newbyteorder("<") for name, dtype in _NAMES.items()}
_FURTHER = {
    "BF16": "bfloat16",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
}
"""Those that numpy has by ml_dtypes alone."""

_SMALL = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
"""Bits of dtypes whose entries share bytes, for which numpy has no arrays."""

NAMES = {dtype: name for name, dtype in coding.FORMATS.items()}


def dtype_named(name: str) -> np.dtype[Any] | None:
    """Return numpy's dtype for a name in files, such as ``"BF16"``; None if it has none.

    Raises
    ------
    ImportError
        The dtype needs ml_dtypes, which is not installed.
    """
    found: np.dtype[Any] | None = _DTYPES.get(name)
    if name not in _FURTHER:
        return found
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError(f"{name} needs ml_dtypes: pip install ml-dtypes") from None
    further: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _FURTHER[name]))
    return further


def name_of(dtype: np.dtype[Any]) -> str | None:
    """Return the name of a dtype in files; None if they cannot hold it."""
    names = [name for name, each in _DTYPES.items() if each == dtype.newbyteorder("<")]
    names += [name for name, each in _FURTHER.items() if each == dtype.name]
    return names[0] if names else None


def bits_of(name: str) -> int | None:
    """Return the bits of an entry of a dtype in files; None if the name is not known."""
    if name in _DTYPES:
        return 8 * int(_DTYPES[name].itemsize)
    return _SMALL.get(name) or (None if name not in _FURTHER else 16 if name == "BF16" else 8)


class Section:
    """The entry of one tensor in the header."""

    def __init__(self, name: str, fields: Any) -> None:
        if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
            raise CorruptFileError("the header does not give dtype, shape and data_offsets", name)
        self.dtype, self.range = fields["dtype"], fields["data_offsets"]
        self.shape = _shape(fields["shape"], name)
        if not isinstance(self.dtype, str):
            raise CorruptFileError(f"its dtype is {self.dtype!r:.100}", name)
        if not _are_whole(self.range) or len(self.range) != 2 or self.range[0] > self.range[1]:
            raise CorruptFileError(f"data_offsets are {self.range!r:.100}", name)
        # A dtype that this library does not know is stored as it is, in any number of bytes.
        bits, entries, (begin, end) = bits_of(self.dtype), math.prod(self.shape), self.range
        if bits is not None and 8 * (end - begin) != entries * bits:
            raise CorruptFileError(
                f"{entries} entries of {self.dtype} are not at {begin} to {end}", name
            )


def check_places(sections: Mapping[str, Section]) -> int:
    """Check that tensors follow each other, and return where the last one ends."""
    end = 0
    for name, section in sorted(sections.items(), key=lambda item: item[1].range):
        if section.range[0] != end:
            raise CorruptFileError(f"it begins at {section.range[0]} instead of {end}", name)
        end = section.range[1]
    return end


def _shape(given: Any, name: str) -> tuple[int, ...]:
    if not _are_whole(given) or len(given) > 64:
        raise CorruptFileError(f"its shape is {given!r:.100}", name)
    return tuple(given)


def _are_whole(given: Any) -> bool:
    return isinstance(given, list) and all(type(n) is int and 0 <= n < 2**63 for n in given)


def parse_json(data: bytes | str, what: str) -> dict[str, Any]:
    """Return a JSON object, or raise a CorruptFileError that names its source."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            raise ValueError("a name occurs twice")
        return fields

    try:
        text = data.decode() if isinstance(data, bytes) else data
        fields = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{what} is not JSON: {error!s:.200}") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("__metadata__", {}), dict):
        raise CorruptFileError(f"{what} is not a JSON object")
    return fields


@dataclasses.dataclass(frozen=True)
class About:
    """The metadata of packed and coded tensors, of a base, and of an original header."""

    tensors: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    base: dict[str, str] | None = None
    header: bytes | None = None


def read_about(text: str | None, sections: Mapping[str, Section]) -> About:
    """Read and check the metadata of a file with these sections."""
    if text is None:
        return About()
    about = parse_json(text, f"metadata {KEY!r}")
    version = about.get("version")
    if version not in (VERSION, CODED_VERSION) or isinstance(version, bool):
        raise CorruptFileError(
            f"packed tensors have version {version!r}, but this library reads {VERSION} and "
            f"{CODED_VERSION}: update gradwire"
        )
    if not isinstance(tensors := about.get("tensors"), dict):
        raise CorruptFileError(f"metadata {KEY!r} lists no tensors")
    table = {}
    for name, fields in tensors.items():
        if not isinstance(fields, dict):
            raise CorruptFileError("the metadata does not describe it", name)
        shape = _shape(fields.get("shape"), name)
        if fields.get("dtype") not in DTYPES:
            raise CorruptFileError(f"its dtype is {fields.get('dtype')!r:.100}", name)
        how = fields.get("coding") if version == CODED_VERSION else None
        if how not in (None, *coding.CODINGS):
            raise CorruptFileError(f"its coding is {how!r:.100}", name)
        table[name] = {"shape": shape, "dtype": fields["dtype"], "coding": how}
        table[name] |= {"more": 0} if how else _packed(name, shape, fields, sections)
        if name not in sections or sections[name].dtype != PACKED:
            raise CorruptFileError(f"there are no bytes named {name!r}", name)
    base = _base(about.get("base")) if version == CODED_VERSION else None
    if base is None and any(fields["coding"] == "difference" for fields in table.values()):
        raise CorruptFileError("there are differences, and no base")
    return About(table, base, _original(about.get("header")) if version == CODED_VERSION else None)


def _packed(
    name: str, shape: tuple[int, ...], fields: Mapping[str, Any], sections: Mapping[str, Section]
) -> dict[str, Any]:
    if math.prod(shape) > MAX_NUMEL:
        raise CorruptFileError(f"its shape {shape} has more than {MAX_NUMEL} entries", name)
    further = fields.get("further", [])
    if not _are_whole(further) or len(further) > 1 or not all(1 <= n <= 7 for n in further):
        raise CorruptFileError(f"its further bits are {further!r:.100}", name)
    error = fields.get("error")
    if not (error is None or (type(error) in (int, float) and error >= 0)):
        raise CorruptFileError(f"its error is {error!r:.100}", name)
    there = getattr(sections.get(name + MORE), "dtype", None) == PACKED
    if further and not there:
        raise CorruptFileError(f"there are no bytes named {name + MORE!r}", name)
    if there and not further:
        raise CorruptFileError("there are further bits that it does not announce", name)
    return {"more": further[0] if further else 0, "error": error}


def _base(given: Any) -> dict[str, str] | None:
    if given is None:
        return None
    fields = given if isinstance(given, dict) else {}
    name, digest = fields.get("name"), fields.get("sha256")
    if not isinstance(name, str) or name in ("", ".", "..") or set(name) & set("/\\\0"):
        raise CorruptFileError(f"the name of its base is {name!r:.100}")
    if not isinstance(digest, str) or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise CorruptFileError(f"the SHA-256 of its base is {digest!r:.100}")
    return {"name": name, "sha256": digest}


def _original(given: Any) -> bytes | None:
    if given is None:
        return None
    try:
        reader = zlib.decompressobj()
        header = reader.decompress(base64.b64decode(given, validate=True), MOST_HEADER)
        if not reader.eof or reader.unused_data:
            raise ValueError("it is truncated")
    except (ValueError, TypeError, zlib.error) as error:
        raise CorruptFileError(f"the original header is not as it was written: {error}") from None
    return header
