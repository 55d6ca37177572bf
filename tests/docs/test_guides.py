"""Every Python block of these guides runs as a reader would paste it, on one rank and on two."""

import re
import subprocess
import sys

import pytest

from tests.docs.test_pages import DOCS, FENCED, ROOT

pytestmark = pytest.mark.timeout(900)

PAGES = [
    "quickstart",
    "auto",
    "activations",
    "weights",
    "ddp",
    "ddp-reference",
    "schedules",
    "exchanges",
    "report",
    "mixed-precision",
    "checkpoints",
    "checkpoint-files",
    "deltas",
    "extending",
    "clusters",
    "from-powersgd",
    "accuracy-drops",
    "plain-bytes",
    "diloco",
    "diloco-members",
    "cost",
    "numerics",
    "hierarchy",
    "fsdp",
]


@pytest.mark.full
def test_the_blocks_of_the_guides_run():
    command = [sys.executable, "-m", "tests.docs.guides", *PAGES]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-4000:]
    counted = dict(re.findall(r"^docs/(.+)\.md: (\d+) blocks", done.stdout, re.MULTILINE))
    assert list(counted) == PAGES
    assert all(int(count) > 0 for count in counted.values())


def test_every_page_with_code_is_run_by_some_test():
    elsewhere = {
        "cuda",
        "horovod",
        "lightning",
        "accelerate",
        "transformers",
    }
    coded = {path.stem for path in DOCS.glob("*.md") if FENCED.search(path.read_text("utf-8"))}
    assert coded <= {*PAGES, *elsewhere}
