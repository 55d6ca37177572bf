"""The command as one calls it, and what it shows."""

import json

import pytest

from benches.harness import results
from benches.weights import __main__ as command
from benches.weights import clips, kernel, making, models, show
from benches.weights.plan import DIGITS, FLOAT, GRID, GRU, TEXT, USUAL, Plan
from benches.weights.work import Planned
from tests.benches.weights import working

pytestmark = pytest.mark.full  # trains

TIMES = {
    "rows": [
        {"x": 1, "name": name, "seconds": seconds}
        for name, seconds in ((kernel.BFLOAT16, 4e-3), (kernel.INT8, 2e-3), (kernel.FLOAT32, 3e-3))
    ]
}


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Call the command with processes that pretend to work, and times that are known."""

    def run(*given: str) -> int:
        return command.main(["--out", str(tmp_path / "out"), "--jobs", "1", *given])

    monkeypatch.setattr(making, "Pool", working.Pool)
    monkeypatch.setattr(command.kernel, "measure", lambda quick, tick: TIMES)
    monkeypatch.setattr(command.clips, "measure", list)
    monkeypatch.setattr(command.models, "available", lambda data: (TEXT, GRU, DIGITS))
    monkeypatch.setattr(models, "FOLDER", tmp_path / "kept")
    return run


LINE = "text   float32 1.500   8 bits 1.501   4 bits 1.510   3 bits 1.520   2 bits 1.540"


def test_a_quick_run_packs_the_first_model_and_ends_with_its_line(call, tmp_path, capsys):
    assert call("--quick") == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == f"{LINE}     one row: 2.0 × bfloat16"
    assert "6 runs; about" in out
    assert "text: trained; about" in out
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert names == {"runs.jsonl", "weights.json", "weights.md", "weights.svg"}


def test_what_is_finished_is_not_made_again(call, tmp_path, capsys):
    call("--quick")
    call()
    records = results.Store(tmp_path / "out" / "runs.jsonl").records
    runs = list(Plan((TEXT, GRU, DIGITS)).runs())
    assert len(records) == len(runs) == len(set(runs))
    capsys.readouterr()
    call()
    assert "runs; about" not in capsys.readouterr().out
    assert len(results.Store(tmp_path / "out" / "runs.jsonl").records) == len(runs)


def test_evaluations_wait_for_their_weights_and_go_when_these_are_lost(tmp_path):
    plan = Plan((DIGITS,), quick=True)
    work = Planned(plan, results.Store(tmp_path / "runs.jsonl"), tmp_path / "kept")
    while missing := work.missing():
        assert len(missing) == (1 if missing[0].setting is None else 5 - len(work.records()) + 1)
        work.keep(missing[0], working.answer(*work.order(missing[0])))
    models.place(DIGITS, tmp_path / "kept").unlink()
    again = Planned(plan, results.Store(tmp_path / "runs.jsonl"), tmp_path / "kept")
    assert again.records() == {}


def document(loss=working.row):
    rows = [
        {"model": "text", "title": "Text", "setting": vars(each), **loss(each)}
        for each in (FLOAT, *GRID)
    ]
    return {**results.circumstances(), "rows": rows, "clips": [], "kernel": {}}


def test_a_loss_that_is_too_large_fails():
    assert all(each.endswith(", met).") for each in show.targets(document()))

    def worse(setting):
        row = working.row(setting)
        return row | {"loss": row["loss"] + 0.1 * (setting == USUAL[1])}

    said = [each for each in show.targets(document(worse)) if "**missed**" in each]
    what = 'text, 4 bits, `"squares"`, block 64, compared with float32: loss +0.1100'
    assert said == [f"{what} (target: at most 0.012, **missed**)."]


def test_the_tables_have_every_fit_and_block_and_the_picture_every_fit(tmp_path):
    found = json.loads(json.dumps(document()))
    table = show.every(found)
    assert table.count("\n| 2 ") == 4
    assert all(f"block {block}" in table for block in (32, 64, 128))
    show.draw(found, tmp_path / "picture.svg")
    drawn = (tmp_path / "picture.svg").read_text("utf-8")
    assert all(f'"{fit}"' in drawn for fit in show.LOOKS)
    assert "float32" in drawn


def test_the_clip_from_moments_is_nearly_the_best():
    rows = clips.measure()
    assert len(rows) == 9
    assert all(0.98 < row["sawb"] / row["best"] <= clips.ALLOWED for row in rows)


def test_all_times_are_taken_and_shown(monkeypatch):
    for name, value in {"WIDTH": 128, "LAYERS": 2, "ROUNDS": 1, "FILE_BYTES": 1 << 17}.items():
        monkeypatch.setattr(kernel, name, value)
    monkeypatch.setattr(kernel, "ROWS", (1, 64))
    found = json.loads(json.dumps(kernel.measure(False, lambda text: None)))
    text = kernel.table(found)
    for name in (kernel.COPY, kernel.BFLOAT16, kernel.INT8, kernel.FLOAT32, 'pack, `"squares"`'):
        assert f"| {name}" in text
    assert "Opening a 0.00 GB file takes" in text
    assert kernel.one_row(found) > 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--jobs", "0"), "--jobs must be at least 1"),
        (("--quick", "--publish"), "--publish writes a whole run: leave out --quick"),
    ],
)
def test_wrong_arguments_are_named(call, capsys, given, said):
    with pytest.raises(SystemExit):
        call(*given)
    assert said in capsys.readouterr().err
