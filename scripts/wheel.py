"""Build the abi3 wheel in dist and test it in an environment that has only numpy.

    .cache/wheel-env/bin/python scripts/wheel.py [--target TRIPLE] [--interpreter PYTHON] [--no-try]

One wheel works with every Python from 3.11 on; a free-threaded one needs a wheel of its own. On
Linux, zig links it against glibc 2.28, whatever version this machine has, so that it installs
wherever torch's own wheels do, or against musl.
``--target`` builds for another architecture, which needs `rustup target add TRIPLE` first. On macOS
and Windows the system's linker is used.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
THREADS = ROOT / "tests" / "packaging" / "many_threads.py"
GLIBC, MUSL = "manylinux_2_28", "musllinux_1_2"

TRY = """
import sys
import numpy as np
import gradwire
x = np.arange(1000, dtype=np.float32)
codec = gradwire.topk(0.01)
state = codec.init_state(x.size)
y = gradwire.decode(codec.encode(x, state))
assert np.array_equal(y + state.residual, x)
assert "torch" not in sys.modules
try:
    import torch
except ImportError:
    pass
else:
    raise SystemExit("torch is installed, so this cannot test an installation without it")
print(f"gradwire {gradwire.__version__} works without torch, SIMD level {gradwire.simd_level()}")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", help="Rust target triple (default: this machine's)")
    parser.add_argument("--interpreter", help="a free-threaded Python, for a wheel of its own")
    parser.add_argument("--no-try", action="store_true", help="do not install and test the wheel")
    chosen = parser.parse_args()
    wheel = build(chosen.target, interpreter=chosen.interpreter)
    print(f"==> {wheel.relative_to(ROOT)}", flush=True)
    if not chosen.no_try:
        attempt(wheel, chosen.interpreter or sys.executable)


def build(
    target: str | None,
    *,
    interpreter: str | None = None,
    root: Path = ROOT,
    out: Path = DIST,
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Path:
    """Build the wheel of the checkout at ``root`` into ``out`` and return its file.

    So that the bytes depend neither on the folder nor on the time, paths in the library and in the
    list of its crates are replaced, and files have the date of the commit.
    """
    scripts = sysconfig.get_path("scripts")  # on Windows, not the interpreter's folder
    maturin = shutil.which("maturin", path=scripts) or "maturin"
    command = [maturin, "build", "--release", "--locked", *arguments]
    if sys.platform == "linux":
        # Zig links against the old glibc only where a target is named.
        target = target or f"{os.uname().machine}-unknown-linux-gnu"
        if "windows" not in target:
            command += ["--zig"]
        if "linux" in target:
            command += ["--compatibility", MUSL if target.endswith("musl") else GLIBC]
    if target:
        command += ["--target", target]
    if interpreter:
        command += ["--interpreter", interpreter]
    cargo = os.environ.get("CARGO_HOME") or Path.home() / ".cargo"
    paths = f"--remap-path-prefix={root}=/gradwire --remap-path-prefix={cargo}=/cargo"
    with tempfile.TemporaryDirectory(dir=root) as folder:
        environment = os.environ | {
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
            "RUSTFLAGS": f"{os.environ.get('RUSTFLAGS', '')} {paths}".strip(),
            "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH") or date(root),
            **(variables or {}),
        }
        subprocess.run([*command, "--out", folder], cwd=root, env=environment, check=True)
        (made,) = Path(folder).glob("*.whl")
        out.mkdir(exist_ok=True, parents=True)
        with zipfile.ZipFile(made) as old, zipfile.ZipFile(out / made.name, "w") as new:
            replace_folder(old, new, root)
        return out / made.name


def replace_folder(old: zipfile.ZipFile, new: zipfile.ZipFile, root: Path) -> None:
    """Copy a wheel, with ``/gradwire`` for the folder that maturin's list of crates names."""
    before = after = ""
    for each in old.infolist():  # RECORD comes last
        data = old.read(each)
        if each.filename.endswith(".cyclonedx.json"):
            before = record_entry(data)
            data = data.replace(root.resolve().as_uri().encode(), b"file:///gradwire")
            after = record_entry(data)
        elif each.filename.endswith("/RECORD"):
            data = data.replace(before.encode(), after.encode())
        new.writestr(each, data)


def record_entry(data: bytes) -> str:
    """Return the digest and the size of a file, as a wheel's RECORD lists them."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest},{len(data)}"


def date(root: Path) -> str:
    """Return the second of the last commit, or of 1980, from which on archives can count."""
    command = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "315532800"


def attempt(wheel: Path, interpreter: str) -> None:
    """Install the wheel into a new environment and use it there."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([interpreter, "-m", "venv", folder], check=True)
        python = str(Path(folder) / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
        subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
        subprocess.run([python, "-c", TRY], cwd=folder, check=True)
        subprocess.run([python, THREADS], cwd=folder, check=True)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: this command failed: {' '.join(map(str, error.cmd))}")
