"""How the bench of ``auto`` counts steps, keeps what is finished, and shows it."""

import json

import pytest

pytest.importorskip("torch", reason="the bench needs the extra [torch]")

from benches.auto import __main__ as bench
from benches.auto.page import table
from benches.auto.rank import methods_for

METHODS = ("fp32", "bf16", "auto")


class Asked:
    """Two ranks, the second of which is slower; ``auto`` settles after so many steps."""

    def __init__(self, settled: int, seconds: float = 0.5) -> None:
        self.settled, self.seconds, self.steps = settled, seconds, 0

    def __call__(self, *, do, method, count):
        assert do == "steps"
        if method == "auto":
            self.steps += count
        said = "It averages by bf16." if self.steps >= self.settled else "It tries bf16."
        mine = [self.seconds * (at + 1) for at in range(count)]
        return [{"seconds": each, "decision": said} for each in (mine, [2 * step for step in mine])]


def test_first_steps_are_those_until_it_has_settled():
    start, settled = bench.settle(Asked(12))
    assert settled
    assert start == [1.0, 2.0, 3.0, 4.0] * 3


def test_it_need_not_settle():
    asked = Asked(10**9)
    start, settled = bench.settle(asked)
    assert not settled
    assert len(start) == asked.steps == bench.MOST


@pytest.mark.parametrize(("seconds", "count"), [(0.0, 0), (10.0, 4), (10.1, 8), (1e9, bench.LATER)])
def test_it_goes_on_for_so_many_seconds_and_not_for_too_many_steps(seconds, count):
    assert len(bench.go_on(Asked(0), seconds)) == count


def test_turns_leave_out_their_first_step_and_each_method_begins_as_often():
    asked, order = Asked(0, 0.01), []

    def ask(**given):
        order.append(given["method"])
        return asked(**given)

    found = bench.take_turns(ask, METHODS, 3, 3.0)
    assert order == [*METHODS, *METHODS, "bf16", "auto", "fp32", "auto", "fp32", "bf16"]
    assert found["decision"] == "It averages by bf16."
    for turns in found["seconds"].values():
        assert len(turns) == 3
        assert turns[0] == [0.02 * (at + 1) for at in range(bench.TURN)][1:]


def outcome(rate=None, *, settled=True):
    seconds = {"fp32": [[0.2, 0.2]], "bf16": [[0.1, 0.1]], "auto": [[0.102, 0.102]]}
    return {"rate": rate, "start": [1.0, 2.0], "settled": settled, "after": [], "seconds": seconds,
            "decision": "It averages by bf16."}  # fmt: skip


SETTINGS = {"ranks": 2, "rounds": 1, "seconds": 3.0, "after": 10.0}


def test_each_link_is_kept_and_not_measured_again(tmp_path):
    path = tmp_path / "auto.json"
    first = bench.Kept(path, **SETTINGS)
    assert not path.exists()
    first.add(outcome(1_000_000_000))
    again = bench.Kept(path, **SETTINGS)
    assert again.has(1_000_000_000)
    assert not again.has(None)
    again.add(outcome())
    found = json.loads(path.read_text("utf-8"))
    assert [each["rate"] for each in found["outcomes"]] == [1_000_000_000, None]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", [*SETTINGS, "machine", "versions"])
def test_figures_of_other_circumstances_are_left_alone(tmp_path, name):
    path = tmp_path / "auto.json"
    bench.Kept(path, **SETTINGS).add(outcome())
    found = json.loads(path.read_text("utf-8"))
    found[name] = "another"
    path.write_text(json.dumps(found), "utf-8")
    with pytest.raises(SystemExit, match=f"with other {name}"):
        bench.Kept(path, **SETTINGS)
    assert json.loads(path.read_text("utf-8")) == found


class Joined:
    """Processes that answer as `Asked` does, over links that are not there from the second on."""

    def __init__(self, ranks, module, *, shaped):
        self.ranks, self.rates, self.ask_of = ranks, [], Asked(8, 0.01)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def shape(self, rate):
        self.rates.append(rate)
        if len(self.rates) > 2:
            raise OSError("no more links")

    def ask(self, *, do, **given):
        return [{}, {}] if do == "begin" else self.ask_of(do=do, **given)


def test_what_is_finished_stays_if_the_next_link_fails(tmp_path, monkeypatch, capsys):
    path = tmp_path / "auto.json"
    monkeypatch.setattr(bench, "joined", Joined)
    with pytest.raises(OSError, match="no more links"):
        bench.measure(bench.Kept(path, **SETTINGS), [10**9, None])
    (found,) = json.loads(path.read_text("utf-8"))["outcomes"]
    assert found["rate"] == 10**9
    assert found["settled"]
    assert len(found["start"]) == 8
    assert sum(found["after"]) >= SETTINGS["after"] > sum(found["after"][:-4])
    assert list(found["seconds"]) == list(methods_for(2))
    kept = bench.Kept(path, **SETTINGS)
    monkeypatch.setattr(bench, "joined", None)  # no process is started
    bench.measure(kept, [10**9])
    assert "there already: 1 Gbit/s" in capsys.readouterr().err


def test_the_table_says_where_it_has_not_settled():
    kept = bench.Kept(None, **SETTINGS)
    kept.add(outcome())
    kept.add(outcome(10**9, settled=False))
    kept.measured["machine"]["cores"] = 7
    title, _, _, _, first, second, *_ = table(kept.measured)
    assert "2 ranks on 7 cores" in title
    assert first == "| unshaped | 200 | **100** | 102 | +2.0% | -49.0% | 2: 3.0 s |"
    assert second.endswith("| not settled after 2: 3.0 s |")


def test_three_ranks_may_also_sum_through_owners():
    ratios = (0.1, 0.05, 0.02, 0.01)
    assert methods_for(2) == ("fp32", "bf16", *(f"adam({ratio})" for ratio in ratios), "auto")
    assert set(methods_for(3)) - set(methods_for(2)) == {
        f"adam({ratio}) through owners" for ratio in ratios
    }
