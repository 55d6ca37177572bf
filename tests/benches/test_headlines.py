"""The headlines: what is counted, that runs are kept, and that the page has what they show."""

import json
import signal
import time

import numpy as np
import pytest
import torch

import gradwire
from benches import stopping
from benches.accuracy.flat import Flat
from benches.accuracy.methods import Method
from benches.accuracy.rules import encoding
from benches.accuracy.run import run
from benches.circumstances import same_versions
from benches.compare import blocks
from benches.headlines import __main__ as command
from benches.headlines import counting, details, gains, links, page, plan, results, trainings
from benches.headlines.claims import CLAIMS
from benches.headlines.counting import Counting
from benches.headlines.results import RESULTS, Results
from tests.benches.accuracy.toy import Plain

NO_MOMENTUM = {"momentum": 0.0}


def test_entries_cost_a_byte_in_short_bins_and_two_in_long_ones():
    sent = counting.Sent()
    sent.add(numel=1000, count=20, nbytes=50, bits=counting.bits(50))
    assert counting.rate(vars(sent)) == (32 * 1000 / (8 * 20), 32 * 1000 / (8 * 50))
    sent.add(numel=1000, count=4, nbytes=30, bits=counting.bits(500))
    assert counting.rate(vars(sent))[0] == 32 * 2000 / (8 * 20 + 16 * 4)


def test_what_adacomp_sends_is_counted_by_the_kind_of_layer():
    class Layers(Plain):
        def model(self, seed):
            torch.manual_seed(seed)
            return torch.nn.Sequential(
                torch.nn.Unflatten(1, (1, 32)),
                torch.nn.Conv1d(1, 64, 32),
                torch.nn.Flatten(),
                torch.nn.Linear(64, 64),
                torch.nn.Linear(64, 8),
            )

    method = Counting(Method(gradwire.adacomp(), "sgd", NO_MOMENTUM))
    curve = run(Layers(), method, 0.1, ranks=2, steps=5)
    assert not curve.diverged
    found = method.record()
    assert found.keys() == {"convolution", "fully connected"}
    steps = 2 * 5
    assert found["convolution"]["numel"] == steps * 64 * 32
    assert found["fully connected"]["numel"] == steps * 64 * 64
    for name, width in (("convolution", 8), ("fully connected", 16)):
        sent = found[name]
        # At least the largest entry of each bin.
        assert steps * sent["numel"] // steps // (50 if width == 8 else 500) <= sent["count"]
        assert sent["count"] < sent["numel"]
        assert sent["paper_bits"] == width * sent["count"]
        assert 0 < sent["frame_bytes"] < 4 * sent["numel"]


def test_only_adacomp_is_counted():
    method = Counting(Method(gradwire.topk(ratio=0.1), "sgd", NO_MOMENTUM))
    with pytest.raises(ValueError, match="only AdaComp's bins are counted"):
        run(Plain(), method, 0.1, ranks=2, steps=1)


@pytest.mark.parametrize("beta", [1.0, 0.3])
def test_a_leader_selects_for_all_and_its_average_is_that_of_sums(beta):
    """A plain model of the exchange: largest entry of each chunk of the leader's sums."""
    chunk, ranks, steps = 16, 3, 6
    flat = Flat(torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.Linear(40, 40)))
    led = encoding(flat, ranks, gradwire.scalecom(chunk=chunk, beta=beta))
    memory = np.zeros((ranks, flat.cut), np.float32)
    out = torch.zeros_like(flat.gradients)
    generator = np.random.default_rng(0)
    for step in range(steps):
        given = generator.standard_normal((ranks, flat.gradients.numel()), np.float32)
        for rank in range(ranks):
            led.take(rank, torch.from_numpy(given[rank].copy()))
        led.average(out)
        wanted = np.zeros(flat.cut, np.float32)
        for piece in flat.pieces:
            place = slice(piece.start, piece.stop)
            whole = memory[:, place] + given[:, place]
            chosen = [
                begin + int(np.abs(part).argmax())
                for begin in range(0, whole.shape[1], chunk)
                for part in [whole[step % ranks, begin : begin + chunk]]
            ]
            mask = np.zeros(whole.shape[1], bool)
            mask[chosen] = True
            wanted[place][mask] = whole[:, mask].mean(0)
            kept = np.where(
                mask, (1 - beta) * memory[:, place], memory[:, place] + beta * given[:, place]
            )
            memory[:, place] = kept
        np.testing.assert_allclose(out.numpy()[: flat.cut], wanted, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            out.numpy()[flat.cut :], given[:, flat.cut :].mean(0), rtol=1e-5, atol=1e-6
        )
    for rank in range(ranks):
        for piece, state in zip(flat.pieces, led.states[rank], strict=True):
            place = slice(piece.start, piece.stop)
            np.testing.assert_allclose(state.residual, memory[rank][place], rtol=1e-5, atol=1e-6)


