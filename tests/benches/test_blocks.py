"""Tables in the documentation are what the commands make of the files that they name."""

import json
import re

import pytest

pytest.importorskip("pandas", reason="the layer demo has pandas")

from benches.accuracy import methods, show, store
from benches.checkpoints import __main__ as checkpoints
from benches.compare.__main__ import state_bytes
from benches.harness import pages, results
from benches.plan import predict
from benches.quantize import show as quantize
from benches.study import show as study
from benches.study.__main__ import RESULTS
from benches.study.plan import Plan
from benches.weights import show as weights

DOCS = pages.ROOT / "docs"


def named(page: str, what: str):
    """Return the files of results that a page names."""
    found = dict.fromkeys(re.findall(rf"benches/results/[\w-]*{what}[\w-]*\.json\b", page))
    assert found, "the page names the runs that its tables come from"
    return [json.loads((pages.ROOT / each).read_text("utf-8")) for each in found]


def test_the_tables_and_the_figure_of_accuracy_are_those_of_their_run():
    found, summaries = show.published(store.PUBLISHED)
    text = (DOCS / "accuracy.md").read_text("utf-8")
    for name, block in show.page(
        found, summaries, f"../{results.relative(store.PUBLISHED)}"
    ).items():
        assert pages.find(text, name) == f"\n{block}\n"
    readme = (pages.ROOT / "README.md").read_text("utf-8")
    assert pages.find(readme, show.README) == f"\n{show.readme(summaries)}\n"
    figure, best = (DOCS / show.FIGURE).read_text("utf-8"), pages.find(text, show.BEST)
    for method in map(show.label, methods.METHODS):
        assert (f"| {method} " in best) == (f">{method}<" in figure or f"{method}," in figure)


def test_the_tables_of_checkpoints_frames_and_activations_are_those_of_their_run():
    for (page, name), table in checkpoints.blocks(results.read(checkpoints.PUBLISHED)).items():
        assert pages.find(page.read_text("utf-8"), name) == f"\n{table}\n"


def test_the_map_of_the_study_is_that_of_its_records():
    findings = study.Findings.of(Plan(), results.Store(RESULTS))
    text = (DOCS / "study.md").read_text("utf-8")
    block = study.page(findings, f"../{results.relative(RESULTS)}")
    assert pages.find(text, "study map") == f"\n{block}\n"
    readme = (pages.ROOT / "README.md").read_text("utf-8")
    assert pages.find(readme, "study") == f"\n{study.readme(findings)}\n"


def test_the_bytes_per_entry_are_those_of_states():
    text = (DOCS / "memory.md").read_text("utf-8")
    assert pages.find(text, "bytes per entry") == f"\n{state_bytes()}\n"


def test_predictions_and_auto_are_those_of_their_runs():
    text = (DOCS / "cost-measured.md").read_text("utf-8")
    tables = "\n\n".join(map(predict.table, named(text, "plan")))
    assert pages.find(text, "predicted and measured") == f"\n{tables}\n"
    measured = json.loads((results.FOLDER / "2026-11-23-auto.json").read_text("utf-8"))
    text = (DOCS / "auto-inside.md").read_text("utf-8")
    assert pages.find(text, predict.AUTO_BLOCK) == f"\n{predict.table_auto(measured)}\n"


def test_the_tables_and_the_picture_of_packed_weights_are_those_of_their_run():
    found = results.read(weights.PUBLISHED)
    text = weights.PAGE.read_text("utf-8")
    for name, block in weights.blocks(found).items():
        assert pages.find(text, name) == f"\n{block}\n"
    figure = weights.PAGE.with_name(weights.FIGURE).read_text("utf-8")
    for _, rows in weights.by_model(found):
        assert f">{rows[weights.FLOAT]['title']}<" in figure


def test_what_calibrated_packing_keeps_is_what_its_run_has():
    found = results.read(quantize.PUBLISHED)
    text = quantize.PAGE.read_text("utf-8")
    for name, block in quantize.blocks(found).items():
        assert pages.find(text, name) == f"\n{block}\n"
    figure = quantize.PAGE.with_name(quantize.FIGURE).read_text("utf-8")
    assert all(f">{method}<" in figure for method in quantize.LOOKS)


def test_a_block_is_replaced_and_nothing_else(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- x: by a command, begin -->\n\n<!-- x: end -->\nafter\n")
    pages.replace(path, "x", "one")
    pages.replace(path, "x", "two\nthree")
    assert pages.find(path.read_text(), "x") == "\ntwo\nthree\n"
    assert path.read_text().startswith("before\n")
    assert path.read_text().endswith("\nafter\n")
    with pytest.raises(ValueError, match="substring not found"):
        pages.replace(path, "y", "one")
