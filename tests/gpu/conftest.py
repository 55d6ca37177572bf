"""The ranks of the distributed tests. What is here needs a GPU; `make test-gpu` runs it."""

from tests.distributed.conftest import backend, kept, nursery, two

__all__ = ["backend", "kept", "nursery", "two"]
