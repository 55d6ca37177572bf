"""A reader of lossless values, from the text of docs/frame-values.md alone."""

import numpy as np

DTYPES = {0: (4, 8, 23), 1: (2, 8, 7), 2: (2, 5, 10)}  # bytes, bits of exponent and mantissa
BLOCK = 65_536


class Bits:
    """Bits of some bytes, from the least significant one of the first up."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, number):
        """Return so many bits as a number."""
        out = 0
        for i in range(number):
            out |= (self.data[self.at // 8] >> (self.at % 8) & 1) << i
            self.at += 1
        return out

    def end(self):
        """Check that nothing but zeros follows, within a byte; return how many bytes were read."""
        while self.at % 8:
            assert self.take(1) == 0
        return self.at // 8


def read(section, count):
    """Return the values of a section of quantizer 13 as bits of its float, and which kind it is."""
    number, kind = section[0], section[1]
    assert section[2:4] == b"\0\0"
    assert kind in (0, 1)
    size = DTYPES[number][0]
    if kind == 0:
        return np.frombuffer(section[4:], f"<u{size}").tolist(), kind
    out, at = [], 4
    for first in range(0, count, BLOCK):
        length = int.from_bytes(section[at : at + 4], "little")
        out += read_block(section[at + 4 : at + 4 + length], DTYPES[number], count - first)
        at += 4 + length
    assert at == len(section) < 4 + count * size
    return out, kind


def read_block(data, dtype, left):
    """Return the codes of a block."""
    size, exponent, mantissa = dtype
    count = min(left, BLOCK)
    joined = data[0]
    if joined == 255:
        return np.frombuffer(data[1:], f"<u{size}").tolist()
    symbols, at = read_symbols(data[1:], count)
    assert max(symbols) < 2 ** (exponent + joined)
    rests, data = [0] * count, data[1 + at :]
    below = mantissa - joined
    for byte in range((below + 1) // 8):
        for i in range(count):
            rests[i] |= data[byte * count + i] << 8 * byte
    whole = (below + 1) // 8
    bits = Bits(data[whole * count :])
    for i in range(count):
        rests[i] |= bits.take((below + 1) % 8) << 8 * whole
    assert bits.end() == len(bits.data)
    return [
        (rest >> below) << (exponent + mantissa) | symbol << below | rest & (2**below - 1)
        for symbol, rest in zip(symbols, rests, strict=True)
    ]


def read_symbols(data, count):
    """Return the symbols of a block, and how many bytes they take."""
    if data[0] == 0:
        return [int.from_bytes(data[1:3], "little")] * count, 3
    assert data[0] == 1
    nibbles, lengths, symbol = Bits(data[1:]), {}, 0
    while sum(2.0**-length for length in lengths.values()) < 1:
        nibble = nibbles.take(4)
        if nibble > 12:
            more = nibble - 12
            symbol += {1: 3, 2: 19, 3: 275}[more] + nibbles.take(4 * more)
            continue
        if nibble:
            lengths[symbol] = nibble
        symbol += 1
    assert sum(2.0**-length for length in lengths.values()) == 1
    at = 1 + nibbles.end()
    codes, code = {}, 0
    for length in range(1, 13):
        code *= 2
        for symbol in sorted(lengths):
            if lengths[symbol] == length:
                codes[length, code] = symbol
                code += 1
    streams = 1 if count < 2048 else 8
    sizes = np.frombuffer(data[at : at + 2 * streams], "<u2").tolist()
    at += 2 * streams
    out = [0] * count
    for stream, size in enumerate(sizes):
        bits = Bits(data[at : at + size])
        for i in range(stream, count, streams):
            code = length = 0
            while (length, code) not in codes:
                code, length = code << 1 | bits.take(1), length + 1
            out[i] = codes[length, code]
        assert bits.end() == size
        at += size
    return out, at
