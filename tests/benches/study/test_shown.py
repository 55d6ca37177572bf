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
from benches.study.reading import Outcome
from benches.study.store import Store
from benches.study.times import StepTime
from tests.benches.study.made import MIXED, OWNED, PLAN, decide, keep_cells


def test_the_map_has_a_cell_for_every_link_and_number_of_ranks(findings):
    lines = tables.map_of(findings.found)
    assert "| 25 M parameters, ranks | 100 Mbit/s | unshaped |" in lines
    assert sum(line.startswith(("| 2 |", "| 3 |", "| 4 |")) for line in lines) == 6
    wanted = "| 2 | adam(0.01) 5.0 x | **bf16** (adam(0.01) 0.83 x) |"
    assert wanted in lines


def test_every_loss_is_told(findings):
    text = "\n".join(tables.losses(findings.found))
    lost = [each for each in findings.found.values() if each.winner.kind == "dense"]
    assert len(re.findall(r"^\| (25 M|Clicks)", text, re.MULTILINE)) == len(lost) > 0
    won = len(findings.found) - len(lost)
    assert f"wins {won} and a dense one {len(lost)}; in 0 " in text
    assert "Below the accuracy of dense: `adam(0.002), warm-up` in 6" in text


def test_a_time_shows_its_spread_its_gain_and_its_bucket(findings):
    text = "\n".join(tables.times(findings.found, LARGE, 2))
    spread = "± 2% of 3 turns"
    assert f"| no exchange | 1 s {spread} | 1 s {spread} |" in text
    assert f"\n| fp32 | 11 s {spread}, 25 MB |" in text
    assert f"\n| adam(0.01) | 1.2 s {spread} (5.0 x) |" in text
    assert "**0.83 x**" in text


@pytest.mark.parametrize(
    ("count", "text"), [(1, "(one turn)"), (2, "± 20% of 2 turns"), (5, "± 20%")]
)
def test_a_spread_says_of_how_few_turns_it_is(count, text):
    assert tables.spread(StepTime(1.0, 0.8, 1.2, count, None, 1.0)) == text


def unsure(findings) -> dict[Cell, Outcome]:
    """Return a cell in which times spread too much, and one is below that without exchange."""
    cell = Cell(LARGE, 2, None)
    outcome = findings.found[cell]
    best = outcome.results["adam(0.01)"]
    step = replace(best.step, seconds=0.9, low=0.5, high=1.3)
    results = {**outcome.results, "adam(0.01)": replace(best, step=step)}
    return {cell: replace(outcome, results=results)}


def test_a_cell_within_the_noise_has_a_word_of_its_own(findings, tmp_path):
    found = unsure(findings)
    assert "| 2 | *within the noise* (adam(0.01) 1.1 x†) |" in tables.map_of(found)
    assert tables.marks(found)[-1].startswith("† less than")
    assert tables.marks(findings.found) == []
    assert tables.counts(found) == (0, 0, 1)
    text = "\n".join(tables.losses(found))
    assert "Within the noise: `adam(0.01)` in 1." in text
    assert "| 25 M parameters | 2 | unshaped | *within the noise* | adam(0.01) | 1.1 x |" in text
    picture.draw(found, tmp_path / "map.svg")
    drawn = (tmp_path / "map.svg").read_text("utf-8")
    assert drawn.count("within the noise") > 1  # the cell, and the legend
    assert "pattern" in drawn  # hatched


def test_what_auto_decided_stands_beside_whose_steps_it_is_given(findings):
    lines = tables.decisions(findings.found)
    after = "yes after 24 steps, 3.1 s"
    assert f"| 25 M parameters | 2 | 100 Mbit/s | the codec at ratio 0.02 | {after} |  |" in lines
    known = findings.found[Cell("clicks", 2, None)].results
    assert known["auto"].steps == known["adam(0.01)"].steps
    like = "adam(0.01) at dense training's rate"
    line = f"| Clicks | 2 | unshaped | the codec at ratio 0.02 | {after} | {like} |"
    assert line in lines


def test_a_decision_without_a_curve_is_marked_wherever_it_stands(findings):
    assert tables.UNKNOWN not in "\n".join(page.table_lines(findings))
    decide(findings.store, OWNED, ranks=(3, 4))
    found = Findings.of(PLAN, findings.store).found
    lines = tables.decisions(found)
    settled = "yes after 24 steps, 3.1 s"
    assert f"| 25 M parameters | 3 | 100 Mbit/s | {MIXED}‡ | {settled} |  |" in lines
    assert f"| Clicks | 4 | 100 Mbit/s | {MIXED}‡ | {settled} | none |" in lines
    assert sum("‡ |" in line for line in lines) == 4
    assert lines[-1].startswith("‡ no curve was trained with ")
    times = [tables.times(found, section, 3)[-1] for section in (LARGE, "clicks")]
    spread = "± 0% of 3 turns"
    assert times[0].startswith(f"| auto | 1.05 s {spread} (5.7 x, not trained‡) |")
    assert times[1].startswith("| auto | not trained‡ |")
    assert "| 3 | adam(0.01) 5.0 x |" in "\n".join(tables.map_of(found))
    assert "Without a curve: `auto` in 2." in "\n".join(tables.losses(found))


def test_the_rates_that_were_tried_stand_beside_accuracies(findings):
    text = "\n".join(page.table_lines(findings))
    ours = re.search(r"^\| Clicks, adam\(0\.01\) \| 2 \|.*$", text, re.MULTILINE)
    assert ours[0].endswith("| 0.008 (1), **0.016 (3)**, an end |")


