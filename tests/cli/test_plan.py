"""``gradwire plan``."""

import json

import pytest

import gradwire
from gradwire.cli import main, plan
from gradwire.cost import Calibration
from gradwire.cost.calibration import CodecCost, Line
from tests.support import run_python

MODEL = ["plan", "--model-size", "25M", "--link", "1gbit", "--backward", "100ms"]
CHEAP = Line(1e-6, 1e-12, 1e-12)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Measure small tensors in warm caches."""
    monkeypatch.setattr("gradwire.cost.calibration.EVICTED", 1 << 10)
    monkeypatch.setattr("gradwire.cost.calibration.NUMELS", (1 << 12, 1 << 14))


def saved(path, **costs: CodecCost) -> str:
    Calibration(costs, 1e-10, 1e-10, 1).save(path / "calibration.json")
    return str(path / "calibration.json")


def cheap(codec: gradwire.Codec, share: float = 0.01, bits: float = 32.3) -> CodecCost:
    return CodecCost(codec, CHEAP, CHEAP, 48.0, bits, share, 8.0)


def planned(*given: str, capsys):
    capsys.readouterr()
    assert main([*given, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_measures_saves_and_prints_a_row_for_each_method_and_number_of_ranks(tmp_path, capsys):
    path = str(tmp_path / "calibration.json")
    given = [*MODEL, "--ranks", "2..9,1000", "--codecs", "topk,onebit"]
    assert main([*given, "--save", path]) == 0
    assert main([*given, "--calibration", path]) == 0
    lines = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert lines[0].split()[:3] == ["ranks", "method", "step"]
    ranks = ["2", "4", "8", "9", "1,000"]
    assert [line.split()[:2] for line in lines[1:]] == [
        [each, method] for each in ranks for method in ("fp32", "bf16", "topk", "onebit")
    ]
    assert sum("*" in line for line in lines) == len(ranks)
    assert main([*given, "--calibration", path, "--ratio", "0.02"]) == 1
    assert "give the --ratio it was made with" in capsys.readouterr().err
    assert main([*MODEL, "--calibration", path, "--codecs", "sidco"]) == 1
    assert "the calibration has no codec 'sidco'" in capsys.readouterr().err


def test_json_has_every_figure(tmp_path, capsys):
    path = saved(tmp_path, topk=cheap(gradwire.topk(ratio=0.01)))
    given = ["--ranks", "2,16", "--optimizer", "sgd", "--calibration", path, "--latency", "0s"]
    found = planned(*MODEL, *given, capsys=capsys)
    dense, half, topk = ([row for row in found if row["method"] == name] for name in NAMES)
    assert [row["ranks"] for row in dense] == [2, 16]
    assert [row["sent_bytes"] for row in dense] == [100e6, 187.5e6]
    assert [row["sent_bytes"] for row in half] == [50e6, 93.75e6]
    assert dense[0]["speedup"] == 1.0
    assert half[0]["speedup"] == dense[0]["step_seconds"] / half[0]["step_seconds"]
    assert dense[0]["pays_bits_per_second"] is None
    assert topk[0]["pays_bits_per_second"][0] == 0.0
    # Two ranks gather frames; of 16, each sends a frame but for its own range, and as much of sums.
    assert [row["exchange"] for row in topk] == ["GatheredFrames", "SparseReduceScatter"]
    first, second = (row["sent_bytes"] for row in topk)
    assert second == pytest.approx(2.2 * 15 / 16 * first, rel=0.02)
    assert topk[1]["memory_bytes"] > topk[0]["memory_bytes"] > 200e6
    for count in (2, 16):
        rows = [row for row in found if row["ranks"] == count]
        (fastest,) = [row for row in rows if row["fastest"]]
        assert fastest["step_seconds"] == min(row["step_seconds"] for row in rows)


NAMES = ("fp32", "bf16", "topk")


def test_a_long_backward_pass_turns_the_verdict(tmp_path, capsys):
    encode, decode = Line(1e-5, 2e-9, 2e-9), Line(1e-5, 1e-10, 5e-9)
    cost = CodecCost(gradwire.adam(0.01), encode, decode, 48.0, 13.0, 0.01, 16.0)
    given = ["plan", "--model-size", "124M", "--ranks", "4", "--link", "1gbit"]
    given += ["--calibration", saved(tmp_path, adam=cost), "--backward"]
    for backward, wins in (("100ms", True), ("4s", False)):
        *_, adam = planned(*given, backward, capsys=capsys)
        assert adam["fastest"] is wins


@pytest.mark.parametrize(
    ("optimizer", "codec", "suited", "own"),
    [
        ("adamw", "adam", {"adam", "adam_onebit", "float8"}, 8),
        ("sgd", "topk", {"topk", "dgc", "onebit", "float8"}, 0),
        ("sgd-momentum", "dgc", {"dgc", "onebit", "float8"}, 4),
    ],
)
def test_only_codecs_that_suit_the_optimizer_win(optimizer, codec, suited, own, tmp_path, capsys):
    presets = {name: gradwire.codec(name) for name in ("onebit", "adam_onebit", "float8")}
    presets |= {name: gradwire.codec(name, ratio=0.01) for name in ("adam", "topk", "dgc")}
    # The smaller its share, the faster; what suits is never the fastest of all.
    costs = {
        name: cheap(each, 0.5 if name in suited else 1e-4, 8.0) for name, each in presets.items()
    }
    path = saved(tmp_path, **costs)
    given = [*MODEL, "--ranks", "1,2", "--optimizer", optimizer, "--calibration", path]
    found = planned(*given, "--codecs", ",".join(presets), capsys=capsys)
    rows = {(row["ranks"], row["method"]): row for row in found}
    assert {name for name in presets if rows[2, name]["suits_optimizer"]} == suited
    assert {name for (ranks, name), row in rows.items() if ranks == 2 and row["fastest"]} < suited
    replaced = {name for name in presets if gradwire.codec(name).memory.updates or name == "dgc"}
    for name in presets:
        # One rank exchanges nothing, and keeps no state of a codec.
        assert rows[1, name]["memory_bytes"] == own * 25e6
        state = 8 * 25e6 + (0 if name in replaced else own * 25e6)
        assert state < rows[2, name]["memory_bytes"] < state + 2 * 4 * 25e6  # and slots
    assert [row["method"] for row in planned(*given, capsys=capsys)][3:] == ["fp32", "bf16", codec]
    assert main([*given, "--codecs", ",".join(presets)]) == 0
    for line in capsys.readouterr().out.splitlines()[1:]:
        if line.split()[1:2] and line.split()[1] in presets:
            assert ("!" in line) == (line.split()[1] not in suited)


def test_nodes_send_for_their_ranks_together(tmp_path, capsys):
    given = ["--codecs", "topk", "--calibration", saved(tmp_path, topk=cheap(gradwire.topk(0.01)))]
    found = planned(*MODEL, "--ranks", "2..20", "--node-size", "8", *given, capsys=capsys)
    one, *_, two, _, topk = found
    assert (one["ranks"], two["ranks"]) == (8, 16)
    ring = 2 * 15 / 16 * 100e6  # plain DDP: all ranks, of which one in eight sends to other nodes
    assert (one["sent_bytes"], two["sent_bytes"]) == (0, ring / 8)
    assert one["sent_inside_bytes"] == 2 * 7 / 8 * 100e6
    assert two["sent_inside_bytes"] == ring * 7 / 8
    assert topk["sent_inside_bytes"] == 2 * 7 / 8 * 100e6


@pytest.mark.parametrize(("link", "wins"), [("1mbit", False), ("1gbit", True)])
def test_what_is_the_fastest_pays_on_the_link_that_it_is_planned_for(
    link, wins, tmp_path, capsys, monkeypatch
):
    """Gathered by 1,024 ranks, it loses on slow links and wins by fewer messages elsewhere."""
    monkeypatch.setattr(gradwire.exchange.ByRanks, "MANY", 10_000)
    path = saved(tmp_path, topk=cheap(gradwire.topk(ratio=0.01)))
    given = ["plan", "--model-size", "1M", "--link", link, "--ranks", "1024", "--backward", "100ms"]
    given += ["--calibration", path, "--latency", "5ms", "--optimizer", "sgd"]
    *_, topk = planned(*given, capsys=capsys)
    assert topk["fastest"] == wins
    # Two buckets: 48.5 MB more in the time of 2 * 1,023 messages fewer.
    edge = 8 * 48.5e6 / (2 * 1023 * 5.005e-3)
    assert topk["pays_bits_per_second"] == [pytest.approx(edge, rel=0.02), "always"]
    assert main(given) == 0
    assert "  > 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--model-size", "big"], "'big' is not a number from 1 to 10**12"),
        (["--model-size", "2T"], "'2T' is not a number from 1 to 10**12"),
        (["--ranks", "2..x"], "'2..x' is not a number of ranks"),
        (["--ranks", "0"], "'0' is not a number of ranks"),
        (["--ranks", "2..7", "--node-size", "8"], "none of them fills nodes of 8"),
        (["--link", "fast"], "'fast' is not a bandwidth"),
        (["--latency", "50"], "'50' is not a time: give a number and us, ms or s"),
        (["--ratio", "2"], "ratio must be greater than 0 and at most 1, got 2.0"),
        (["--codecs", "topkk"], "unknown codec 'topkk'; choose from"),
    ],
)
def test_what_makes_no_sense_is_refused(given, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*MODEL, *given])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_plan_takes_no_torch(tmp_path):
    path = saved(tmp_path, adam=cheap(gradwire.adam(0.01)))
    out = run_python(
        f"""
        import sys
        from gradwire.cli import main
        given = "plan --model-size 1M --link 1gbit --backward 1s --calibration".split()
        main([*given, {path!r}])
        print("torch" in sys.modules)
        """
    )
    assert out.strip().endswith("False")


def test_quantities_are_read_and_written():
    assert plan.count("25M") == 25_000_000
    assert plan.count("1.5b") == 1_500_000_000
    assert plan.seconds("50us") == pytest.approx(50e-6)
    assert plan.seconds("1.5 s") == 1.5
    assert plan.rate("2.5Gbit/s") == 2_500_000_000
    assert plan.ranks("6..9,2") == [2, 6, 8, 9]
    assert plan.ranks("3,1") == [1, 3]
    assert plan.format_rate(2e7) == "20 Mbit/s"
    assert plan.duration(0.0501) == "50.1 ms"
    assert plan.duration(2e-6) == "2 µs"
