"""What the guides show works as they show it."""

import ast
import functools
import importlib
import inspect
import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import gradwire
from benches.harness import pages
from gradwire import presets
from gradwire.cli import COMMANDS
from gradwire.presets import OWN
from gradwire.torch.backends import dispatch
from tests.support import run_python

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCES = re.compile(r"^(`{3,}).*?^\1$", re.MULTILINE | re.DOTALL)


def test_the_quick_start_on_arrays_runs():
    blocks = FENCED.findall((DOCS / "quickstart.md").read_text("utf-8"))
    (block,) = [block for block in blocks if "codec.encode" in block]
    run_python(block)


def test_every_codec_recommended_can_be_made():
    page = (DOCS / "choosing.md").read_text("utf-8")
    table = page.partition("## The codec")[2].partition("## The ratio")[0]
    calls = re.findall(r"`(\w+\(.*?\))`", table)
    assert len(calls) >= 7
    for call in calls:
        assert isinstance(eval(f"gradwire.{call}", {"gradwire": gradwire}), gradwire.Codec)


@pytest.mark.parametrize("page", ["quickstart", "from-powersgd", "README"])
def test_the_first_codec_shown_is_the_one_recommended(page):
    path = ROOT / "README.md" if page == "README" else DOCS / f"{page}.md"
    text = path.read_text("utf-8")
    first = re.search(r"gradwire\.(?:topk|sidco|dgc|scalecom)\([^)]*\)", text)
    assert first
    assert first[0] == "gradwire.topk(ratio=0.01)"


def test_the_readme_says_first_where_it_does_not_work():
    text = (ROOT / "README.md").read_text("utf-8")
    status, table = (
        text.index("**Not on GPUs yet:** it has been tested only with CPU tensors over Gloo"),
        text.index("## Accuracy"),
    )
    assert status < table
    assert "AdamW" in text[:status]


def test_no_line_begins_as_a_comment():
    # Markdown's parser drops a line that begins with a per cent sign, also within a paragraph.
    assert not [page.name for page in DOCS.glob("*.md") if "\n%" in page.read_text("utf-8")]


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


def test_the_page_on_the_command_line_has_all_commands_and_only_options_that_they_have():
    page = (DOCS / "cli.md").read_text("utf-8")
    sections = re.findall(r"^\* `gradwire (\w+)(.*?)(?=^\* |\Z)", page, re.MULTILINE | re.DOTALL)
    assert sorted(name for name, _ in sections) == sorted(COMMANDS)
    for name, section in sections:
        parser = importlib.import_module(f"gradwire.cli.{name}").make_parser()
        options = {option for each in parser._actions for option in each.option_strings}
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", section)) <= options, name


def test_every_variable_of_the_environment_is_on_its_page():
    page = (DOCS / "environment.md").read_text("utf-8")
    shown = set(re.findall(r"^\| `(GRADWIRE_\w+)`", page, re.MULTILINE))
    files = [*(ROOT / "python").rglob("*.py"), *(ROOT / "rust").glob("*/src/**/*.rs")]
    sources = [path for path in files if "tests" not in path.relative_to(ROOT).parts]
    quoted = r"[\"`$](GRADWIRE_[A-Z_]+)\b"
    read = {name for path in sources for name in re.findall(quoted, path.read_text("utf-8"))}
    assert shown == read


def test_the_page_that_says_whom_it_helps_counts_the_cases_of_the_study():
    study, page = ((DOCS / f"{name}.md").read_text("utf-8") for name in ("study", "is-it-for-me"))
    lines = [line.split("|")[3:-1] for line in pages.find(study, "study map").splitlines()]
    links, _, *cases = [cells for cells in lines if len(cells) > 1]
    for link, *column in zip(links, *cases, strict=True):
        ties = sum("noise" in case for case in column)
        lost = sum("**" in case for case in column)
        speeds = [float(each) for case in column for each in re.findall(r"([\d.]+) x", case)]
        won, name = len(column) - ties - lost, link.strip().replace("unshaped", "not limited")
        row = f"| {name} | {won} | {lost} | {ties} | {min(speeds):g} to {max(speeds):g} |"
        assert row in page


def _words(page):
    """Return how many words a page has outside of its blocks of code, without bars of tables."""
    text = FENCES.sub("", (DOCS / f"{page}.md").read_text("utf-8"))
    return sum(any(map(str.isalnum, word)) for word in text.split())


def test_the_catalogue_has_each_preset_with_its_options_and_the_size_of_its_frames():
    page = (DOCS / "codec-catalogue.md").read_text("utf-8")
    sections = dict(re.findall(r"^## (\w+)\n\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert list(sections) == [preset.name for preset in OWN]
    draw = np.random.default_rng(0)
    tensors = draw.standard_normal((3, 1024, 1024), dtype=np.float32)
    for preset in OWN:
        shown, _, said = sections[preset.name].removeprefix("`gradwire.").partition("`\n")
        codec = eval(f"gradwire.{shown}", {"gradwire": gradwire})
        plain = {name: preset.example[name] for name in presets.required(preset)}
        assert codec == preset.build(**plain), preset.name
        options = set(inspect.signature(preset.build).parameters)
        own = options - {"quantize", "memory", "indices", "exchange"}
        assert set(re.findall(r"[(,] ?(\w+)=", shown)) == own
        labels = re.findall(r"^- \*\*([\w ]+)\*\*", said, re.MULTILINE)
        assert labels == ["Sends", "Size", "Optimizer", "Avoid it"]
        if size := re.search(r"\*\*Size\*\* (about )?([\d.]+) bits per entry", said):
            codec = codec.for_shape(tensors[0].shape)
            state = codec.init_state(tensors[0])
            frames = [bytes(codec.encode(each, state)) for each in tensors]
            within = 0.1 if size[1] else 0.01
            bits = 8 * len(frames[-1]) / tensors[0].size
            assert bits == pytest.approx(float(size[2]), abs=within), preset.name


def _messages():
    """Return the texts in the sources, with … where something is put in."""
    for path in (ROOT / "python").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "…"
                    for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
    for path in (ROOT / "rust").glob("*/src/**/*.rs"):
        yield path.read_text("utf-8")


def test_messages_under_troubleshooting_are_those_of_the_sources():
    page = (DOCS / "troubleshooting.md").read_text("utf-8")
    headings = re.findall(r"^### `(.*)`$", page, re.MULTILINE)
    assert len(headings) >= 23
    texts = list(_messages())
    for heading in headings:
        parts = [part for part in heading.split("…") if part.strip()]
        assert any(all(part in text for part in parts) for text in texts), heading


@pytest.mark.parametrize(
    ("shelf", "words"), [("Use", 13_000), ("Results", 8_000), ("Inside", 14_500)]
)
def test_a_shelf_stays_short(shelf, words):
    index = (DOCS / "index.md").read_text("utf-8")
    names = index.partition(f":caption: {shelf}\n:hidden:\n")[2].partition("```")[0]
    pages = re.findall(r"^(?:.*<)?([\w-]+)>?$", names, re.MULTILINE)
    counts = {name: _words(name) for name in pages}
    assert counts
    assert sum(counts.values()) <= words, counts
