"""Safetensors files taken apart and put together again, by plain code."""

import json
from typing import Any


def taken_apart(data: bytes | bytearray) -> tuple[Any, bytes | bytearray]:
    """Return the header of a file, and what follows it."""
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def put_together(header: Any, body: bytes | bytearray = b"") -> bytes:
    """Return the bytes of a file; a header may also be bytes, which are taken as they are."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body
