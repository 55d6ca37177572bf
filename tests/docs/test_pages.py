"""What the guides show works as they show it."""

import functools
import itertools
import re
from pathlib import Path

import pytest

import gradwire
from gradwire.torch.backends import dispatch
from tests.support import run_python

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_quick_start_on_arrays_runs():
    blocks = FENCED.findall((DOCS / "quickstart.md").read_text("utf-8"))
    (block,) = [block for block in blocks if "codec.encode" in block]
    run_python(block)


def test_every_codec_recommended_can_be_made():
    page = (DOCS / "choosing.md").read_text("utf-8")
    table = page.partition("## The codec")[2].partition("## The ratio")[0]
    calls = re.findall(r"`(\w+\(.*?\))`", table)
    assert len(calls) >= 8
    for call in calls:
        assert isinstance(eval(f"gradwire.{call}", {"gradwire": gradwire}), gradwire.Codec)


@pytest.mark.parametrize("page", ["quickstart", "choosing", "from-powersgd", "ddp", "README"])
def test_the_first_codec_shown_is_the_one_recommended(page):
    path = ROOT / "README.md" if page == "README" else DOCS / f"{page}.md"
    text = path.read_text("utf-8")
    first = re.search(r"gradwire\.(?:topk|sidco|dgc|scalecom)\([^)]*\)", text)
    assert first
    assert first[0] == "gradwire.topk(ratio=0.01)"


def test_the_readme_says_first_where_it_does_not_work():
    text = (ROOT / "README.md").read_text("utf-8")
    status, table = (
        text.index("**Not on GPUs yet:** it is proven for CPU tensors over Gloo"),
        text.index("## Accuracy"),
    )
    assert status < table
    assert "AdamW" in text[:status]


def test_the_page_on_gpus_shows_what_is_answered(monkeypatch):
    monkeypatch.setattr(dispatch, "_extension", functools.cache(lambda: (False, "not built")))
    lines = (DOCS / "cuda.md").read_text("utf-8").splitlines()
    calls = [(line[4:], after) for line, after in itertools.pairwise(lines) if line[:4] == ">>> "]
    assert len(calls) == 2
    for call, answer in calls:
        assert repr(eval(call, {"gradwire": gradwire})) == answer


def test_every_report_field_is_explained():
    page = (DOCS / "report.md").read_text("utf-8")
    fields = gradwire.torch.ddp.Report.__dataclass_fields__
    unexplained = {name for name in fields if f"`{name}`" not in page}
    assert unexplained <= {"rank", "world_size", "codec", "steps", "collectives"}
