"""The tables and the map: every loss is in them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benches.compare import blocks
from benches.study import __main__ as command
from benches.study import page, picture, plan, store, tables
from benches.study.page import Findings
from benches.study.plan import LARGE, Cell
from benches.study.store import Store
from tests.benches.study.made import PLAN
from tests.benches.study.test_winners import findings  # noqa: F401


def test_the_map_has_a_cell_for_every_link_and_number_of_ranks(findings):  # noqa: F811
    lines = tables.map_of(findings.found)
    assert "| 25 M parameters, ranks | 100 Mbit/s | unshaped |" in lines
    assert sum(line.startswith(("| 2 |", "| 3 |", "| 4 |")) for line in lines) == 6
    wanted = "| 2 | adam(0.01) 5.0 x | **bf16** (adam(0.01) 0.83 x) |"
    assert wanted in lines


def test_every_loss_is_told(findings):  # noqa: F811
    text = "\n".join(tables.losses(findings.found))
    lost = [each for each in findings.found.values() if each.winner.kind == "dense"]
    assert len(re.findall(r"^\| (25 M|Clicks)", text, re.MULTILINE)) == len(lost) > 0
    assert f"wins {len(findings.found) - len(lost)};" in text
    assert "Below the accuracy of dense: `adam(0.002), warm-up` in 6" in text


def test_a_time_shows_its_spread_its_gain_and_its_bucket(findings):  # noqa: F811
    text = "\n".join(tables.times(findings.found, LARGE, 2))
    assert "| no exchange | 1 s | 1 s |" in text
    assert re.search(r"^\| fp32 \| 11 s ± \d+%, 25 MB \|", text, re.MULTILINE)
    assert re.search(r"^\| adam\(0\.01\) \| 1\.2 s ± \d+% \(5\.0 x\) \|", text, re.MULTILINE)
    assert "**0.83 x**" in text


def test_the_picture_shows_every_winner_and_says_that_a_run_was_short(findings, tmp_path):  # noqa: F811
    path = tmp_path / "map.svg"
    picture.draw(findings.found, path, findings.note)
    text = path.read_text("utf-8")
    assert "short run" in text
    assert "prefers-color-scheme: dark" in text
    for outcome in findings.found.values():
        assert f">{tables.short(outcome.winner.method)}<" in text


def test_every_method_has_a_colour():
    names = {
        name
        for section in plan.SECTIONS
        for name, each in page.methods.compared(section).items()
        if each.kind != "none"
    }
    assert names <= picture.COLORS.keys()


def test_what_is_missing_stands_beside_the_figures(findings, tmp_path):  # noqa: F811
    assert findings.missing == ""
    kept = Store(tmp_path / "part.jsonl")
    for record in findings.store.records[:3]:
        kept.add(record)
    part = Findings.of(PLAN, kept)
    assert "cells" in part.missing
    lines = page.write(part, tmp_path / "out")
    assert any("Short run; missing:" in line for line in lines)
    assert (tmp_path / "out" / "study.md").read_text("utf-8") == "\n".join(lines)


def test_names_choose_models_and_parts():
    chosen = command.arguments(["--only", "clicks,steps"])
    made, parts = command.planned(chosen)
    assert (list(made.sections), parts) == (["clicks"], ["steps"])
    made, parts = command.planned(command.arguments(["--quick"]))
    assert made.quick
    assert parts == list(command.PARTS)


def test_a_name_that_is_unknown_is_an_error(capsys):
    with pytest.raises(SystemExit):
        command.arguments(["--only", "vision"])
    assert "unknown name vision; choose from 25M, text" in capsys.readouterr().err


def recorded() -> Findings:
    """Return the findings of the data that the page names."""
    text = page.PAGE.read_text("utf-8")
    path = re.findall(r"\.\./(benches/results/study[\w-]*\.jsonl)", text)[0]
    short = Path(path) == store.QUICK.relative_to(blocks.ROOT)
    return Findings.of(plan.quick() if short else plan.Plan(), Store(blocks.ROOT / path))


def test_the_page_and_the_readme_are_those_of_their_data():
    found = recorded()
    path = found.store.path.relative_to(blocks.ROOT).as_posix()
    text = page.PAGE.read_text("utf-8")
    map_lines = blocks.find(text, page.MAP).split("\n")[1:-1]
    assert map_lines == page.map_lines(found, f"../{path}")
    assert blocks.find(text, page.TABLES).split("\n")[1:-1] == page.table_lines(found)
    readme = page.README.read_text("utf-8")
    assert blocks.find(readme, page.SHOWN).split("\n")[1:-1] == page.readme_lines(found)
    figure = page.PAGE.with_name(page.FIGURE).read_text("utf-8")
    assert found.note in figure


def test_a_plan_with_other_cells_finds_its_own(findings):  # noqa: F811
    one = replace(PLAN, links=(None,), ranks=(3,))
    assert list(findings.store.cells(one)) == [Cell(LARGE, 3, None), Cell("clicks", 3, None)]
