"""What `make test` and `make test-full` run: every test once, and several suites at a time."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import pytest

from scripts import run_tests
from scripts.run_tests import ROOT, Suite


def test_every_file_is_in_one_group(monkeypatch):
    monkeypatch.delenv("PYTEST_ARGS", raising=False)
    files = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")]
    taken = Counter()
    waiting, *others = run_tests.python_suites(None)
    assert "waits and not slow" in waiting.command
    for suite in others:
        words = suite.command
        assert "not waits and not slow" in words
        folders = [word for word in words if word == "tests" or word.startswith("tests/")]
        left_out = [word.partition("=")[2] for word in words if word.startswith("--ignore=")]
        globs = [word.partition("=")[2] for word in words if word.startswith("--ignore-glob=")]
        assert all((ROOT / folder).is_dir() for folder in folders + left_out)
        taken.update(
            path
            for path in files
            if any(path.is_relative_to(folder) for folder in folders)
            and not any(path.is_relative_to(folder) for folder in left_out)
            and not any(fnmatch(str(path), glob) for glob in globs)
        )
    assert taken == Counter(files)


def test_arguments_are_for_one_run_of_all_tests(monkeypatch):
    monkeypatch.setenv("PYTEST_ARGS", "-k 'a or b'")
    (suite,) = run_tests.python_suites(None)
    assert suite.command[-2:] == ["-k", "a or b"]


@pytest.mark.full
def test_the_tiers_share_out_all_tests(tmp_path: Path) -> None:
    (tmp_path / "test_many.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('case', range(500))\n"
        "def test_sampled(case): ...\n"
        "@pytest.mark.parametrize('case', range(2))\n"
        "def test_few(case): ...\n"
        "@pytest.mark.full\n"
        "def test_long(): ...\n"
        "@pytest.mark.night\n"
        "def test_longer(): ...\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--collect-only", "-q"]

    def collected(*options: str) -> list[str]:
        words = [*command, "-o", "addopts=", f"--rootdir={tmp_path}", *options, str(tmp_path)]
        said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
        return [line for line in said.stdout.splitlines() if "::" in line]

    quick, rest, night = (collected(f"--tier={tier}") for tier in run_tests.TIERS)
    assert sorted(quick + rest + night) == sorted(collected())
    assert [name.rpartition("::")[2] for name in night] == ["test_longer"]
    assert sum("test_sampled" in name for name in quick) == 3
    assert sum("test_few" in name for name in quick) == 2
    assert sum("test_long" in name for name in rest) == 1


def test_every_mark_is_in_a_group_that_its_tier_runs():
    """Those marked `night` or `waits` in folders that no such suite has would never run."""
    words = {"night": "mark.night", "waits": "mark.waits"}
    folders = {
        "night": [word for name in run_tests.NIGHT for word in run_tests.GROUPS[name]],
        "waits": list(run_tests.WAITING),
    }
    for path in (ROOT / "tests").rglob("*.py"):
        if path == Path(__file__):
            continue
        for mark, word in words.items():
            if word in path.read_text():
                name = str(path.relative_to(ROOT))
                assert any(name.startswith(f"{folder}/") for folder in folders[mark]), (name, mark)


def test_levels_below_the_best_run_digests_in_the_rest_and_all_of_theirs_by_night(monkeypatch):
    monkeypatch.setattr(run_tests, "level", lambda: "avx512")

    def levels(tier: str | None) -> dict[str, list[str]]:
        suites = run_tests.rust_suites(tier)
        return {suite.environment["GRADWIRE_SIMD"]: suite.command[5:] for suite in suites}

    assert levels("quick") == {"avx512": []}
    brief = ["--test=digest", "--test=golden"]
    assert levels("rest") == {"scalar": brief, "avx2": brief}
    night, whole = levels("night"), levels(None)
    assert list(night) == ["scalar", "avx2"]
    assert "--lib" in night["scalar"]
    assert not set(brief) & set(night["scalar"])
    assert set(whole["scalar"]) == set(night["scalar"]) | set(brief)
    assert whole["avx512"] == []


def test_durations_are_written_and_the_dearest_are_in_the_summary(monkeypatch, capsys, tmp_path):
    slow = tmp_path / "test_slow.py"
    slow.write_text("import time\ndef test_it(): time.sleep(0.3)\ndef test_other(): ...\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-o", "addopts=", str(slow)]
    said = "     Running tests/laws.rs (target/x)\ntest result: ok. 7 passed; finished in 44.50s"
    suites = [Suite("python", command), Suite("rust", [sys.executable, "-c", f"print({said!r})"])]
    monkeypatch.setattr(run_tests, "TIMES", tmp_path / "times.jsonl")
    monkeypatch.setattr(run_tests, "python_suites", lambda tier: suites)
    monkeypatch.setattr(run_tests, "build", lambda python, rust: None)
    assert run_tests.main(["python"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "times.jsonl").read_text().splitlines()]
    phases = [line["phase"] for line in lines if line["test"].endswith("::test_it")]
    assert phases == ["setup", "call", "teardown"]
    first, second = run_tests.dearest()[:2]
    assert first == ("rust: tests/laws.rs", 44.5)
    assert second[0].endswith("::test_it")
    assert second[1] >= 0.3
    assert "       44.5 s   rust: tests/laws.rs\n" in capsys.readouterr().out


def test_horovod_is_built_only_where_it_is_selected(tmp_path: Path) -> None:
    def planned(*words: str) -> bool:
        environment = {key: value for key, value in os.environ.items() if key != "PYTEST_ARGS"}
        said = subprocess.run(
            ["make", "--no-print-directory", "--dry-run", *words],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return "build_horovod" in said.stdout

    assert planned("test-python")
    assert planned("test-python", "PYTEST_ARGS=tests/horovod -k rollback")
    assert not planned("test-python", "PYTEST_ARGS=-k rollback")
    assert not planned("test-rust")
    assert planned("test")


def test_a_suite_that_fails_or_tests_nothing_fails_the_run(monkeypatch, capsys, tmp_path):
    def outcome(*programs: str) -> int:
        suites = [Suite(str(at), [sys.executable, "-c", each]) for at, each in enumerate(programs)]
        monkeypatch.setattr(run_tests, "python_suites", lambda tier: suites)
        monkeypatch.setattr(run_tests, "build", lambda python, rust: None)
        monkeypatch.setattr(run_tests, "TIMES", tmp_path / "times.jsonl")
        return run_tests.main(["python"])

    good = "print('2 passed, 1 skipped in 0.10s')"
    assert outcome(good, good, good) == 0
    said = capsys.readouterr().out
    assert "1               | 2 passed, 1 skipped in 0.10s\n" in said
    assert said.endswith("6 passed, 0 failed, 3 skipped\n")
    assert outcome(good, "print('1 failed, 3 passed in 0.10s'); raise SystemExit(1)", good) == 1
    assert outcome(good, "print('no tests ran in 0.10s')") == 1


def test_failed_tests_are_named_last(monkeypatch, capsys, tmp_path):
    lines = ["test simd::sums ... FAILED", "FAILED tests/a.py::b[c d] - E: x", "ERROR tests/d.py"]
    program = f"print({chr(10).join([*lines, '3 failed in 0.10s'])!r}); raise SystemExit(1)"
    suite = Suite("s", [sys.executable, "-c", program])
    monkeypatch.setattr(run_tests, "python_suites", lambda tier: [suite])
    monkeypatch.setattr(run_tests, "build", lambda python, rust: None)
    monkeypatch.setattr(run_tests, "TIMES", tmp_path / "times.jsonl")
    assert run_tests.main(["python"]) == 1
    assert capsys.readouterr().out.splitlines()[-4:-1] == [
        "    failed: simd::sums",
        "    failed: tests/a.py::b[c d] - E: x",
        "    failed: tests/d.py",
    ]


def test_a_path_with_a_space_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "my clone"
    folder.mkdir()
    shutil.copy(ROOT / "Makefile", folder)
    said = subprocess.run(
        ["make", "--no-print-directory", "lint"], cwd=folder, capture_output=True, text=True
    )
    assert said.returncode != 0
    (line,) = (said.stdout + said.stderr).splitlines()
    assert f"the path of this clone has a space: {folder}." in line
