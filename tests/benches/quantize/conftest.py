"""One thread for all: the models are too small for two."""

from tests.benches.weights.conftest import one_thread as one_thread
