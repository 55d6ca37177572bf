"""Find a headless browser for the tests of pages, or bring one along into .cache.

    python3 scripts/browser.py [--optional]

Prints the browser's path. ``GRADWIRE_BROWSER`` names one; otherwise a Chromium on the PATH is
taken, or Debian's ``chromium-headless-shell`` with the libraries that this machine lacks, unpacked
into ``.cache/browser``: nothing is installed, and root is not needed. Where none of that can be had
it is an error, unless ``--optional``, which says so and passes; tests that need it then skip.

Only the standard library is used here, since the tests import it as well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".cache" / "browser"
NAMES = (
    "chromium-headless-shell",
    "chrome-headless-shell",
    "chromium",
    "google-chrome",
)
PACKAGES = ("chromium-headless-shell", "fonts-dejavu-core", "fontconfig-config")
UNPACKED = HOME / "usr" / "lib" / "chromium" / "chromium-headless-shell"


class NoBrowserError(Exception):
    """There is none, and none can be had; the message says why."""


def find() -> Path | None:
    """Return the browser to use, if there is one."""
    named = os.environ.get("GRADWIRE_BROWSER")
    if named:
        return Path(named)
    for name in NAMES:
        found = shutil.which(name)
        if found:
            return Path(found)
    return UNPACKED if UNPACKED.exists() else None


def environment() -> dict[str, str]:
    """Return the variables to run it with: it finds the libraries that came with it."""
    folders = [str(path.parent) for path in sorted(HOME.glob("usr/lib/**/lib*.so*"))]
    known = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(dict.fromkeys([*folders, *known]))}


def fetch() -> Path:
    """Unpack Debian's package, and those that it needs and this machine lacks, into .cache."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise NoBrowserError("this is not a Debian system: install Chromium")
    HOME.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HOME.parent, prefix="browser-") as scratch:
        folder = Path(scratch)
        apt = _apt(folder)
        listed = _run(
            [*apt, "install", "--print-uris", "-qq", "--no-install-recommends", *PACKAGES]
        )
        files = [line.split()[1] for line in listed.splitlines() if line.startswith("'")]
        packages = [name.split("_")[0] for name in files] or list(PACKAGES)
        print(f"==> fetching Chromium and what it needs, {len(packages)} packages", file=sys.stderr)
        _run([*apt, "download", "-qq", *packages], folder)
        unpacked = folder / "unpacked"
        for archive in sorted(folder.glob("*.deb")):
            _run(["dpkg-deb", "--extract", str(archive), str(unpacked)])
        shutil.rmtree(HOME, ignore_errors=True)
        unpacked.rename(HOME)
    return UNPACKED


def _apt(folder: Path) -> list[str]:
    """Return apt's command line: with lists of its own where the machine's are missing."""
    if _has_lists(["apt-get"]):
        return ["apt-get"]
    lists, archives = folder / "lists", folder / "archives"
    (lists / "partial").mkdir(parents=True)
    (archives / "partial").mkdir(parents=True)
    own = ["apt-get", "-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={archives}"]
    _run([*own, "update", "-qq"])
    return own


def _has_lists(apt: list[str]) -> bool:
    question = [*apt, "install", "--print-uris", "-qq", PACKAGES[0]]
    return subprocess.run(question, capture_output=True, check=False).returncode == 0


def _run(command: list[str], cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, check=False, timeout=600
        )
    except subprocess.TimeoutExpired:
        raise NoBrowserError(f"{' '.join(command[:2])} took more than ten minutes") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise NoBrowserError(f"{' '.join(command[:2])} failed: {lines[-1]}")
    return done.stdout


def main(arguments: list[str]) -> int:
    """Print the browser's path."""
    try:
        print(find() or fetch())
    except (NoBrowserError, OSError) as error:
        print(f"no browser for the tests of pages: {error}", file=sys.stderr)
        return 0 if "--optional" in arguments else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
