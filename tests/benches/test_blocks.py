"""Tables in the documentation are what the commands make of the files that they name."""

import pytest

pytest.importorskip("pandas", reason="the layer demo has pandas")


from benches.accuracy import methods, show, store
from benches.compare.__main__ import state_bytes
from benches.harness import pages, results
from benches.study import auto
from benches.study import show as study
from benches.study.__main__ import RESULTS
from benches.study.plan import Plan
from benches.weights import show as weights
from benches.weights.__main__ import PARTS
from benches.weights.losses import KINDS

DOCS = pages.ROOT / "docs"


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


def test_auto_beside_all_others_is_that_of_its_run():
    measured = results.read(results.FOLDER / "2026-11-29-auto.json")
    text = (DOCS / "auto-inside.md").read_text("utf-8")
    assert pages.find(text, auto.BLOCK) == f"\n{auto.table(measured)}\n"


@pytest.mark.parametrize("part", PARTS)
def test_the_tables_and_pictures_of_weights_are_those_of_their_run(part):
    found = results.read(results.FOLDER / f"{part}.json")
    for (page, name), block in weights.blocks(found, part).items():
        assert pages.find(page.read_text("utf-8"), name) == f"\n{block}\n"
    if part in KINDS:
        figure = (DOCS / f"{part}.svg").read_text("utf-8")
        for rows in weights.by_model(found, KINDS[part]).values():
            assert f">{rows[KINDS[part]()]['title']}<" in figure


def test_a_record_is_a_line(tmp_path):
    records = [{"x": 1, "text": "two\nlines"}, {"x": [1.5, None]}]
    for document in ({"date": "", "rows": records, "times": {"rows": records}}, {"a": {"b": 1}}):
        results.write(document, tmp_path / "run.json")
        assert results.read(tmp_path / "run.json") == document
    results.write({"date": "", "rows": records}, tmp_path / "run.json")
    text = (tmp_path / "run.json").read_text()
    assert text.splitlines()[3:5] == ['{"x": 1, "text": "two\\nlines"},', '{"x": [1.5, null]}']
    for path in results.FOLDER.glob("*.json"):
        assert max(path.read_text("utf-8").count("\n"), 1) < 700