def test_bytes_with_a_leader_do_not_grow_with_the_ranks():
    flat = Flat(torch.nn.Linear(64, 64))
    sizes = {}
    for ranks in (2, 8, 64):
        led = encoding(flat, ranks, gradwire.scalecom(chunk=64))
        for rank in range(ranks):
            led.take(rank, torch.ones_like(flat.gradients))
        led.average(torch.zeros_like(flat.gradients))
        sizes[ranks] = led.nbytes
    assert sizes[64] <= 2 * sizes[2]
    assert sizes[64] == pytest.approx(sizes[8] * (63 / 64) / (7 / 8))


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Call the command with tasks and links that take milliseconds."""
    monkeypatch.setattr(results, "TASKS", dict.fromkeys(results.TASKS, Plain))
    short = {
        name: trainings.Setting(each.task, each.batch, 20)
        for name, each in trainings.SETTINGS.items()
    }
    monkeypatch.setattr(trainings, "SETTINGS", short)
    monkeypatch.setattr(results, "SETTINGS", short)
    path = tmp_path / "runs.jsonl"

    def command_line(*given):
        command.main(["--out", str(path), *given])
        return path

    return command_line


def test_an_interrupted_command_goes_on_where_it_was(call, capsys):
    path = call("--only", "adacomp")
    whole = path.read_text()
    assert len(Results(path).trained()) == len(plan.trainings("adacomp"))
    path.write_text(whole[:-20])
    capsys.readouterr()
    call("--only", "adacomp")
    out = capsys.readouterr().out
    assert "; 0 left" in out
    assert "; 1 left" not in out
    again = [json.loads(line)["points"] for line in whole.splitlines()]
    assert [each["points"] for each in Results(path).records] == again
    assert "as the paper counts" in out


def test_what_was_timed_is_kept_until_it_is_wanted_again(call, monkeypatch):
    times = []

    def measured(*, quick, rounds):
        times.append((quick, rounds))
        low = {"bytes_per_step": 100.0, "loss": 0.1, "accuracy": 0.99, "seconds": 8.0}
        scheduled = {**low, "bytes_per_step": 20.0, "seconds": 2.0}
        schedule = {"low": 0.5, "high": 0.02}
        row = {"schedule": schedule, "low": low, "scheduled": scheduled, "rate": "100mbit"}
        return [{**row, "load": [0.1, 1.5 if quick or rounds > 1 else 1e4]}] * rounds

    monkeypatch.setitem(command.TIMED, "accordion", measured)
    path = call("--only", "accordion", "--rounds", "1")
    call("--only", "accordion", "--rounds", "1")
    assert times == [(False, 1)]
    found = page.blocks(Results(path))
    assert "**One run of each, on a loaded machine:** 5.0 × fewer" in "\n".join(found["headlines"])
    assert "load 0.1 to 10000.0" in found["accordion"][-1]
    assert "1 run of each. **One run of each, on a loaded machine.**" in found["accordion"][-1]
    # So few are not what is asked for.
    call("--only", "accordion")
    call("--only", "accordion")
    assert times[1:] == [(False, 3)]
    call("--only", "accordion", "--again")
    assert times[2:] == [(False, 3)]
    record = Results(path).measured("accordion")
    assert {"date", "machine", "versions", "rows"} <= record.keys()
    assert record["key"]["rounds"] == 3
    found = page.blocks(Results(path))
    assert "| 5.0 × (5.0 to 5.0) fewer bytes and 4.0 ×" in "\n".join(found["headlines"])
    assert any("100 Mbit/s" in line for line in found["accordion"])
    assert "loaded" not in found["accordion"][-1]


@pytest.mark.parametrize(
    "change",
    [
        {"machine": {"processor": "another one"}},
        {"versions": {"torch": "another one"}},
        {"key": {"edition": 0}},
    ],
)
def test_times_of_another_machine_version_or_edition_are_shown_but_made_again(tmp_path, change):
    kept = Results(tmp_path / "runs.jsonl")
    row = {"method": "x", "seconds": 1.0, "load": 0.5}
    kept.keep("dryden", [row], rounds=7, quick=False)
    assert kept.complete("dryden", rounds=7)
    assert kept.complete("dryden", rounds=3)
    assert not kept.complete("dryden", rounds=8)
    record = kept.records[-1]
    other = Results(tmp_path / "others.jsonl")
    other.add({**record, **{name: {**record[name], **new} for name, new in change.items()}})
    assert other.measured("dryden") is not None
    assert not other.complete("dryden", rounds=7)


def test_trainings_of_other_versions_are_made_again(call):
    path = call("--only", "scalecom", "--quick")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["versions"]["torch"] = "another one"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    call("--only", "scalecom", "--quick")
    kept = Results(path)
    assert len(kept.records) == 3
    assert len(kept.trained()) == 2
    assert all(same_versions(each) for each in kept.trained().values())
    path.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    (said,) = [
        line for line in page.blocks(Results(path), quick=True)["scalecom"] if "1 of" in line
    ]
    assert "torch another one" in said


def test_what_is_planned_and_not_made_is_named(call):
    path = call("--only", "scalecom", "--quick")
    found = page.blocks(Results(path))["scalecom"]
    assert any("not made yet" in line and "beta 0.1, 64 learners" in line for line in found)


def test_a_quick_run_has_a_file_of_its_own(call, monkeypatch, tmp_path):
    monkeypatch.setattr(command, "QUICK", tmp_path / "quick.jsonl")
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results.jsonl")
    command.main(["--only", "scalecom", "--quick"])
    assert (tmp_path / "quick.jsonl").exists()
    assert not (tmp_path / "results.jsonl").exists()


def test_a_command_that_is_terminated_closes_what_it_has_opened(call, monkeypatch, capsys):
    closed = []

    def measured(*, quick, rounds):
        try:
            signal.raise_signal(signal.SIGTERM)
            time.sleep(0.1)
            pytest.fail("it goes on")
        finally:
            closed.append(quick)

    monkeypatch.setitem(command.TIMED, "accordion", measured)
    before = signal.getsignal(signal.SIGTERM)
    assert stopping.run(lambda: call("--only", "accordion")) == stopping.INTERRUPTED
    assert closed == [False]
    assert "interrupted" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("name", ["auto", "compare", "diloco", "headlines", "plan", "scatter"])
def test_commands_that_start_processes_stop_cleanly(name):
    text = (blocks.ROOT / "benches" / name / "__main__.py").read_text("utf-8")
    assert text.endswith("    sys.exit(stopping.run(main))\n")


def test_a_quick_run_is_not_taken_for_a_whole_one(call):
    path = call("--only", "scalecom", "--quick")
    kept = Results(path)
    assert len(kept.trained()) == 2
    assert not any(each in kept.trained() for each in plan.trainings("scalecom"))


def test_gains_are_over_the_step_of_sidco():
    seconds = {
        "none": 0.4, "torch.topk": 0.3, "DGC in torch": 0.2, "SIDCo in torch": 0.2,
        "gradwire topk": 0.1, "gradwire dgc": 0.1, "gradwire sidco": 0.1,
    }  # fmt: skip
    shared = {"ranks": 2, "numel": 10_000, "nbytes": 8 * 300, "rounds": 3}
    rows = [
        {**shared, "ratio": 0.01, "rate": rate, "method": name, "seconds": slow * each,
         "fastest": each / 2, "slowest": 2 * each}
        for rate, slow in (("1gbit", 1.0), ("100mbit", 2.0))
        for name, each in seconds.items()
    ]  # fmt: skip
    rows[0]["seconds"] = 0.8
    found = details.sidco(rows)
    begin = "| 0.01, 1 Gbit/s | 100 (50 to 200) | 8.0 × | 3.0 × | 2.0 × |"
    assert any(line.startswith(begin) for line in found)
    assert "| 0.01, 1 Gbit/s | 200 (100 to 400) | 1.5 × | 1.0 × | 3.0 × |" in found
    words = gains.sidco(rows)
    assert "over none 6.0 × (4.0 × at 0.01, 100 Mbit/s to 8.0 × at 0.01, 1 Gbit/s)" in words
    assert "Within torch: over torch.topk 1.5 ×" in words
    assert "Within gradwire: over gradwire topk 1.0 ×" in words


def test_the_highest_rate_that_costs_nothing_is_named_else_the_one_that_costs_least():
    def run(method, ranks):
        return trainings.Training("fully connected", method, ranks, 0.1)

    def record(accuracy):
        return {"diverged": False, "points": [{"accuracy": accuracy}], "bytes_per_step": 1.0}

    made = {
        run(trainings.DENSE, 2): record(0.9),
        run("scalecom 65", 8): record(0.91),
        run("scalecom 200", 8): record(0.8982),
        run("scalecom 400", 8): record(0.88),
        run("scalecom 400", 64): {**record(0.9), "diverged": True},
        run("scalecom 112", 64): record(0.87),
    }
    assert details.places(made) == [("fully connected", 8), ("fully connected", 64)]
    assert details.reached(made, "fully connected", 8) == "scalecom 200"
    assert details.reached(made, "fully connected", 64) is None
    assert details.nearest(made, "fully connected", 64) == "scalecom 112"


def test_every_headline_has_a_claim_and_a_command():
    assert tuple(each.name for each in CLAIMS) == command.NAMES
    assert all(each.source for each in CLAIMS)
    assert command.TIMED.keys() == links.ROUNDS.keys() == results.EDITIONS.keys()
    assert min(links.ROUNDS.values()) > 1


def test_runs_that_were_made_again_count_once_and_those_of_other_settings_not_at_all(tmp_path):
    recorded = Results(RESULTS)
    assert recorded.records
    twice = Results(tmp_path / "runs.jsonl")
    for record in recorded.records:
        key = record["key"]
        for other in ({"edition": key["edition"] - 1}, {"quick": True}):
            twice.add({**record, "key": {**key, **other}, "points": [], "rows": []})
        twice.add({**record, "date": "another day"})
        twice.add(record)
    assert twice.trained().keys() >= recorded.trained().keys()
    assert page.blocks(twice) == page.blocks(recorded)


def test_the_tables_of_the_page_are_those_of_the_recorded_runs():
    text = page.PAGE.read_text("utf-8")
    for name, wanted in page.blocks(Results(RESULTS)).items():
        assert blocks.find(text, name).split("\n")[1:-1] == wanted
