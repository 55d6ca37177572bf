"""The page is what the command makes of the run that it names."""

import re

import pytest

from benches.accuracy import document, methods, show
from benches.compare import blocks

PAGE = blocks.ROOT / "docs" / "accuracy.md"


@pytest.mark.parametrize("name", [show.BEST, show.RATES])
def test_the_tables_of_the_page_are_those_of_their_run(name):
    text = PAGE.read_text("utf-8")
    found = re.search(r"\.\./(benches/results/[\w.-]+\.json)", text)
    wanted = []  # without a run that is complete
    if found:
        wanted = show.page(document.read(blocks.ROOT / found[1]), found[0])[name]
    assert blocks.find(text, name).strip("\n").split("\n") == (wanted or [""])


def test_the_table_of_the_readme_is_that_of_the_same_run():
    found = re.search(r"\.\./(benches/results/[\w.-]+\.json)", PAGE.read_text("utf-8"))
    wanted = show.readme(document.read(blocks.ROOT / found[1])) if found else []
    text = (blocks.ROOT / "README.md").read_text("utf-8")
    assert blocks.find(text, show.README).strip("\n").split("\n") == (wanted or [""])


def test_the_figure_of_the_page_shows_every_method_of_its_tables():
    text = PAGE.read_text("utf-8")
    if show.PICTURE not in text:
        pytest.skip("no run of make accuracy is in the documentation")
    figure = PAGE.with_name(show.FIGURE).read_text("utf-8")
    block = blocks.find(text, show.BEST)
    for method in methods.METHODS:
        assert (f"| {method} |" in block) == (f">{method}<" in figure or f"{method}," in figure)
