"""The example of sites that come and go runs as its own documentation says."""

import contextlib
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)

EXAMPLE = Path(__file__).parents[2] / "examples" / "sites.py"


@pytest.mark.full
def test_a_site_goes_on_when_another_one_is_killed():
    assert len(EXAMPLE.read_text("utf-8").splitlines()) <= 45
    with contextlib.ExitStack() as stack:

        def start(*command: str) -> "subprocess.Popen[str]":
            process = subprocess.Popen(
                [sys.executable, *command],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            limit = threading.Timer(600.0, process.kill)  # whoever reads from it goes on
            limit.start()
            assert process.stdout is not None
            stack.enter_context(process.stdout)  # closed after all of these
            for each in (process.wait, process.kill, limit.cancel):
                stack.callback(each)
            return process

        def read(process: "subprocess.Popen[str]", until: Callable[[str], bool]) -> str:
            assert process.stdout is not None
            line = next(line for line in process.stdout if until(line))
            return str(line)

        port = read(start("-m", "gradwire.torch.diloco", "0"), bool).split()[-1]
        first, second = (start(str(EXAMPLE), f"localhost:{port}", seed) for seed in "01")
        for each in (first, second):
            read(each, lambda line: "2 sites" in line)
        second.kill()
        alone = read(first, lambda line: "1 sites" in line)
        step, loss = alone.split()[1].rstrip(":"), alone.split()[-1]
        assert int(step) >= 40
        assert math.isfinite(float(loss))
        later = read(first, lambda line: int(line.split()[1].rstrip(":")) > int(step) + 60)
        assert "1 sites" in later