def test_a_whole_run_stands_beside_the_product(findings):
    step = findings.found[Cell("clicks", 2, 100_000_000)].results["fp32"].step
    run = store.Whole("clicks", "fp32", 2, 100_000_000, step.bucket, 0.016, 0, 2000)
    record = {"seconds": 3 * 2000 * step.seconds, "median": 7.0, "processor_seconds": 0.2,
              "replicas_identical": True, "load": [[1e6] * 3] * 2, "loss": 0.45}  # fmt: skip
    findings.store.keep(store.whole_key(run), record)
    text = "\n".join(page.table_lines(findings))
    assert "**Whole runs beside the product**" in text
    (line,) = [each for each in text.split("\n") if each.startswith("| fp32, clicks, 2 ranks")]
    assert f"| **3.00** | 7e+03, {1e3 * step.seconds:.3g} ms |" in line
    assert "| 1000000.0 | 0.450000 |" in line
    assert findings.loaded
    assert "on a machine with other work" in findings.note


def test_the_page_says_what_is_shown_and_names_every_machine(findings):
    last = findings.store.records[len(PLAN.cells()) - 1]
    last["machine"] = {**last["machine"], "processor": "Another", "simd": "scalar"}
    found = Findings.of(PLAN, findings.store)
    text = "\n".join(page.source(found, "data"))
    assert "Links: 100 Mbit/s and unshaped. Processes: 2, 3 and 4. At most 3 turns" in text
    assert "Curves: one seed, 2 and 4 ranks." in text
    assert "; Another, " in text
    assert "SIMD level scalar." in text
    assert "**Short run; times of several machines.**" in text
    assert re.search(r"\d+ curves are of `make accuracy`, with torch 2\.0\.", text)
    readme = "\n".join(page.readme_lines(found))
    assert "by the step rate of 25 M parameters and by the time to the accuracy of dense" in readme


def test_the_picture_shows_every_winner_and_says_that_a_run_was_short(findings, tmp_path):
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


def test_what_is_missing_stands_beside_the_figures(findings, tmp_path):
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


def recorded(block: str) -> Findings:
    """Return the findings of the records that the page shows: more may have been made since."""
    named = re.search(
        r"the first (\d+) records of \[the data\]\(\.\./(benches/results/study[\w-]*\.jsonl)\)",
        block,
    )
    assert named is not None
    count, path = named.groups()
    kept = Store(blocks.ROOT / path)
    del kept.records[int(count) :]
    short = Path(path) == store.QUICK.relative_to(blocks.ROOT)
    return Findings.of(page.shown(short, kept), kept)


def test_the_page_and_the_readme_are_those_of_their_data():
    text, readme = (each.read_text("utf-8") for each in (page.PAGE, page.README))
    shown = blocks.find(text, page.MAP)
    if page.NOTHING in shown:
        assert page.NOTHING in blocks.find(readme, page.SHOWN)
        return
    found = recorded(shown)
    path = found.store.path.relative_to(blocks.ROOT).as_posix()
    assert shown.split("\n")[1:-1] == page.map_lines(found, f"../{path}")
    assert blocks.find(text, page.TABLES).split("\n")[1:-1] == page.table_lines(found)
    assert blocks.find(readme, page.SHOWN).split("\n")[1:-1] == page.readme_lines(found)
    figure = page.PAGE.with_name(page.FIGURE).read_text("utf-8")
    assert found.note in figure


@pytest.fixture
def published(monkeypatch, tmp_path):
    """A repository to publish in."""
    for name, each in (("PAGE", "docs/study.md"), ("README", "README.md")):
        target = tmp_path / each
        target.parent.mkdir(exist_ok=True)
        target.write_text(getattr(page, name).read_text("utf-8"))
        monkeypatch.setattr(page, name, target)
    monkeypatch.setattr(blocks, "ROOT", tmp_path)
    for name in ("QUICK", "RESULTS"):
        path = tmp_path / "benches/results" / getattr(store, name).name
        monkeypatch.setattr(store, name, path)
    return tmp_path


def test_what_is_published_depends_on_the_data_alone(published, accuracy, tmp_path, capsys):
    out = ["--out", str(tmp_path / "out")]
    before = page.README.read_text("utf-8")
    assert command.main(["--quick", "--publish", "--show", *out]) == 1
    assert "nothing to publish: no cell of " in capsys.readouterr().err
    assert page.README.read_text("utf-8") == before
    keep_cells(Store(store.QUICK), plan.quick())
    texts = []
    for only in (["--only", "25M,curves"], []):
        assert command.main(["--quick", "--publish", "--show", *only, *out]) == 0
        texts.append(page.PAGE.read_text("utf-8") + page.README.read_text("utf-8"))
        test_the_page_and_the_readme_are_those_of_their_data()
    assert texts[0] == texts[1]
    assert "25 M parameters" in texts[0]
    keep_cells(Store(store.QUICK), replace(plan.quick(), turns=9))  # made again, not published
    keep_cells(Store(store.QUICK), plan.quick(["text"]))
    test_the_page_and_the_readme_are_those_of_their_data()


def test_only_the_files_of_results_are_published(capsys):
    with pytest.raises(SystemExit):
        command.arguments(["--publish", "--results", "other.jsonl"])
    assert "--publish shows benches/results/study.jsonl" in capsys.readouterr().err


def test_a_plan_with_other_cells_finds_its_own(findings):
    one = replace(PLAN, links=(None,), ranks=(3,))
    assert list(findings.store.cells(one)) == [Cell(LARGE, 3, None), Cell("clicks", 3, None)]
