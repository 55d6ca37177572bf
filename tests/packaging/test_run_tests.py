"""What `make test` and `make test-full` run: every test once, and several suites at a time."""

import shutil
import subprocess
import sys
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

from scripts import run_tests
from scripts.run_tests import ROOT, Suite


def test_every_file_is_in_one_group(monkeypatch):
    monkeypatch.delenv("PYTEST_ARGS", raising=False)
    files = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")]
    taken = Counter()
    for suite in run_tests.python_suites(None):
        words = suite.command
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


def test_the_tiers_share_out_all_tests(tmp_path: Path) -> None:
    (tmp_path / "test_many.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('case', range(500))\n"
        "def test_sampled(case): ...\n"
        "@pytest.mark.parametrize('case', range(12))\n"
        "def test_few(case): ...\n"
        "@pytest.mark.full\n"
        "def test_long(): ...\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--collect-only", "-q"]

    def collected(*options: str) -> list[str]:
        words = [*command, "-o", "addopts=", f"--rootdir={tmp_path}", *options, str(tmp_path)]
        said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
        return [line for line in said.stdout.splitlines() if "::" in line]

    quick, rest = collected("--tier=quick"), collected("--tier=rest")
    assert sorted(quick + rest) == sorted(collected())
    assert 4 < sum("test_sampled" in name for name in quick) < 25
    assert sum("test_few" in name for name in quick) == 12
    assert sum("test_long" in name for name in rest) == 1


def test_the_quick_tier_runs_the_best_level_of_rust_and_the_rest_those_below(monkeypatch):
    monkeypatch.setattr(run_tests, "level", lambda: "avx512")

    def levels(tier: str | None) -> list[str]:
        return [suite.environment["GRADWIRE_SIMD"] for suite in run_tests.rust_suites(tier)]

    assert levels("quick") == ["avx512"]
    assert levels("rest") == ["scalar", "avx2"]
    assert levels(None) == ["scalar", "avx2", "avx512"]


def test_a_suite_that_fails_or_tests_nothing_fails_the_run(monkeypatch, capsys):
    def outcome(*programs: str) -> int:
        suites = [Suite(str(at), [sys.executable, "-c", each]) for at, each in enumerate(programs)]
        monkeypatch.setattr(run_tests, "python_suites", lambda tier: suites)
        return run_tests.main(["python"])

    good = "print('2 passed, 1 skipped in 0.10s')"
    assert outcome(good, good, good) == 0
    said = capsys.readouterr().out
    assert "1               | 2 passed, 1 skipped in 0.10s\n" in said
    assert said.endswith("6 passed, 0 failed, 3 skipped\n")
    assert outcome(good, "print('1 failed, 3 passed in 0.10s'); raise SystemExit(1)", good) == 1
    assert outcome(good, "print('no tests ran in 0.10s')") == 1


def test_failed_tests_are_named_last(monkeypatch, capsys):
    lines = ["test simd::sums ... FAILED", "FAILED tests/a.py::b[c d] - E: x", "ERROR tests/d.py"]
    program = f"print({chr(10).join([*lines, '3 failed in 0.10s'])!r}); raise SystemExit(1)"
    suite = Suite("s", [sys.executable, "-c", program])
    monkeypatch.setattr(run_tests, "python_suites", lambda tier: [suite])
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
