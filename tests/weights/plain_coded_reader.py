"""A reader of coded tensors, from docs/packed-files.md and frame-values.md alone.

`gradwire.weights` is held to it, and so are frames of floats without loss.
"""

import base64
import hashlib
import json
import zlib
from pathlib import Path

FORMATS = {"bfloat16": (8, 7), "float16": (5, 10), "float32": (8, 23)}
BLOCK = 65_536


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
    for first in range(0, count, BLOCK):
        length = int.from_bytes(data[at : at + 4], "little")
        block, at = data[at + 4 : at + 4 + length], at + 4 + length
        many = min(BLOCK, count - first)
        if 4 <= block[0] <= 11:
            assert old is not None
            bits = differences(block, many, size, old[first * size :])
        else:
            bits = floats(block, many, *FORMATS[dtype], size)
        out += b"".join(each.to_bytes(size, "little") for each in bits)
    assert len(data) == max(at, -(-count * size // 4096))
    assert not any(data[at:])
    return out


def floats(block: bytes, count: int, e: int, m: int, size: int) -> list[int]:
    found, rest = inner(block, count, e, m, size, 0)
    assert not rest
    return found


def plain(data: bytes, count: int, size: int) -> tuple[list[int], bytes]:
    assert len(data) >= count * size
    found = [int.from_bytes(data[i * size :][:size], "little") for i in range(count)]
    return found, data[count * size :]


def inner(
    block: bytes, count: int, e: int, m: int, size: int, depth: int
) -> tuple[list[int], bytes]:
    """The floats of a block within so many others, and what follows it."""
    kind, rest = block[0], block[1:]
    if kind == 255:
        return plain(rest, count, size)
    if kind == 12:
        z, whole = rest[0], -(-rest[0] // 8)
        same = int.from_bytes(rest[1 : 1 + whole], "little")
        assert 1 <= z <= m
        assert same < 1 << z
        found, rest = parts(rest[1 + whole], rest[2 + whole :], count, e, m - z)
        return [each << z | same for each in found], rest
    if kind == 13:
        assert depth < 3
        (one,), rest = plain(rest, 1, size)
        masks, rest = codes(rest, -(-count // 8))
        bits = [mask >> bit & 1 for mask in masks for bit in range(8)]
        assert max(masks) < 256
        assert not any(bits[count:])
        del bits[count:]
        others: list[int] = []
        if not all(bits):
            others, rest = inner(rest, count - sum(bits), e, m, size, depth + 1)
        left = iter(others)
        return [one if bit else next(left) for bit in bits], rest
    if kind == 14:
        table, after = plain(rest[1:], 1 + rest[0], size)
        assert table == sorted(set(table))
        symbols, rest = codes(after, count)
        return [table[symbol] for symbol in symbols], rest
    if kind == 15:
        assert depth == 0
        assert 7 <= rest[0] <= 15
        found, long, rest = [], 1 << rest[0], rest[1:]
        while len(found) < count:
            some, rest = inner(rest, min(long, count - len(found)), e, m, size, 1)
            found += some
        return found, rest
    return parts(kind, rest, count, e, m)


def parts(t: int, rest: bytes, count: int, e: int, m: int) -> tuple[list[int], bytes]:
    """Floats of symbols and rests."""
    assert t <= min(3, m)
    symbols, rest = codes(rest, count)
    assert max(symbols) < 1 << (e + t)
    below = m - t
    whole, more = divmod(below + 1, 8)
    end = whole * count + -(-more * count // 8)
    assert len(rest) >= end
    high = fields(rest[whole * count : end], [more] * count)
    found = []
    for i, symbol in enumerate(symbols):
        low = sum(rest[byte * count + i] << 8 * byte for byte in range(whole))
        low |= high[i] << 8 * whole
        sign, low = low >> below, low & ((1 << below) - 1)
        found.append(sign << (e + m) | symbol << below | low)
    return found, rest[end:]


def differences(block: bytes, count: int, size: int, old: bytes) -> list[int]:
    each = block[0] - 3
    if each == 1:
        lengths, rest = codes(block[1:], count)
    else:
        symbols, rest = codes(block[2:], -(-count // each))
        lengths = [symbol // block[1] ** i % block[1] for symbol in symbols for i in range(each)]
        assert not any(lengths[count:])
        del lengths[count:]
    found, top = [], 1 << (8 * size - 1)
    for i, (length, raw) in enumerate(zip(lengths, fields(rest, lengths), strict=True)):
        d = 0
        if length:
            half = 1 << (length - 1)
            d = half | raw & (half - 1)
            d = -d if raw & half else d
        bits = int.from_bytes(old[i * size :][:size], "little")
        o = (bits ^ (2 * top - 1) if bits & top else bits | top) + d
        found.append(o ^ top if o & top else o ^ (2 * top - 1))
    return found


def fields(data: bytes, widths: list[int]) -> list[int]:
    stream, found, at = int.from_bytes(data, "little"), [], 0
    text = bin(stream | 1 << 8 * len(data))[:2:-1]
    for width in widths:
        found.append(int(text[at : at + width][::-1] or "0", 2))
        at += width
    assert len(data) == -(-at // 8)
    return found


def codes(data: bytes, count: int) -> tuple[list[int], bytes]:
    """The symbols of a block, and what follows it."""
    if data[0] == 0:
        return [int.from_bytes(data[1:3], "little")] * count, data[3:]
    nibbles = [half for byte in data[1:] for half in (byte & 15, byte >> 4)]
    lengths: dict[int, int] = {}
    at, symbol, full = 0, 0, 0
    while full < 4096:
        nibble, at = nibbles[at], at + 1
        if nibble > 12:
            more = nibble - 12
            run = sum(nibbles[at + i] << 4 * i for i in range(more))
            symbol, at = symbol + run + (3, 19, 275)[more - 1], at + more
            continue
        if nibble:
            lengths[symbol] = nibble
            full += 4096 >> nibble
        symbol += 1
    code, table = 0, {}
    for length in range(1, 13):
        code *= 2
        for each in sorted(lengths):
            if lengths[each] == length:
                table[f"{code:0{length}b}"] = each
                code += 1
    many = 1 if count < 2048 else 8
    at = 1 + -(-at // 2)
    sizes = [int.from_bytes(data[at + 2 * i :][:2], "little") for i in range(many)]
    at += 2 * many
    symbols = [0] * count
    for i, size in enumerate(sizes):
        stream, at = data[at : at + size], at + size
        bits = "".join(f"{byte:08b}"[::-1] for byte in stream)
        begin = 0
        for j in range(i, count, many):
            end = begin + 1
            while bits[begin:end] not in table:
                end += 1
            symbols[j], begin = table[bits[begin:end]], end
    return symbols, data[at:]
