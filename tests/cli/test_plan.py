"""``gradwire plan``."""

import json
import math
import textwrap

import pytest

import gradwire
from gradwire.cli import main
from gradwire.cli.plan import quantities
from gradwire.cost import Calibration
from gradwire.cost.calibration import CodecCost, Line
from tests.support import run_python

MODEL = ["plan", "--model-size", "25M", "--link", "1gbit", "--backward", "100ms"]


@pytest.fixture(scope="module")
def calibration(tmp_path_factory):
    """A file, so that codecs are measured once, and in warm caches."""
    path = tmp_path_factory.mktemp("plan") / "calibration.json"
    codecs = ["--codecs", "adam,topk,onebit", "--seconds", "1ms"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradwire.cost.measuring.EVICTED", 1 << 10)
        assert main([*MODEL, *codecs, "--save", str(path)]) == 0
    return path


def test_it_prints_step_times_winners_links_bytes_and_memory(calibration, capsys):
    capsys.readouterr()
    given = [
        "--codecs",
        "topk,topk/scatter,onebit,onebit/scatter",
        "--calibration",
        str(calibration),
    ]
    assert main([*MODEL, "--ranks", "2..10000", *given]) == 0
    printed = capsys.readouterr().out
    told = (
        "25,000,000 parameters over 1 Gbit/s, latency 50 µs; backward pass 100 ms, rest of a step"
    )
    assert f"{told} 50 ms; AdamW\n" in printed
    titles = ("step time", "pays on links below", "pays if backward is below", "sent", "memory")
    for title in titles:
        (head,) = [each for each in printed.splitlines() if each.startswith(title)]
        assert "2 ranks" in head
        assert "10,000 ranks" in head
    steps = printed[printed.index("step time") : printed.index("speed-up over")].splitlines()
    assert [line.split()[0] for line in steps[1:]] == [
        "fp32", "bf16", "topk", "topk/scatter", "onebit", "onebit/scatter",
    ]  # fmt: skip
    assert sum(line.count("*") for line in steps) == 8  # one in each column


def test_json_has_every_figure(calibration, capsys):
    capsys.readouterr()
    given = ["--codecs", "topk", "--calibration", str(calibration), "--json", "--optimizer", "sgd"]
    assert main([*MODEL, "--ranks", "1,2,16", *given, "--latency", "0s", "--overhead", "0s"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ranks"] == [1, 2, 16]
    dense, half, topk = found["methods"]
    assert dense["sent_bytes"] == [0, 100e6, 187.5e6]
    assert half["sent_bytes"] == [0, 50e6, 93.75e6]
    assert dense["step_seconds"][1] == pytest.approx(
        0.05 + 0.1 * 6_815_744 / 25e6 + 0.8 - 2**20 * 8e-9
    )
    assert topk["pays_below_bits_per_second"][0] == 0.0
    # Two ranks gather frames; of 16, each sends a frame but for its own range, and as much of sums.
    assert topk["exchanges"] == ["GatheredFrames", "GatheredFrames", "SparseReduceScatter"]
    assert topk["sent_bytes"][2] == pytest.approx(2.2 * 15 / 16 * topk["sent_bytes"][1], rel=0.02)
    assert topk["memory_bytes"][2] > topk["memory_bytes"][1] > 200e6
    steps = {each["method"]: each["step_seconds"] for each in found["methods"]}
    for at, winner in enumerate(found["winners"]):
        assert steps[winner][at] == min(each[at] for each in steps.values())


def planned(*given: str, capsys):
    capsys.readouterr()
    assert main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return found, {each["method"]: each for each in found["methods"]}


LARGE = ["plan", "--model-size", "124M", "--ranks", "4", "--link", "1gbit"]


def test_a_long_backward_pass_turns_the_verdict_where_the_plan_says(tmp_path, capsys):
    encode, decode = Line(1e-5, 2e-9, 2e-9), Line(1e-5, 1e-10, 5e-9)
    cost = CodecCost(gradwire.adam(0.01), encode, decode, 48.0, 13.0, 0.01, 16.0)
    Calibration({"adam": cost}, 1e-10, 1e-10, 1).save(tmp_path / "calibration.json")
    given = [*LARGE, "--calibration", str(tmp_path / "calibration.json"), "--backward"]
    found, methods = planned(*given, "100ms", capsys=capsys)
    assert found["winners"] == ["adam"]
    (turn,) = methods["adam"]["pays_below_backward_seconds"]
    assert 0.5 < turn < 4.0  # bfloat16 takes three seconds on the wire, which the pass may hide
    for seconds, winner in ((0.98 * turn, "adam"), (1.02 * turn, "bf16"), (4.0, "bf16")):
        found, methods = planned(*given, f"{seconds:.4f}s", capsys=capsys)
        assert found["winners"] == [winner]
        assert methods["adam"]["pays_below_backward_seconds"] == [pytest.approx(turn, rel=0.01)]
    dense, half = methods["fp32"], methods["bf16"]
    assert dense["speedup"] == [1.0]
    assert half["speedup"] == [dense["step_seconds"][0] / half["step_seconds"][0]]
    assert dense["pays_below_backward_seconds"] is None


@pytest.mark.parametrize(
    ("optimizer", "codec", "suited", "own"),
    [
        ("adamw", "adam", {"adam", "adam_onebit", "float8"}, 8),
        ("sgd", "topk", {"topk", "dgc", "onebit", "float8"}, 0),
        ("sgd-momentum", "dgc", {"dgc", "onebit", "float8"}, 4),
    ],
)
def test_only_codecs_that_suit_the_optimizer_win(optimizer, codec, suited, own, tmp_path, capsys):
    cheap = Line(1e-6, 1e-12, 1e-12)
    presets = {name: gradwire.codec(name) for name in ("onebit", "adam_onebit", "float8")}
    presets |= {name: gradwire.codec(name, ratio=0.01) for name in ("adam", "topk", "dgc")}
    costs = {
        # The smaller its share, the faster; what suits is never the fastest of all.
        name: CodecCost(each, cheap, cheap, 48.0, 8.0, 0.5 if name in suited else 1e-4, 8.0)
        for name, each in presets.items()
    }
    path = tmp_path / "calibration.json"
    Calibration(costs, 1e-12, 1e-12, 1).save(path)
    given = [*MODEL, "--ranks", "1,2", "--optimizer", optimizer, "--calibration", str(path)]
    found, methods = planned(*given, "--codecs", ",".join(presets), capsys=capsys)
    assert {name for name in presets if methods[name]["suits_optimizer"]} == suited
    assert found["winners"][0] in {"fp32", "bf16", *suited}
    assert found["winners"][1] in suited
    replaced = {name for name in presets if gradwire.codec(name).memory.updates or name == "dgc"}
    for name in presets:
        alone, together = methods[name]["memory_bytes"]
        assert alone == own * 25e6  # one rank exchanges nothing, and keeps no state of a codec
        state = 8 * 25e6 + (0 if name in replaced else own * 25e6)
        assert state < together < state + 2 * 4 * 25e6  # and slots
    _, methods = planned(*given, capsys=capsys)
    assert list(methods) == ["fp32", "bf16", codec]
    assert main([*given, "--codecs", ",".join(presets)]) == 0
    steps = capsys.readouterr().out.partition("speed-up over")[0].splitlines()
    for name in presets:
        (line,) = [each for each in steps if each.split()[:1] == [name]]
        assert ("!" in line) == (name not in suited)


def test_a_module_is_measured_instead(calibration, tmp_path, capsys, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "measured_here.py").write_text(
        textwrap.dedent(
            """
            import time
            import torch

            def step():
                model = torch.nn.Sequential(torch.nn.Linear(500, 600), torch.nn.Linear(600, 500))
                model[0].weight.register_hook(lambda grad: time.sleep(0.05))
                return model, lambda: model(torch.ones(2, 500)).sum().backward()

            def alone():
                return torch.nn.Linear(2, 2)

            def fails():
                raise RuntimeError("no data here")

            def idle():
                return torch.nn.Linear(2, 2), lambda: None
            """
        )
    )
    given = ["plan", "--link", "1gbit", "--ranks", "2", "--calibration", str(calibration)]
    found, _ = planned(*given, "--module", "measured_here:step", capsys=capsys)
    assert found["model_size"] == 500 * 600 * 2 + 600 + 500
    assert 0.05 <= found["backward_seconds"] < 1.0
    assert found["backward_seconds"] <= found["compute_seconds"]
    for name, why in (
        ("alone", "TypeError: must return (model, function of a step), got Linear("),
        ("fails", "RuntimeError: no data here"),
        ("idle", "ValueError: step made no forward pass"),
        ("missing", "AttributeError: module 'measured_here' has no attribute 'missing'"),
    ):
        assert main([*given, "--module", f"measured_here:{name}"]) == 1
        assert f"--module measured_here:{name}: {why}" in capsys.readouterr().err
    assert main([*given, "--module", "nowhere:step"]) == 1
    assert "ModuleNotFoundError: No module named 'nowhere'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "argument --model-size: give the parameters of the model"),
        (["--model-size", "25M"], "argument --backward: give the time of one backward pass"),
        (["--model-size", "25M", "--backward", "0"], "argument --backward: give the time"),
        (["--module", "a:b", "--backward", "1s"], "argument --backward: leave it out; --module"),
        (["--module", "a:b", "--model-size", "1M"], "argument --model-size: leave it out"),
        (["--module", "a:b", "--tensors", "1"], "argument --tensors: leave it out"),
        (["--module", "a.b"], "'a.b' is not PACKAGE.MODULE:FUNCTION"),
        (["--module", ":b"], "':b' is not PACKAGE.MODULE:FUNCTION"),
    ],
)
def test_the_model_is_described_or_measured(given, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--link", "1gbit", *given])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_what_was_measured_when_the_default_was_an_all_gather_is_used(
    calibration, tmp_path, capsys
):
    path, text = tmp_path / "before.json", json.loads(calibration.read_text())
    assert text["codecs"]["topk"]["codec"]["exchange"] == {"kind": "by_ranks"}
    text["codecs"]["topk"]["codec"]["exchange"] = {"kind": "all_gather", "mean": "ranks"}
    path.write_text(json.dumps(text))
    capsys.readouterr()
    given = ["--codecs", "topk", "--calibration", str(path), "--json"]
    assert main([*MODEL, "--ranks", "2,16", *given]) == 0
    topk = json.loads(capsys.readouterr().out)["methods"][-1]
    assert topk["exchanges"] == ["GatheredFrames", "SparseReduceScatter"]


def test_nodes_send_for_their_ranks_together(calibration, capsys):
    capsys.readouterr()
    given = ["--codecs", "topk", "--calibration", str(calibration), "--json"]
    assert main([*MODEL, "--ranks", "2..20", "--node-size", "8", *given]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ranks"] == [8, 16]
    ring = 2 * 15 / 16 * 100e6  # plain DDP: all ranks, of which one in eight sends to other nodes
    assert found["methods"][0]["sent_bytes"] == [0, ring / 8]
    assert found["methods"][0]["sent_inside_bytes"] == [2 * 7 / 8 * 100e6, ring * 7 / 8]
    assert found["methods"][2]["sent_inside_bytes"][1] == 2 * 7 / 8 * 100e6


@pytest.mark.parametrize("columns", [120, 70])
def test_no_line_is_wider_than_the_terminal(columns, calibration, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    capsys.readouterr()
    given = ["--codecs", "topk,onebit/scatter", "--calibration", str(calibration)]
    assert main([*MODEL, "--ranks", "2..10000", "--latency", "5ms", *given]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    (head,) = [each for each in lines if each.startswith("step time")]
    assert head.count("ranks") >= columns // 35
    assert head.endswith("10,000 ranks  speed-up")
    assert f"{head.count('ranks')} of 14 numbers of ranks; --json has all" in lines


@pytest.mark.parametrize(("link", "wins"), [("1mbit", False), ("1gbit", True)])
def test_what_is_the_fastest_pays_on_the_link_that_it_is_planned_for(
    link, wins, tmp_path, capsys, monkeypatch
):
    """Gathered by 1,024 ranks, it loses on slow links and wins by fewer messages elsewhere."""
    monkeypatch.setattr(gradwire.exchange.ByRanks, "MANY", 10_000)
    cheap = Line(1e-6, 1e-12, 1e-12)
    cost = CodecCost(gradwire.topk(ratio=0.01), cheap, cheap, 48.0, 32.3, 0.01, 8.0)
    path = tmp_path / "calibration.json"
    Calibration({"topk": cost}, 1e-12, 1e-12, 1).save(path)
    given = ["--codecs", "topk", "--calibration", str(path), "--latency", "5ms"]
    given = ["plan", "--model-size", "1M", "--link", link, "--ranks", "2,1024", *given]
    given += ["--backward", "100ms", "--optimizer", "sgd"]
    assert main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["winners"] == ["topk", "topk" if wins else "bf16"]
    topk = found["methods"][2]
    # Two buckets: 48.5 MB more in the time of 2 * 1,023 messages fewer.
    edge = 8 * 48.5e6 / (2 * 1023 * 5.005e-3)
    assert topk["pays_above_bits_per_second"] == [0.0, pytest.approx(edge, rel=0.02)]
    assert topk["pays_below_bits_per_second"][1] == "always"
    assert main(given) == 0
    assert "  > 3" in capsys.readouterr().out


def test_progress_is_told_to_a_terminal_and_not_to_a_file(capsys, monkeypatch):
    monkeypatch.setattr("gradwire.cost.measuring.EVICTED", 1 << 10)
    given = [*MODEL, "--codecs", "topk", "--seconds", "0.001"]
    assert main(given) == 0
    assert "measuring" not in capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert main(given) == 0
    *told, rest = capsys.readouterr().err.split("\r")
    assert "gradwire plan: measuring codecs:  20% topk" in [each.rstrip() for each in told]
    assert max(map(len, told)) < 80
    assert told[-1].strip() == ""  # the line is empty again
    assert "measuring codecs" not in rest


@pytest.mark.parametrize(
    ("others", "threads", "told"), [("1.52", 4, True), ("0.1", 4, False), ("1.52", 2, False)]
)
def test_a_busy_machine_is_a_warning(others, threads, told, calibration, tmp_path, capsys):
    capsys.readouterr()
    saved = json.loads(calibration.read_text("utf-8"))
    saved["machine"] |= {"processors": "4", "others": others}
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(saved | {"threads": threads}), "utf-8")
    assert main([*MODEL, "--codecs", "topk", "--calibration", str(path)]) == 0
    warning = "gradwire plan: warning: other programs used 1.5 of 4 processors while codecs were"
    assert capsys.readouterr().err.startswith(warning) == told


def test_it_draws(calibration, tmp_path, capsys):
    path = tmp_path / "plan.svg"
    given = ["--codecs", "topk", "--calibration", str(calibration)]
    assert main([*MODEL, *given, "--svg", str(path)]) == 0
    drawn = path.read_text("utf-8")
    for text in ("topk", "fp32", "bf16", "seconds per step", "prefers-color-scheme"):
        assert text in drawn


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--model-size", "big"], "'big' is not a number of 1 or more, such as 25M"),
        (["--ranks", "2..x"], "'2..x' is not a number of ranks"),
        (["--ranks", "8..2"], "'8..2' is not a number of ranks"),
        (["--ranks", "0"], "'0' is not a number of ranks"),
        (["--ranks", "2..7", "--node-size", "8"], "none of 2, 4, 7 fills nodes of 8"),
        (["--link", "fast"], "'fast' is not a bandwidth"),
        (["--latency", "50"], "'50' is not a time: give a number and us, ms or s"),
        (["--backward", "-1ms"], "expected one argument"),
        (["--ratio", "2"], "'2' is not a ratio"),
        (["--codecs", "topkk"], "unknown codec 'topkk'; choose from"),
        (["--codecs", "topk/scatter", "--node-size", "8"], "topk/scatter works only without nodes"),
        (["--model-size", "9" * 310], "99...' is more than 10**12, the largest accepted"),
        (["--model-size", "2T"], "'2T' is more than 10**12"),
        (["--codecs", ","], "is not a list of names"),
        (["--seconds", "0s"], "argument --seconds: must be above 0"),
        (["--seconds", "0"], "argument --seconds: must be above 0"),
        (["--seconds", "1.5.2"], "'1.5.2' is not a time"),
    ],
)
def test_what_makes_no_sense_is_refused(given, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*MODEL, *given])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_no_calibration_is_an_error(calibration, tmp_path, capsys):
    assert main([*MODEL, "--calibration", str(tmp_path / "none.json")]) == 1
    assert "none.json" in capsys.readouterr().err
    (tmp_path / "other.json").write_text("[]")
    assert main([*MODEL, "--calibration", str(tmp_path / "other.json")]) == 1
    assert "other.json has no calibration: not a calibration" in capsys.readouterr().err
    given = ["--calibration", str(calibration), "--codecs", "topk"]
    assert main([*MODEL, *given, "--ratio", "0.02"]) == 1
    assert "give the --ratio it was made with" in capsys.readouterr().err
    assert main([*MODEL, "--calibration", str(calibration), "--codecs", "sidco"]) == 1
    assert "the calibration has no codec 'sidco'" in capsys.readouterr().err


