"""The examples that people copy learn, are written out by an installed package, and are listed."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from gradwire import examples
from tests.examples.runs import EXAMPLES


@pytest.fixture
def start(tmp_path, monkeypatch, capsys):
    """Run an example in this process, as a group of one rank, and return what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        try:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        printed: str = capsys.readouterr().out
        return printed

    return run


def losses(said: str) -> list[float]:
    return [float(each) for each in re.findall(r"loss ([\d.]+)", said)]


@pytest.mark.full
def test_the_gpt_learns_and_keeps_the_curves_of_all_runs(start, tmp_path):
    for mode in ("compress", "dense"):
        first, *_, last = losses(start("gpt.py", f"--{mode}", "--steps", "100"))
        assert last < 2.8 < first
    assert list(json.loads((tmp_path / "gpt.json").read_text())) == ["compress", "dense"]


@pytest.mark.full
def test_the_gpt_decides_by_itself(tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launch, str(EXAMPLES / "gpt.py"), "--auto", "--steps", "60"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert "ms per step" in run.stdout


@pytest.mark.full
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_resnet_learns(start, optimizer):
    said = start("resnet.py", "--optimizer", optimizer, "--epochs", "3")
    right = [float(each) for each in re.findall(r"([\d.]+) % right", said)]
    assert right[-1] > 90.0


@pytest.mark.full
@pytest.mark.parametrize("arguments", [[], ["--float16"]], ids=["bfloat16", "float16"])
def test_mixed_precision_learns(start, arguments):
    first, *_, last = losses(start("mixed_precision.py", *arguments))
    assert last < first
    assert last < 2.9


def test_a_codec_of_ones_own_is_compared(start):
    topk, own = (line.split() for line in start("own_codec.py").splitlines()[1:])
    assert float(topk[-1]) < float(own[-1]) < 1.1 * float(topk[-1])


def test_the_cells_of_the_tour_run(monkeypatch, capsys):
    cells = json.loads((EXAMPLES / "tour.ipynb").read_text("utf-8"))["cells"]
    code = [each for each in cells if each["cell_type"] == "code"]
    assert not any(each["outputs"] or each["execution_count"] for each in code)
    names: dict[str, object] = {}
    try:
        for each in code:
            exec("".join(each["source"]), names)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    said = capsys.readouterr().out
    assert "sent + residual is the gradient: True" in said
    assert losses(said)[-1] < losses(said)[0]


def test_an_example_is_written_out_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert examples.main([]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert listed == {each.name for each in EXAMPLES.iterdir() if each.suffix not in ("", ".md")}
    assert examples.main(["gpt"]) == 0
    assert Path("gpt.py").read_bytes() == (EXAMPLES / "gpt.py").read_bytes()
    Path("gpt.py").write_text("mine")
    assert examples.main(["gpt.py"]) == 1
    assert "gpt.py already exists" in capsys.readouterr().err
    assert Path("gpt.py").read_text() == "mine"
    assert examples.main(["gpt", "-o", "other.py"]) == 0
    assert examples.main(["gpt", "-o", "no/folder.py"]) == 1


def test_an_unknown_name_is_an_error_with_a_hint(capsys):
    with pytest.raises(SystemExit, match="2"):
        examples.main(["tuor"])
    assert "there is no example 'tuor': did you mean 'tour'?" in capsys.readouterr().err


def test_the_page_lists_every_example():
    page = (EXAMPLES / "README.md").read_text("utf-8")
    there = {each.name for each in EXAMPLES.iterdir() if each.suffix not in ("", ".md")}
    assert there - set(re.findall(r"\]\((\w+\.\w+)\)", page)) == set()
