"""The README's examples run as they stand."""

import re
import textwrap
from pathlib import Path

from tests.support import run_python

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_there_are_examples():
    assert any("codec.encode" in block for block in BLOCKS)


def test_the_example_for_ddp_runs_in_a_group_of_one():
    blocks = [block for block in BLOCKS if "DistributedDataParallel" in block]
    assert blocks
    setup = """
        import gradwire, torch
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )
        model = torch.nn.Linear(300, 100)
        """
    # The dots stand for the training loop.
    loop = "model(torch.ones(2, 300)).sum().backward(); optimizer.step()"
    script = textwrap.dedent(setup) + blocks[0].replace("\n...\n", f"\n{loop}\n")
    assert loop in script
    assert "ms" in run_python(script + "\nhandle.detach()\n")


def test_examples_on_arrays_run_one_after_the_other():
    script = "\n".join(block for block in BLOCKS if "torch" not in block)
    assert "codec.encode" in script
    run_python(script)
