"""What `make test` runs: every test once, and two suites at a time."""

import sys
from collections import Counter

from scripts import run_tests
from scripts.run_tests import ROOT, Suite


def test_every_folder_is_in_one_group(monkeypatch):
    monkeypatch.delenv("PYTEST_ARGS", raising=False)
    *groups, others = (suite.command for suite in run_tests.python_suites())
    named = Counter(word for group in groups for word in group if word.startswith("tests/"))
    left_out = {word.removeprefix("--ignore=") for word in others if word.startswith("--ignore=")}
    assert "tests" in others
    assert named == Counter(left_out)
    assert all((ROOT / folder).is_dir() for folder in named)


def test_arguments_are_for_one_run_of_all_tests(monkeypatch):
    monkeypatch.setenv("PYTEST_ARGS", "-k 'a or b'")
    (suite,) = run_tests.python_suites()
    assert suite.command[-2:] == ["-k", "a or b"]


def test_a_suite_that_fails_or_tests_nothing_fails_the_run(monkeypatch, capsys):
    def outcome(*programs: str) -> int:
        suites = [Suite(str(at), [sys.executable, "-c", each]) for at, each in enumerate(programs)]
        monkeypatch.setattr(run_tests, "python_suites", lambda: suites)
        return run_tests.main(["python"])

    good = "print('2 passed, 1 skipped in 0.10s')"
    assert outcome(good, good, good) == 0
    said = capsys.readouterr().out
    assert "1               | 2 passed, 1 skipped in 0.10s\n" in said
    assert said.endswith("6 passed, 0 failed, 3 skipped\n")
    assert outcome(good, "print('1 failed, 3 passed in 0.10s'); raise SystemExit(1)", good) == 1
    assert outcome(good, "print('no tests ran in 0.10s')") == 1
