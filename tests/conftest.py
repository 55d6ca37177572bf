"""Fixtures for all tests, and how many examples hypothesis tries."""

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default",
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator that gives every test the same numbers on every run."""
    return np.random.default_rng(20240917)


@pytest.fixture
def gradient(rng: np.random.Generator) -> np.ndarray:
    """10,000 values with tails heavier than a normal law's, as gradients have."""
    return (rng.standard_normal(10_000) * rng.gamma(0.5, size=10_000)).astype(np.float32)
