"""The headers of safetensors files, with their dtypes, and the metadata of packed tensors."""

import base64
import dataclasses
import json
import math
import re
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire._validate import MAX_NUMEL, require
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
    names = [name for name, known in _DTYPES.items() if known == dtype.newbyteorder("<")]
    names += [name for name, known in _FURTHER.items() if known == dtype.name]
    return names[0] if names else None


def bits_of(name: str) -> int | None:
    """Return the bits of an entry of a dtype in files; None if the name is not known."""
    if name in _DTYPES:
        return 8 * int(_DTYPES[name].itemsize)
    return _SMALL.get(name) or (None if name not in _FURTHER else 16 if name == "BF16" else 8)


def require_valid(holds: object, reason: str, *values: object, name: str | None = None) -> None:
    """Raise a CorruptFileError, of a tensor if it is named, unless something holds of a file.

    Values are formatted only then: they may be as long as the file says.
    """
    if not holds:
        raise CorruptFileError(reason.format(*values), name)


class Section:
    """The entry of one tensor in the header."""

    def __init__(self, name: str, fields: Any) -> None:
        known = isinstance(fields, dict) and fields.keys() == {"dtype", "shape", "data_offsets"}
        require_valid(known, "the header does not give dtype, shape and data_offsets", name=name)
        self.dtype, self.range = fields["dtype"], fields["data_offsets"]
        self.shape = _shape(fields["shape"], name)
        require_valid(isinstance(self.dtype, str), "its dtype is {!r:.100}", self.dtype, name=name)
        ordered = (
            _are_whole(self.range) and len(self.range) == 2 and self.range == sorted(self.range)
        )
        require_valid(ordered, "data_offsets are {!r:.100}", self.range, name=name)
        bits, entries, (begin, end) = bits_of(self.dtype), math.prod(self.shape), self.range
        reach = math.prod(n for n in self.shape if n) * (bits or 8) // 8
        require_valid(
            reach <= _MOST_BYTES, "its shape {} cannot be addressed", self.shape, name=name
        )
        # A dtype that this library does not know is stored as it is, in any number of bytes.
        fits = bits is None or 8 * (end - begin) == entries * bits
        place = (entries, self.dtype, begin, end)
        require_valid(fits, "{} entries of {} are not at {} to {}", *place, name=name)


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
        data = self.data
        is_flat = data.dtype == np.uint8 and data.ndim == 1
        require(is_flat, "data must be uint8 of one dimension, got {}", data.dtype)
        require(
            bits is None or 8 * self.nbytes == bits * entries,
            "{} entries of {} take {} bits, got {} bytes",
            *(entries, self.dtype, (bits or 0) * entries, self.nbytes),
        )

    def __repr__(self) -> str:
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


def _shape(sizes: Any, name: str) -> tuple[int, ...]:
    require_valid(
        _are_whole(sizes) and len(sizes) <= 64, "its shape is {!r:.100}", sizes, name=name
    )
    return tuple(sizes)


def _are_whole(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(type(n) is int and 0 <= n < 2**63 for n in numbers)


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
    require_valid(isinstance(fields, dict), "{} is not a JSON object", what)
    return dict(fields)


def check_version(about: Mapping[str, Any], of: str) -> None:
    """Raise a CorruptFileError unless a description is of the version that is read here."""
    version = about.get("version")
    require_valid(
        type(version) is int and version == VERSION,
        "{} have version {!r:.100}, but this library reads {}: update gradwire",
        *(of, version, VERSION),
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
    require_valid(isinstance(metadata, dict), "__metadata__ is not a JSON object")
    for key, value in metadata.items():
        require_valid(isinstance(value, str), "the metadata {!r} is not a string", key)
    sections = {name: Section(name, entry) for name, entry in fields.items()}
    end = 0
    for name, section in sorted(sections.items(), key=lambda item: item[1].range):
        begin, after = section.range
        require_valid(begin == end, "it begins at {} instead of {}", begin, end, name=name)
        end = after
    return Header(sections, metadata, _about(metadata.pop(KEY, None), sections), end)


def _about(text: str | None, sections: Mapping[str, Section]) -> About:
    if text is None:
        return About()
    about = parse_json(text, f"metadata {KEY!r}")
    check_version(about, "packed tensors")
    tensors: Any = about.get("tensors")
    require_valid(isinstance(tensors, dict), "metadata {!r} lists no tensors", KEY)
    table = {name: _read_entry(name, fields, sections) for name, fields in tensors.items()}
    for name, fields in table.items():
        alone = not fields["more"] or name + MORE not in table
        require_valid(alone, "it is listed beside {!r}, whose further bits it is", name, name=name)
    base = _base(about["base"]) if "base" in about else None
    differs = any(fields["coding"] == "difference" for fields in table.values())
    require_valid(base is not None or not differs, "there are differences, and no base")
    header = about.get("header")
    is_text = isinstance(header, str) or "header" not in about
    require_valid(is_text, "the original header is {!r:.100}, not a string", header)
    return About(table, base, header)


def _read_entry(name: str, fields: Any, sections: Mapping[str, Section]) -> dict[str, Any]:
    require_valid(isinstance(fields, dict), "the metadata does not describe it", name=name)
    shape, dtype = _shape(fields.get("shape"), name), fields.get("dtype")
    require_valid(dtype in DTYPES, "its dtype is {!r:.100}", dtype, name=name)
    have, numel = _length_of(name, sections), math.prod(shape)
    if "coding" not in fields:
        fits = 1 <= numel <= MAX_NUMEL
        require_valid(fits, "its shape {} has not 1 to {} entries", shape, MAX_NUMEL, name=name)
        return {"shape": shape, "dtype": dtype, "coding": None} | _read_packed(
            name, fields, sections
        )
    how = fields["coding"]
    require_valid(how in coding.CODINGS, "its coding is {!r:.100}", how, name=name)
    least = coding.least(numel * (bits_of(NAMES[dtype]) or 0) // 8)
    require_valid(have >= least, "{} bytes do not hold {} entries", have, numel, name=name)
    return {"shape": shape, "dtype": dtype, "coding": how, "more": 0}


def _length_of(name: str, sections: Mapping[str, Section]) -> int:
    section = sections.get(name)
    if section is not None and section.dtype == PACKED and len(section.shape) == 1:
        return section.shape[0]
    raise CorruptFileError(f"there are no bytes named {name!r}", name)


def _read_packed(
    name: str, fields: Mapping[str, Any], sections: Mapping[str, Section]
) -> dict[str, Any]:
    more, error = 0, fields.get("error", 0)
    if "further" in fields:
        further = fields["further"]
        known = _are_whole(further) and len(further) == 1 and 1 <= further[0] <= 7
        require_valid(known, "its further bits are {!r:.100}", further, name=name)
        _length_of(name + MORE, sections)
        more = further[0]
    finite = type(error) in (int, float) and 0 <= error < math.inf
    require_valid(finite, "its error is {!r:.100}", error, name=name)
    return {"more": more, "error": fields.get("error")}


def _base(about: Any) -> dict[str, str]:
    fields = about if isinstance(about, dict) else {}
    name, digest = fields.get("name"), fields.get("sha256")
    named = isinstance(name, str) and is_base_name(name)
    require_valid(named, "the name of its base is {!r:.100}", name)
    hashed = isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest) is not None
    require_valid(hashed, "the SHA-256 of its base is {!r:.100}", digest)
    return {"name": str(name), "sha256": str(digest)}


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
