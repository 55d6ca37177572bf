"""A reader of lossless values, from the text of docs/frame-values.md alone."""

from tests.weights.plain_floats import BLOCK, floats

FLOATS = {0: (8, 23, 4), 1: (8, 7, 2), 2: (5, 10, 2)}  # bits of exponent and mantissa, bytes


def read(section: bytes, count: int) -> tuple[list[int], int]:
    """Return the values of a section of quantizer 13 as bits of its float, and which kind it is."""
    (exponent, mantissa, size), kind = FLOATS[section[0]], section[1]
    assert section[2:4] == b"\0\0"
    if kind == 0:
        assert len(section) == 4 + count * size
        codes = section[4:]
        return [
            int.from_bytes(codes[i : i + size], "little") for i in range(0, len(codes), size)
        ], 0
    assert kind == 1
    assert len(section) < 4 + count * size
    out, at = list[int](), 4
    for first in range(0, count, BLOCK):
        length = int.from_bytes(section[at : at + 4], "little")
        block, at = section[at + 4 : at + 4 + length], at + 4 + length
        out += floats(block, min(BLOCK, count - first), exponent, mantissa, size)
    assert at == len(section)
    return out, kind
