"""The README's examples run as they stand."""

import re
from pathlib import Path

from tests.support import run_python

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_there_are_examples():
    assert any("codec.encode" in block for block in BLOCKS)


def test_the_example_for_ddp_runs_as_pasted():
    (block,) = [block for block in BLOCKS if "DistributedDataParallel" in block]
    here = {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    assert "ms" in run_python(block, **here)


def test_examples_on_arrays_run_one_after_the_other():
    script = "\n".join(block for block in BLOCKS if "import torch" not in block)
    assert "codec.encode" in script
    run_python(script)
