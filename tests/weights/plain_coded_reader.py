"""A reader of coded tensors, from docs/packed-files.md alone. `gradwire.weights` is held to it."""

import base64
import hashlib
import json
import zlib
from pathlib import Path

from tests.weights import plain_differences
from tests.weights.plain_floats import BLOCK, floats, plain

FORMATS = {"bfloat16": (8, 7), "float16": (5, 10), "float32": (8, 23)}


def read(path: Path) -> tuple[dict[str, bytes], bytes | None]:
    """The bytes of all tensors of a file, and the header of the one that it was."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    text = header.pop("__metadata__", {}).get("gradwire", '{"version": 1, "tensors": {}}')
    about = json.loads(text)
    assert about["version"] == 1
    found = {}
    for name, section in header.items():
        begin, end = section["data_offsets"]
        found[name] = data[8 + length :][begin:end]
    bases: dict[str, bytes] = {}
    if "base" in about:
        base = path.parent.resolve() / about["base"]["name"]
        assert hashlib.sha256(base.read_bytes()).hexdigest() == about["base"]["sha256"]
        bases, _ = read(base)
    for name, fields in about["tensors"].items():
        count = 1
        for size in fields["shape"]:
            count *= size
        if "coding" not in fields:
            continue
        old = bases[name] if fields["coding"] == "difference" else None
        found[name] = tensor(found[name], fields["dtype"], count, old)
    original = zlib.decompress(base64.b64decode(about["header"])) if "header" in about else None
    return found, original


def tensor(data: bytes, dtype: str, count: int, old: bytes | None) -> bytes:
    size, out, at = (1 + sum(FORMATS[dtype])) // 8, b"", 4
    every = BLOCK if old is None else plain_differences.BLOCK
    for first in range(0, count, every):
        length = int.from_bytes(data[at : at + 4], "little")
        block, at = data[at + 4 : at + 4 + length], at + 4 + length
        many = min(every, count - first)
        if old is None:
            bits = floats(block, many, *FORMATS[dtype], size)
        else:
            base, _ = plain(old[first * size :], many, size)
            bits = plain_differences.read(block, *FORMATS[dtype], size, base)
        out += b"".join(each.to_bytes(size, "little") for each in bits)
    assert len(data) == max(at, -(-count * size // 4096))
    assert not any(data[at:])
    return out
