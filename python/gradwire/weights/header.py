"""The headers of safetensors files, with their dtypes, and the metadata of packed tensors."""

import base64
import dataclasses
import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire._validate import MAX_NUMEL
from gradwire.errors import CorruptFileError
from gradwire.weights import coding
from gradwire.weights.packed import DTYPES

KEY = "gradwire"
VERSION = 1

PACKED = "U8"
MORE = ".more.0"

MOST_BASES = 16
"""Bases that a file of differences may have, one after the other."""

MOST_HEADER = 100 << 20  # what the safetensors library reads at most

MOST_ORIGINAL = 16
"""Bytes of an original header for each byte of the header that holds it."""

MOST_PARENTS = 2
"""Folders that the name of a base may lead up: ``../../version_0/checkpoints/a.safetensors``."""

_MOST_BYTES = 1 << 62  # of a tensor, if its dimensions of no entries are left out

_DTYPES = {
    name: np.dtype(code).newbyteorder("<")
    for name, code in {
        "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "u2", "I16": "i2", "F16": "f2", "U32": "u4",
        "I32": "i4", "F32": "f4", "U64": "u8", "I64": "i8", "F64": "f8", "C64": "c8",
    }.items()
}  # fmt: skip
_FURTHER = {
    "BF16": "bfloat16",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
}
"""Those that numpy has by ml_dtypes alone."""

DTYPE_NAMES = {**{name: dtype.name for name, dtype in _DTYPES.items()}, **_FURTHER}
"""Names of dtypes in numpy and torch by those in files."""

_SMALL = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
"""Bits of dtypes whose entries share bytes, for which numpy has no arrays."""

NAMES = {dtype: name for name, dtype in coding.FORMATS.items()}


def dtype_named(name: str) -> np.dtype[Any] | None:
    """Return numpy's dtype for a name in files, such as ``"BF16"``; None if it has none."""
    if name not in _FURTHER:
        return _DTYPES.get(name)
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
        bits, entries, (begin, end) = bits_of(self.dtype), math.prod(self.shape), self.range
        if math.prod(n for n in self.shape if n) * (bits or 8) // 8 > _MOST_BYTES:
            raise CorruptFileError(f"its shape {self.shape} cannot be addressed", name)
        # A dtype that this library does not know is stored as it is, in any number of bytes.
        if bits is not None and 8 * (end - begin) != entries * bits:
            raise CorruptFileError(
                f"{entries} entries of {self.dtype} are not at {begin} to {end}", name
            )


