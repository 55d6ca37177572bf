"""The threads of the core: how many are made, and kept."""

import os

import pytest

from tests.support import run_python


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="this system lists no threads")
def test_threads_are_made_once_whatever_the_sizes_of_tensors():
    """The wider a tensor, the more threads share it: 198 were made in these 40 encodes."""
    script = """
    import os
    import numpy as np
    import gradwire

    gradwire.set_num_threads(8)
    codec, own = gradwire.topk(0.01), set(os.listdir("/proc/self/task"))
    made = set()
    for step in range(40):
        x = np.ones(300_000 * (1 + step % 5), np.float32)
        codec.encode(x, codec.init_state(x.size))
        made |= set(os.listdir("/proc/self/task")) - own
    print(len(made))
    """
    assert 1 <= int(run_python(script)) <= 8
