"""A reader of blocks of differences, from docs/packed-files.md alone."""

from tests.weights.plain_floats import codes, fields, inner

BLOCK = 1 << 20


def read(block: bytes, e: int, m: int, size: int, old: list[int]) -> list[int]:
    """Return the bits of the floats that a block makes of those of the base."""
    count, rest = block[0], block[1:]
    if count == 255:
        new: list[int] = []
        while len(new) < len(old):
            floats, rest = inner(rest, min(1 << 16, len(old) - len(new)), e, m, size, 0)
            new += floats
        assert not rest
        return new
    assert count <= 16
    if count == 0:
        assert not rest
        return old
    first, rest = [0, *rest[: count - 1]], rest[count - 1 :]
    assert first == sorted(set(first))
    classes: list[list[int]] = [[] for _ in first]
    for place, bits in enumerate(old):
        exponent = bits >> m & ((1 << e) - 1)
        classes[sum(least <= exponent for least in first) - 1].append(place)
    changed = []
    for members in classes:
        numbers, rest = members_of(rest, len(members))
        changed.append([members[number] for number in numbers])
    new = list(old)
    for places in changed:
        for at in range(0, len(places), 1 << 16):
            piece = places[at : at + (1 << 16)]
            steps, rest = steps_of(rest, len(piece))
            for place, step in zip(piece, steps, strict=True):
                top = 1 << (8 * size - 1)
                bits = old[place]
                order = (bits ^ (2 * top - 1) if bits & top else bits | top) + step
                assert 0 <= order < 2 * top
                new[place] = order ^ top if order & top else order ^ (2 * top - 1)
    assert not rest
    return new


def members_of(data: bytes, count: int) -> tuple[list[int], bytes]:
    """Return the numbers of members that have changed, and what follows."""
    low, rest = data[0] - 1, data[1:]
    if low == -1:
        return [], rest
    if low == 254:
        return list(range(count)), rest
    many, rest = number(rest)
    length, rest = number(rest)
    bits = "".join(f"{byte:08b}"[::-1] for byte in rest[:length])
    numbers, at, following = list[int](), many * low, 0
    for i in range(many):
        end = bits.index("1", at)
        gap = (end - at) << low | int("0" + bits[i * low : (i + 1) * low][::-1], 2)
        numbers.append(following + gap)
        at, following = end + 1, numbers[-1] + 1
    assert "1" not in bits[at:]
    assert len(bits) - at < 8
    return numbers, rest[length:]


def number(data: bytes) -> tuple[int, bytes]:
    """Return a number by seven bits a byte, and what follows."""
    value = 0
    for i, byte in enumerate(data[:4]):
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, data[i + 1 :]
    raise AssertionError("a number of more than 4 bytes")


def steps_of(data: bytes, count: int) -> tuple[list[int], bytes]:
    """Return the steps of a piece, and what follows."""
    each = data[0]
    assert 1 <= each <= 8
    if each == 1:
        sizes, rest = codes(data[1:], count)
    else:
        symbols, rest = codes(data[2:], -(-count // each))
        sizes = [symbol // data[1] ** i % data[1] for symbol in symbols for i in range(each)]
        assert not any(sizes[count:])
        del sizes[count:]
    below = [max(code // 4 - 1, 0) for code in sizes]
    widths = [bits + (code > 0) for code, bits in zip(sizes, below, strict=True)]
    steps, end = [], -(-sum(widths) // 8)
    for code, bits, field in zip(sizes, below, fields(rest[:end], widths), strict=True):
        size = (code - 4 * bits) << bits | field & ((1 << bits) - 1)
        steps.append(-size if field >> bits else size)
    return steps, rest[end:]
