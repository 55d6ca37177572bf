"""A reader of floats without loss, from docs/frame-values.md alone."""

BLOCK = 65_536


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
