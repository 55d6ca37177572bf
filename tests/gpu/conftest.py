"""The ranks of the distributed tests. What is here needs a GPU; `make test-gpu` runs it.

Under compute-sanitizer one of so many cases runs, as under the sanitizers of the host.
"""

from tests.csrc.conftest import pytest_collection_modifyitems
from tests.distributed.conftest import backend, kept, nursery, two

__all__ = ["backend", "kept", "nursery", "pytest_collection_modifyitems", "two"]
