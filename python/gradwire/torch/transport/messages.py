"""Messages between ranks: JSON of bounded length, which is safe to read."""

import json
import math
from typing import Any

LIMIT = 1 << 26  # bytes of a message, at most
DEPTH = 64  # lists and dicts within each other, at most


def write(message: Any) -> bytes:
    """Return JSON for `read`; raise a ValueError, TypeError or RecursionError if it is not JSON."""
    return json.dumps(message, allow_nan=False, separators=(",", ":")).encode()


def read(data: bytes | str, limit: int = LIMIT) -> Any:
    """Read JSON from a source that is not trusted.

    Raises a ValueError if it is not JSON, not finite, too long, or nested too deeply.
    """
    if len(data) > limit:
        raise ValueError(f"it has {len(data)} bytes, at most {limit} were expected")
    text = data if isinstance(data, str) else data.decode()
    try:
        message = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check_depth(message)
    return message


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"it has the number {text}, which is not finite")
    return value


def _check_depth(message: Any) -> None:
    level = [message]
    for _ in range(DEPTH):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {DEPTH} deep")
