"""Files of packed and other tensors: safetensors files, of which nothing is read before its use."""

import builtins
import json
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gradwire import _files
from gradwire._validate import MAX_NUMEL
from gradwire.errors import CorruptFileError, GradwireError
from gradwire.frame import Frame
from gradwire.weights.packed import DTYPES, Packed

KEY = "gradwire"
VERSION = 1

_MOST_HEADER = 100 << 20  # what the safetensors library reads at most
_PACKED = "U8"
_MORE = ".more.0"
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
_FURTHER = {"BF16": "bfloat16", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn"}
"""Those that numpy has by ml_dtypes alone."""

Tensor = Packed | NDArray[Any]


def dtype_named(name: str) -> np.dtype[Any]:
    """Return numpy's dtype of a name in files, as ``"BF16"``.

    Raises
    ------
    ImportError
        numpy has it by ml_dtypes alone, which is not installed.
    """
    if name not in _FURTHER:
        found: np.dtype[Any] = _DTYPES[name]
        return found
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError(f"{name} needs ml_dtypes: pip install ml-dtypes") from None
    further: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _FURTHER[name]))
    return further


def _name_of(dtype: np.dtype[Any]) -> str | None:
    names = [name for name, each in _DTYPES.items() if each == dtype.newbyteorder("<")]
    names += [name for name, each in _FURTHER.items() if each == dtype.name]
    return names[0] if names else None


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a safetensors file of packed and other tensors.

    It is written beside the target, and takes its place when it is complete and on the disk.
    Tensors are taken from the mapping one at a time.

    Parameters
    ----------
    path : path-like
        The target; what was there is replaced.
    tensors : mapping of str to Packed or numpy.ndarray
        Arrays of any dtype that safetensors knows.
    metadata : mapping of str to str, optional
        Further entries of the file's ``__metadata__``.

    Raises
    ------
    TypeError
        An array has a dtype that such files cannot hold.
    ValueError
        A name is used twice, as by the further bits of another tensor, or the metadata has the key
        ``"gradwire"``.
    OSError
        The file cannot be written; what was there is as it was.
    """
    sections: dict[str, Any] = {}
    table, at = {}, 0
    if metadata and KEY in metadata:
        raise ValueError(f"the key {KEY!r} of the metadata is taken")

    def add(name: str, dtype: str, shape: tuple[int, ...], nbytes: int) -> None:
        nonlocal at
        if name in sections or name == "__metadata__":
            raise ValueError(f"the name {name!r} is taken")
        sections[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes

    for name, tensor in tensors.items():
        if isinstance(tensor, Packed):
            table[name] = _described(tensor)
            nbytes = memoryview(tensor.frame).nbytes
            add(name, _PACKED, (nbytes,), nbytes)
            if name + _MORE in tensors:
                raise ValueError(f"the name {name + _MORE!r} is taken")
            if tensor.further is not None:
                nbytes = memoryview(tensor.further).nbytes
                add(name + _MORE, _PACKED, (nbytes,), nbytes)
        else:
            known = _name_of(np.dtype(tensor.dtype))
            if known is None:
                raise TypeError(f"{name!r} is of {tensor.dtype}, which such a file cannot hold")
            add(name, known, tensor.shape, tensor.nbytes)
    about = dict(metadata or {})
    if table:
        about[KEY] = json.dumps({"version": VERSION, "tensors": table})
    header = json.dumps({"__metadata__": about, **sections} if about else sections).encode()
    header += b" " * (-len(header) % 8)
    with _files.replacing(path) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name in tensors:
            for part in _parts(tensors[name]):
                file.write(part)
        file.flush()
        if file.seekable():
            os.fsync(file.fileno())


def _described(tensor: Packed) -> dict[str, Any]:
    fields: dict[str, Any] = {"shape": tensor.shape, "dtype": tensor.dtype}
    if tensor.more:
        fields["further"] = [tensor.more]
    if tensor.measured is not None and math.isfinite(tensor.measured):
        fields["error"] = float(f"{tensor.measured:.4g}")
    return fields


def _parts(tensor: Tensor) -> Iterator[Any]:
    if not isinstance(tensor, Packed):
        array = np.ascontiguousarray(tensor, np.dtype(tensor.dtype).newbyteorder("<"))
        yield array.reshape(-1).view(np.uint8)
        return
    yield tensor.frame
    if tensor.further is not None:
        yield tensor.further


class File(Mapping[str, Tensor]):
    """The tensors of a safetensors file, by name; what `open` returns.

    Packed tensors are `Packed`, others arrays, both in the memory of the file: nothing is copied,
    and pages that nobody uses are not read. A packed tensor is checked when it is first asked for:
    its lengths, shape and checksum (further codes, when they are used). Other tensors have none.
    They stay valid after `close`, as long as nobody cuts the file.

    Attributes
    ----------
    metadata : dict of str to str
        The file's ``__metadata__``, without what describes packed tensors.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._file = builtins.open(path, "rb")  # noqa: SIM115
        try:
            self._read_header()
        except BaseException:
            self._file.close()
            raise
        self._checked: dict[str, Packed] = {}

    def _read_header(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        length = int.from_bytes(self._file.read(8), "little")
        if size < 8 or not 2 <= length <= min(size - 8, _MOST_HEADER):
            raise CorruptFileError(f"a header of {length} bytes does not fit in {size} bytes")
        header = parse_json(self._file.read(length), "the header")
        self._start = 8 + length
        about = header.pop("__metadata__", {})
        if not all(isinstance(value, str) for value in about.values()):
            raise CorruptFileError("the metadata has a value that is not a string")
        self._sections = {name: _Section(name, fields) for name, fields in header.items()}
        end = 0
        for name, section in sorted(self._sections.items(), key=lambda item: item[1].range):
            if section.range[0] != end:
                raise CorruptFileError(f"it begins at {section.range[0]} instead of {end}", name)
            end = section.range[1]
        if self._start + end != size:
            raise CorruptFileError(f"tensors end at {self._start + end}, the file at {size}")
        self._table = _read_table(about.pop(KEY, None), self._sections)
        self.metadata = about
        self._further = {name + _MORE for name, fields in self._table.items() if fields["more"]}
        self._map = memoryview(b"")
        if end:
            # Private pages: torch takes only memory that could be written to.
            self._map = memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY))

    def __getitem__(self, name: str) -> Tensor:
        """Return a tensor.

        Raises
        ------
        KeyError
            There is none of this name.
        ImportError
            It is of bfloat16 or float8, and ml_dtypes is not installed.
        CorruptFileError
            It is not what the file says of it, or the file was cut.
        """
        if name in self._further:
            raise KeyError(name)
        if name not in self._table:
            section = self._sections[name]
            array = np.frombuffer(self._bytes(name), dtype_named(section.dtype))
            return array.reshape(section.shape)
        if name not in self._checked:
            fields, frame = self._table[name], self._bytes(name)
            shape, more = fields["shape"], fields["more"]
            further = self._bytes(name + _MORE) if more else None
            try:
                packed = Packed(frame, shape, fields["dtype"], further, more, fields["error"])
                Frame(frame, max_numel=max(math.prod(shape), 1))
            except GradwireError as error:
                raise CorruptFileError(str(error), name) from None
            expected = 4 + (math.prod(shape) * more + 7) // 8
            if further is not None and (packed.bits > 8 or further.nbytes != expected):
                raise CorruptFileError(f"{further.nbytes} bytes of {more} further bits", name)
            self._checked[name] = packed
        return self._checked[name]

    def _bytes(self, name: str) -> memoryview:
        begin, end = (self._start + offset for offset in self._sections[name].range)
        if not self._file.closed and os.fstat(self._file.fileno()).st_size < end:
            raise CorruptFileError("the file was cut while it was open", name)
        return self._map[begin:end]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._sections if name not in self._further)

    def __len__(self) -> int:
        return len(self._sections) - len(self._further)

    def __repr__(self) -> str:
        return f"File({self._path!r}, {len(self)} tensors, {len(self._table)} packed)"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Tensors that were taken stay valid."""
        self._file.close()


def open(path: str | os.PathLike[str]) -> File:
    """Open a safetensors file and read its header.

    Parameters
    ----------
    path : path-like
        With packed tensors or without.

    Raises
    ------
    CorruptFileError
        The header is no valid one, or describes packed tensors that are not there.
    OSError
        The file cannot be read.
    """
    return File(path)


class _Section:
    """What the header says of one tensor."""

    def __init__(self, name: str, fields: Any) -> None:
        if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
            raise CorruptFileError("the header does not give dtype, shape and data_offsets", name)
        self.dtype, self.range = fields["dtype"], fields["data_offsets"]
        self.shape = _shape(fields["shape"], name)
        if not isinstance(self.dtype, str) or self.dtype not in (*_DTYPES, *_FURTHER):
            raise CorruptFileError(f"its dtype {self.dtype!r} is not known", name)
        if not _are_whole(self.range) or len(self.range) != 2:
            raise CorruptFileError(f"data_offsets are {self.range!r}", name)
        need, have = math.prod(self.shape) * _itemsize(self.dtype), self.range
        if have[1] - have[0] != need:
            raise CorruptFileError(f"{need} bytes are not at {have[0]} to {have[1]}", name)


def _itemsize(name: str) -> int:
    return _DTYPES[name].itemsize if name in _DTYPES else 2 if name == "BF16" else 1


def _shape(given: Any, name: str) -> tuple[int, ...]:
    if not _are_whole(given) or len(given) > 64:
        raise CorruptFileError(f"its shape is {given!r:.100}", name)
    return tuple(given)


def _are_whole(given: Any) -> bool:
    return isinstance(given, list) and all(type(n) is int and 0 <= n < 2**63 for n in given)


def parse_json(data: bytes | str, what: str) -> dict[str, Any]:
    """Return a JSON object, or raise a CorruptFileError that tells of what."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            raise ValueError("a name is there twice")
        return fields

    try:
        text = data.decode() if isinstance(data, bytes) else data
        fields = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{what} is not JSON: {error!s:.200}") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("__metadata__", {}), dict):
        raise CorruptFileError(f"{what} is not a JSON object")
    return fields


