"""The ranks of the distributed tests. What is here needs a GPU; `make test-gpu` runs it.

Under compute-sanitizer one of so many cases runs, as under the sanitizers of the host.

Devices are not tried at first use: one that fails goes by the host, and no test would see its
kernels. And under compute-sanitizer, a trial takes long.
"""

import os

from tests.csrc.conftest import pytest_collection_modifyitems
from tests.distributed.conftest import backend, kept, nursery, two

os.environ["GRADWIRE_CUDA_TRIAL"] = "0"

__all__ = ["backend", "kept", "nursery", "pytest_collection_modifyitems", "two"]
