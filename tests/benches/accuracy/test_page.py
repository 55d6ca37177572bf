"""The page is what the command makes of the run that it names."""

import re

import pytest

from benches.accuracy import document, methods, show
from benches.compare import blocks

PAGE = blocks.ROOT / "docs" / "accuracy.md"
RUN = blocks.ROOT / re.findall(r"\.\./(benches/results/[\w.-]+\.json)", PAGE.read_text("utf-8"))[0]


@pytest.mark.parametrize("name", [show.BEST, show.RATES])
def test_the_tables_of_the_page_are_those_of_their_run(name):
    text = PAGE.read_text("utf-8")
    wanted = show.page(document.read(RUN), f"../{RUN.relative_to(blocks.ROOT).as_posix()}")[name]
    assert blocks.find(text, name).split("\n")[1:-1] == wanted


def test_the_table_of_the_readme_is_that_of_the_same_run():
    text = (blocks.ROOT / "README.md").read_text("utf-8")
    assert blocks.find(text, show.README).split("\n")[1:-1] == show.readme(document.read(RUN))


def test_the_figure_of_the_page_shows_every_method_of_its_tables():
    text = PAGE.read_text("utf-8")
    assert show.PICTURE in text
    figure = PAGE.with_name(show.FIGURE).read_text("utf-8")
    block = blocks.find(text, show.BEST)
    for method in methods.METHODS:
        assert (f"| {method} |" in block) == (f">{method}<" in figure or f"{method}," in figure)
