"""The README's examples run as they stand."""

import re
from pathlib import Path

import pytest

from tests.support import run_python

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_it_begins_with_what_it_is_how_to_install_it_and_two_commands():
    text = README.read_text("utf-8")
    assert len(text.splitlines()) <= 150
    told = ("Gradient compression", "Alpha, for CPUs and Gloo", "`make wheel`", "pip install")
    places = [text.index(each) for each in (*told, "```sh\n", "```python\n", "## ")]
    assert places == sorted(places)
    (commands, *_) = re.findall(r"^```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    first, second = commands.splitlines()
    assert first.startswith("make demo ")
    assert second.startswith("make test ")


def test_there_are_examples():
    assert any("codec.encode" in block for block in BLOCKS)


@pytest.mark.full  # the tests of DDP have what it calls
def test_the_example_for_ddp_runs_as_pasted():
    (block,) = [block for block in BLOCKS if "DistributedDataParallel" in block]
    here = {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    assert "ms" in run_python(block, **here)


def test_examples_on_arrays_run_one_after_the_other():
    script = "\n".join(block for block in BLOCKS if "import torch" not in block)
    assert "codec.encode" in script
    run_python(script)
