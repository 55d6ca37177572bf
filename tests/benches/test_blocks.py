"""Tables in the documentation are what the command makes of the file that they name."""

import re

import pytest

from benches.accuracy.store import Lines
from benches.compare import aims, blocks, markdown, record, show, state_bytes
from benches.scatter import accuracy

README = blocks.ROOT / "README.md"
PERFORMANCE = blocks.ROOT / "docs" / "performance.md"


def source(block: str) -> str:
    found = re.search(r"benches/results/[\w.-]+\.jsonl?", block)
    assert found, "a table names the run that it comes from"
    return found[0]


@pytest.mark.parametrize("name", ["encode"])
def test_a_table_of_the_readme_is_that_of_its_run(name):
    text = README.read_text()
    path = source(text)
    wanted = markdown.page(record.read(blocks.ROOT / path), path)[name]
    assert blocks.find(text, name).split("\n")[1:-1] == wanted


@pytest.mark.parametrize("level", ["avx512", "avx2"])
def test_the_aims_in_the_documentation_are_those_of_their_run(level):
    block = blocks.find(PERFORMANCE.read_text(), f"aims {level}")
    path = source(block)
    document = record.read(blocks.ROOT / path)
    assert aims.block(document) == f"aims {level}"
    assert block.split("\n")[1:-1] == aims.markdown(document, path)


def test_the_sections_in_the_documentation_are_those_of_their_run():
    block = blocks.find(PERFORMANCE.read_text(), show.BLOCK)
    path = source(block)
    assert block.split("\n")[1:-1] == show.page(record.read(blocks.ROOT / path), path)


def test_losses_by_exchange_in_the_documentation_are_those_of_their_runs():
    block = blocks.find((blocks.ROOT / "docs" / "exchanges.md").read_text(), accuracy.BLOCK)
    path = source(block)
    rows = accuracy.current(Lines(blocks.ROOT / path))
    assert block.split("\n")[1:-1] == accuracy.show(rows, path)


def test_the_bytes_per_entry_in_the_documentation_are_those_of_states():
    block = blocks.find((blocks.ROOT / "docs" / "memory.md").read_text(), "bytes per entry")
    assert block.split("\n")[1:-1] == state_bytes.table()


def test_a_block_is_replaced_and_nothing_else(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- x: by a command, begin -->\n\n<!-- x: end -->\nafter\n")
    blocks.replace(path, "x", ["one"])
    blocks.replace(path, "x", ["two", "three"])
    assert blocks.find(path.read_text(), "x") == "\ntwo\nthree\n"
    assert path.read_text().startswith("before\n")
    assert path.read_text().endswith("\nafter\n")


def test_a_page_without_the_block_is_an_error(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("nothing here\n")
    with pytest.raises(ValueError, match="substring not found"):
        blocks.replace(path, "x", ["one"])
    assert path.read_text() == "nothing here\n"
