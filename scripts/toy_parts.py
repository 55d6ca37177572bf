"""Hold the toy parts in tests/toy_parts true: parts as a contributor would commit them.

    python3 scripts/toy_parts.py --check    # their diffs still apply
    python3 scripts/toy_parts.py            # and build, and pass the suites that pick them up

The second works in a copy of the last commit and takes minutes. Its environment is the one that
``make test`` makes; ``TOY_PARTS`` names another folder for the copy than ``target/toy-parts``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The suites that take their parts from the registries. Those of the kernels, which have none for
# a new part, leave it to the host.
RUST = ("registry", "hostile", "golden", "allocations", "out_of_memory")
RUST_LIB = ("codec::tests::conservation", "codec::tests::laws", "codec::tests::memories")
PYTHON = (
    *("test_parts.py", "test_codec.py", "test_memory.py", "test_state.py", "golden", "quantize"),
    *("csrc", "torch/cuda"),
)


def diffs() -> list[str]:
    """Return the diffs, one per toy."""
    return [path.read_text("utf-8") for path in sorted((ROOT / "tests/toy_parts").glob("*.diff"))]


def apply(diff: str, tree: Path, *options: str) -> None:
    """Apply a diff to a tree, or end with what git says."""
    subprocess.run(["git", "apply", *options, "-"], cwd=tree, input=diff, text=True, check=True)


def run(tree: Path, *command: str, **settings: str) -> None:
    """Run a command in the copy, with these environment variables."""
    print("$", *command, flush=True)
    environment = os.environ | {"CARGO_TARGET_DIR": str(tree / "target")} | settings
    subprocess.run(command, cwd=tree, env=environment, check=True)


def check_digest(tree: Path) -> None:
    """End unless the digest has got lines, and none that it had has changed."""
    digest = "rust/core/tests/digest/expected.txt"
    command = ["git", "diff", "--numstat", "--", digest]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True)
    added, removed = done.stdout.split()[:2] if done.stdout else ("0", "0")
    if added == "0" or removed != "0":
        sys.exit(f"error: {added} lines of the digest are new, {removed} are gone")


def try_out(tree: Path) -> None:
    """Build the toys in a copy of the last commit, and run the suites."""
    subprocess.run(["git", "worktree", "add", "--detach", tree], cwd=ROOT, check=True)
    try:
        for diff in diffs():
            apply(diff, tree)
        test = ("cargo", "test", "--locked", "-p", "gradwire-core")
        # What is written for new parts: a frame of a new golden case, and lines of the digest.
        run(tree, *test, "--test", "golden", "--", "--ignored")
        run(tree, *test, "--test", "digest", GRADWIRE_WRITE_DIGEST="1")
        check_digest(tree)
        run(tree, *test, *(word for name in RUST for word in ("--test", name)))
        run(tree, *test, "--lib", "--", *RUST_LIB)
        run(tree, sys.executable, "scripts/environment.py", "test")
        python = tree / ".venv" / "bin" / "python"
        run(tree, str(python), "-m", "pytest", "-q", *(f"tests/{name}" for name in PYTHON))
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


def main() -> None:
    """Check, or try out."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only whether the diffs apply")
    if parser.parse_args().check:
        for diff in diffs():
            apply(diff, ROOT, "--check")
        return
    try_out(Path(os.environ.get("TOY_PARTS", ROOT / "target" / "toy-parts")))


if __name__ == "__main__":
    main()
