"""A reader of patches, from docs/delta-format.md and packed-files.md alone."""

import hashlib
import json

from tests.weights import plain_differences

FORMATS = {"BF16": (8, 7, 2), "F16": (5, 10, 2), "F32": (8, 23, 4)}
BYTES = 4, 3, 1
BLOCK = 1 << 20


TABLE = []
for number in range(256):
    for _ in range(8):
        number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
    TABLE.append(number)


def crc32c(data: bytes) -> int:
    check = 0xFFFFFFFF
    for byte in data:
        check = check >> 8 ^ TABLE[check & 255 ^ byte]
    return check ^ 0xFFFFFFFF


def read(
    patch: bytes, kinds: list[tuple[str, str, list[int]]], base: dict[str, bytes]
) -> tuple[dict[str, bytes], tuple[str, str]]:
    """The tensors that a patch makes, and the digests of its base and its result."""
    assert patch[:5] == b"GWDL\1"
    assert crc32c(patch[:-4]) == int.from_bytes(patch[-4:], "little")
    text = json.dumps(sorted(map(list, kinds)), separators=(",", ":"))
    about, data, new = hashlib.sha256(text.encode()).digest()[:16], patch[21:-4], {}
    assert patch[5:21] == about
    named = [about, about]
    for dtype, (e, m, size) in [*FORMATS.items(), ("", BYTES)]:
        names = [
            name for name, kind, _ in sorted(kinds) if (kind if kind in FORMATS else "") == dtype
        ]
        old, stream = b"".join(base[name] for name in names), b""
        for at in range(0, len(old), BLOCK * size):
            block = old[at : at + BLOCK * size]
            length = int.from_bytes(data[:4], "little")
            checks, codes, data = data[4:12], data[12 : 4 + length], data[4 + length :]
            before = [
                int.from_bytes(block[i : i + size], "little") for i in range(0, len(block), size)
            ]
            after = plain_differences.read(codes, e, m, max(size, 2), before)
            made = b"".join(each.to_bytes(size, "little") for each in after)
            assert checks == b"".join(crc32c(each).to_bytes(4, "little") for each in (block, made))
            named = [named[0] + checks[:4], named[1] + checks[4:]]
            stream += made
        for name in names:
            new[name], stream = stream[: len(base[name])], stream[len(base[name]) :]
    assert not data
    first, last = (hashlib.sha256(each).hexdigest()[:32] for each in named)
    return new, (first, last)