@dataclasses.dataclass(frozen=True, eq=False)
class RawTensor:
    """A tensor of a dtype that numpy lacks, such as F4, F6 or one of a newer safetensors.

    Parameters
    ----------
    dtype : str
        Its name in files, such as ``"F4"``.
    shape : tuple of int
        In entries, also of dtypes with fewer than 8 bits: two of ``"F4"`` share a byte.
    data : numpy.ndarray
        uint8, one dimension: the bytes as they are in files.

    Raises
    ------
    ValueError
        ``data`` is not uint8 of one dimension, or has another number of bytes than the shape needs.
    """

    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    def __post_init__(self) -> None:
        bits, entries = bits_of(self.dtype), math.prod(self.shape)
        if self.data.dtype != np.uint8 or self.data.ndim != 1:
            raise ValueError(f"data must be uint8 of one dimension, got {self.data.dtype}")
        if bits is not None and 8 * self.nbytes != bits * entries:
            raise ValueError(
                f"{entries} entries of {self.dtype} take {bits * entries} bits, got {self.nbytes} "
                "bytes"
            )

    def __repr__(self) -> str:
        """Dtype, shape and bytes."""
        return f"RawTensor({self.dtype!r}, {self.shape}, {self.nbytes} bytes)"

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.data.nbytes

    def array(self) -> "NDArray[Any] | RawTensor":
        """Return the tensor as an array, which shares its memory if that is aligned.

        A tensor whose dtype numpy lacks is returned as it is; bfloat16 and float8 need ml_dtypes.
        """
        if (dtype := dtype_named(self.dtype)) is None:
            return self
        array = self.data.view(dtype).reshape(self.shape)
        return array if array.flags.aligned else array.copy()


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

    def refused(constant: str) -> None:
        raise ValueError(f"{constant} is no number of JSON")

    try:
        text = data.decode() if isinstance(data, bytes) else data
        fields = json.loads(text, object_pairs_hook=unique, parse_constant=refused)
        if "\\u" in text:  # half of a surrogate pair, as "\\ud800", is no character
            json.dumps(fields, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{what} is not JSON: {error!s:.200}") from None
    if not isinstance(fields, dict):
        raise CorruptFileError(f"{what} is not a JSON object")
    return fields


def check_version(about: Mapping[str, Any], of: str) -> None:
    """Raise a CorruptFileError unless a description is of the version that is read here."""
    if type(version := about.get("version")) is not int or version != VERSION:
        raise CorruptFileError(
            f"{of} have version {version!r:.100}, but this library reads {VERSION}: update gradwire"
        )


@dataclasses.dataclass(frozen=True)
class About:
    """The metadata of packed and coded tensors, of a base, and of an original header."""

    tensors: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    base: dict[str, str] | None = None
    header: str | None = None
    """A zlib stream in base64, see `original_header`."""


@dataclasses.dataclass(frozen=True)
class Header:
    """What the header of a file says."""

    sections: dict[str, Section]
    metadata: dict[str, str]
    """Without what describes packed tensors."""
    about: About
    end: int
    """Bytes of all tensors."""


def parse(header: bytes) -> Header:
    """Read and check the header of a file; raise a CorruptFileError if it is not valid."""
    fields = parse_json(header, "the header")
    metadata = fields.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise CorruptFileError("__metadata__ is not a JSON object")
    if strange := [key for key, value in metadata.items() if not isinstance(value, str)]:
        raise CorruptFileError(f"the metadata {strange[0]!r} is not a string")
    sections = {name: Section(name, entry) for name, entry in fields.items()}
    end = 0
    for name, section in sorted(sections.items(), key=lambda item: item[1].range):
        if section.range[0] != end:
            raise CorruptFileError(f"it begins at {section.range[0]} instead of {end}", name)
        end = section.range[1]
    return Header(sections, metadata, _about(metadata.pop(KEY, None), sections), end)


def _about(text: str | None, sections: Mapping[str, Section]) -> About:
    if text is None:
        return About()
    about = parse_json(text, f"metadata {KEY!r}")
    check_version(about, "packed tensors")
    if not isinstance(tensors := about.get("tensors"), dict):
        raise CorruptFileError(f"metadata {KEY!r} lists no tensors")
    table = {name: _described(name, fields, sections) for name, fields in tensors.items()}
    for name, fields in table.items():
        if fields["more"] and name + MORE in table:
            raise CorruptFileError(f"it is listed beside {name!r}, whose further bits it is", name)
    base = _base(about["base"]) if "base" in about else None
    if base is None and any(fields["coding"] == "difference" for fields in table.values()):
        raise CorruptFileError("there are differences, and no base")
    header = about.get("header")
    if "header" in about and not isinstance(header, str):
        raise CorruptFileError(f"the original header is {header!r:.100}, not a string")
    return About(table, base, header)


def _described(name: str, fields: Any, sections: Mapping[str, Section]) -> dict[str, Any]:
    if not isinstance(fields, dict):
        raise CorruptFileError("the metadata does not describe it", name)
    shape, dtype = _shape(fields.get("shape"), name), fields.get("dtype")
    if dtype not in DTYPES:
        raise CorruptFileError(f"its dtype is {dtype!r:.100}", name)
    have, numel = _bytes_named(name, sections), math.prod(shape)
    if "coding" not in fields:
        if not 1 <= numel <= MAX_NUMEL:
            raise CorruptFileError(f"its shape {shape} has not 1 to {MAX_NUMEL} entries", name)
        return {"shape": shape, "dtype": dtype, "coding": None} | _packed(name, fields, sections)
    if (how := fields["coding"]) not in coding.CODINGS:
        raise CorruptFileError(f"its coding is {how!r:.100}", name)
    if have < coding.least(numel * (bits_of(NAMES[dtype]) or 0) // 8):
        raise CorruptFileError(f"{have} bytes do not hold {numel} entries", name)
    return {"shape": shape, "dtype": dtype, "coding": how, "more": 0}


def _bytes_named(name: str, sections: Mapping[str, Section]) -> int:
    section = sections.get(name)
    if section is None or section.dtype != PACKED or len(section.shape) != 1:
        raise CorruptFileError(f"there are no bytes named {name!r}", name)
    return section.shape[0]


def _packed(
    name: str, fields: Mapping[str, Any], sections: Mapping[str, Section]
) -> dict[str, Any]:
    more, error = 0, fields.get("error", 0)
    if "further" in fields:
        further = fields["further"]
        if not _are_whole(further) or len(further) != 1 or not 1 <= further[0] <= 7:
            raise CorruptFileError(f"its further bits are {further!r:.100}", name)
        _bytes_named(name + MORE, sections)
        more = further[0]
    if type(error) not in (int, float) or not 0 <= error < math.inf:
        raise CorruptFileError(f"its error is {error!r:.100}", name)
    return {"more": more, "error": fields.get("error")}


def _base(given: Any) -> dict[str, str]:
    fields = given if isinstance(given, dict) else {}
    name, digest = fields.get("name"), fields.get("sha256")
    if not isinstance(name, str) or not is_base_name(name):
        raise CorruptFileError(f"the name of its base is {name!r:.100}")
    if not isinstance(digest, str) or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise CorruptFileError(f"the SHA-256 of its base is {digest!r:.100}")
    return {"name": name, "sha256": digest}


def is_base_name(name: str) -> bool:
    """Return whether this may be the name of a base: a file of this folder, or of one near it.

    ``../checkpoint-100/model.safetensors`` may; ``/etc/x``, ``../../../x`` and ``a/../x`` may not.
    """
    parts = name.split("/")
    up = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    down = {*parts[up:]}
    return up <= MOST_PARENTS and bool(down) and not (down & {"", ".", ".."} or {*name} & {*"\\\0"})


def original_header(text: str, most: int) -> bytes:
    """Return the original header, of at most so many bytes, that the metadata holds."""
    try:
        reader = zlib.decompressobj()
        header = reader.decompress(base64.b64decode(text, validate=True), most)
        if not reader.eof or reader.unused_data:
            raise ValueError(f"it is truncated, or longer than {most} bytes")
    except (ValueError, zlib.error) as error:
        raise CorruptFileError(f"the original header is not as it was written: {error}") from None
    return header
