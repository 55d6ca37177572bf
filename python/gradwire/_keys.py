"""Seeds of the random numbers that parts from other packages draw."""

import hashlib

__all__ = ["rounding_key", "selection_key"]


def selection_key(name: str | None, step: int) -> int:
    """Return the seed for selecting: the same on every rank."""
    return _hashed(f"{step} {name or ''}", b"")


def rounding_key(name: str | None, step: int, stream: int) -> int:
    """Return the seed for rounding: different on every rank, whose states have other streams."""
    return _hashed(f"{stream} {step} {name or ''}", b"rounding")


def _hashed(text: str, person: bytes) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=person).digest()
    return int.from_bytes(digest, "little")
