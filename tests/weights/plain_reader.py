"""A reader of packed files, from docs/packed-files.md alone: `gradwire.weights` is held to it."""

import json

import numpy as np

FLOAT16 = np.dtype("<f2")


def read(data: bytes) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    """The packed tensors of a file: in the bits of their frames, and in all that they have."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    about = header.get("__metadata__", {}).get("gradwire", '{"version": 1, "tensors": {}}')
    table = json.loads(about)
    assert table["version"] == 1

    def section(name: str) -> bytes:
        assert header[name]["dtype"] == "U8"
        begin, end = header[name]["data_offsets"]
        return data[8 + length :][begin:end]

    found = {}
    packed = {n: fields for n, fields in table["tensors"].items() if "coding" not in fields}
    for name, about in packed.items():
        exponent, block, words, codes = frame(section(name), int(np.prod(about["shape"])))
        step, base = words[:, 0].astype(np.float32), words[:, 1].astype(np.float32)
        first = values(step, base, codes, block, exponent).reshape(about["shape"])
        every = None
        for more in about.get("further", []):
            second = unpacked(section(f"{name}.more.0")[4:], more, codes.size)
            share = np.float32((2**more - 1) / 2 ** (more + 1))
            base = (base - step * share).astype(FLOAT16).astype(np.float32)
            step = (step / np.float32(2**more)).astype(FLOAT16).astype(np.float32)
            every = values(step, base, codes << more | second, block, exponent)
            every = every.reshape(about["shape"])
        found[name] = first, every
    return found


def frame(data: bytes, numel: int):
    """Exponent, block, steps and bases, and codes of a frame of quantizer 12."""
    assert data[:4] == b"GWF\1"
    assert (data[7], data[8]) == (12, 0)
    exponent = int.from_bytes(data[10:12], "little", signed=True)
    count, index_len, value_len = (
        int.from_bytes(data[at : at + 8], "little") for at in (24, 32, 40)
    )
    assert (count, index_len, 48 + value_len) == (numel, 0, len(data))
    bits, block = data[48], int.from_bytes(data[52:56], "little")
    blocks = -(-numel // block)
    words = np.frombuffer(data, FLOAT16, 2 * blocks, 56).reshape(blocks, 2)
    return exponent, block, words, unpacked(data[56 + 4 * blocks :], bits, numel)


def unpacked(data: bytes, bits: int, count: int) -> np.ndarray:
    """Codes from the least significant bit of each byte up."""
    stream = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    assert stream.size == -(-count * bits // 8) * 8
    places = stream[: count * bits].reshape(count, bits).astype(np.int64)
    codes: np.ndarray = (places << np.arange(bits)).sum(1)
    return codes


def values(step, base, codes, block: int, exponent: int) -> np.ndarray:
    """Steps and bases of float32 and codes as values, each operation rounded to float32."""
    unit = np.ldexp(np.float32(1), -exponent)
    which = np.arange(codes.size) // block
    found: np.ndarray = (base * unit)[which] + (step * unit)[which] * codes.astype(np.float32)
    return found
