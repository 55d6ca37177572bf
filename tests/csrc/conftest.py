"""The CUDA kernels, compiled for the host: see README.md in this folder."""

import os

import pytest

from tests.csrc.emulated.build import build
from tests.csrc.emulated.kernels import Kernels

SANITIZED = bool(os.environ.get("GRADWIRE_TEST_SANITIZED"))


@pytest.fixture(scope="session")
def kernel_library() -> Kernels:
    return Kernels(build(sanitized=SANITIZED))


@pytest.fixture
def kernels(kernel_library: Kernels) -> Kernels:
    """The kernels, in the same order of blocks and lanes for every test."""
    kernel_library.configure()
    return kernel_library