def _read_table(text: str | None, sections: Mapping[str, _Section]) -> dict[str, dict[str, Any]]:
    """Read what the metadata says of packed tensors."""
    if text is None:
        return {}
    about = parse_json(text, f"metadata {KEY!r}")
    if about.get("version") != VERSION:
        version = about.get("version")
        raise CorruptFileError(
            f"packed tensors of version {version!r}, this library reads {VERSION}: update gradwire"
        )
    if not isinstance(tensors := about.get("tensors"), dict):
        raise CorruptFileError(f"metadata {KEY!r} lists no tensors")
    table = {}
    for name, fields in tensors.items():
        if not isinstance(fields, dict):
            raise CorruptFileError("the metadata does not describe it", name)
        shape, further = _shape(fields.get("shape"), name), fields.get("further", [])
        if math.prod(shape) > MAX_NUMEL:
            raise CorruptFileError(f"its shape {shape} has more than {MAX_NUMEL} entries", name)
        if fields.get("dtype") not in DTYPES:
            raise CorruptFileError(f"its dtype is {fields.get('dtype')!r:.100}", name)
        if not _are_whole(further) or len(further) > 1 or not all(1 <= n <= 7 for n in further):
            raise CorruptFileError(f"its further bits are {further!r:.100}", name)
        error = fields.get("error")
        if not (error is None or (type(error) in (int, float) and error >= 0)):
            raise CorruptFileError(f"its error is {error!r:.100}", name)
        for each in (name, name + _MORE) if further else (name,):
            if each not in sections or sections[each].dtype != _PACKED:
                raise CorruptFileError(f"there are no bytes named {each!r}", name)
        if not further and getattr(sections.get(name + _MORE), "dtype", None) == _PACKED:
            raise CorruptFileError("there are further bits that it does not announce", name)
        more = further[0] if further else 0
        table[name] = {"shape": shape, "dtype": fields["dtype"], "more": more, "error": error}
    return table