def test_a_plan_takes_no_torch(calibration):
    out = run_python(
        f"""
        import sys
        from gradwire.cli import main
        given = "plan --model-size 1M --link 1gbit --backward 1s --calibration".split()
        main([*given, {str(calibration)!r}])
        print(sorted({{"torch", "matplotlib"}} & set(sys.modules)))
        """
    )
    assert out.strip().endswith("[]")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2..10", [2, 4, 8, 10]),
        ("3,1", [1, 3]),
        ("2..2", [2]),
        ("6..9,2", [2, 6, 8, 9]),
        ("2..10000", [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 10000]),
    ],
)
def test_ranges_of_ranks(text, numbers):
    assert quantities.ranks(text) == numbers


def test_quantities_are_read_and_written():
    assert quantities.count("25M") == 25_000_000
    assert quantities.count("1.5b") == 1_500_000_000
    assert quantities.seconds("50us") == pytest.approx(50e-6)
    assert quantities.seconds("1.5 s") == 1.5
    assert quantities.seconds("0") == quantities.seconds("0.0") == 0.0
    assert quantities.bare_seconds("0.2") == quantities.bare_seconds("200ms") == 0.2
    assert quantities.format_rates(0.0, 3e9) == "3 Gbit/s"
    assert quantities.format_rates(2e7, 3e9) == "0.02..3 Gbit/s"
    assert quantities.format_rates(2e7, math.inf) == "> 20 Mbit/s"
    assert quantities.duration(0.0501) == "50.1 ms"
    assert quantities.duration(2e-6) == "2 µs"
    assert quantities.size(1_272_000) == "1.27 MB"
