"""Make the project's virtual environment, layer by layer, and build the extension into it.

    python3 scripts/environment.py LAYER [LAYER ...]

A layer is a lock file, ``requirements/LAYER.txt``, whose hashes every download must have. Every
environment has the layer ``demo``, torch and the extension, except that the layer ``wheel`` is
installed alone, without torch. Each step keeps a stamp, the hash of everything that determines its
result. A step whose stamp still matches is skipped, so a second call does nothing.

Settings come from the environment; ``make help`` describes them: ``VENV``, ``TORCH``,
``TORCH_INDEX``, ``SYSTEM_TORCH``, ``UV``. The environment is created from the interpreter that runs
this file. Only the standard library is used here: nothing is installed yet.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MINIMUM = (3, 11)
ALONE = "wheel"

# All that the compiled extension is made from.
SOURCES = (
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    "pyproject.toml",
    "rust/*/Cargo.toml",
    "rust/*/build.rs",
    "rust/*/src/**/*.rs",
)


def setting(name: str, default: str = "") -> str:
    return os.environ.get(name, "").strip() or default


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


def run(*command: str | Path, **extra: str | None) -> None:
    """Run a command, with these variables set, or unset by None; when it fails, stop."""
    words = [str(word) for word in command]
    variables = {k: v for k, v in {**os.environ, **extra}.items() if v is not None}
    if subprocess.run(words, cwd=ROOT, env=variables).returncode != 0:
        sys.exit(f"error: this command failed: {' '.join(words)}")


def fingerprint(*parts: object) -> str:
    """Return a hash of these values; a path stands for the content of its file."""
    total = hashlib.sha256()
    for part in parts:
        name = part.relative_to(ROOT) if isinstance(part, Path) else part
        data = part.read_bytes() if isinstance(part, Path) else b""
        total.update(f"{name}\0{len(data)}\0".encode() + data)
    return total.hexdigest()


class Environment:
    """One virtual environment and the stamps of the steps that made it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stamps = root / "gradwire-stamps.json"
        self.python = root / "bin" / "python"

    def fresh(self, step: str, key: str) -> bool:
        return self._read().get(step) == key

    def stamp(self, step: str, key: str) -> None:
        self.stamps.write_text(json.dumps({**self._read(), step: key}, indent=1) + "\n")

    def _read(self) -> dict[str, str]:
        try:
            return dict(json.loads(self.stamps.read_text()))
        except (OSError, ValueError):
            return {}


@functools.cache
def find_uv() -> str:
    """Return a uv: the one asked for, the one installed, or one brought along into .cache."""
    if asked := setting("UV"):
        return asked
    installed = shutil.which("uv")
    # One of an environment in here, which may be active, goes when that is made anew.
    if installed and not Path(installed).is_relative_to(ROOT):
        return installed
    lock = ROOT / "requirements" / "uv.txt"
    version = lock.read_text().partition("uv==")[2].split()[0]
    home = ROOT / ".cache" / f"uv-{version}"
    uv = home / "bin" / "uv"
    if not uv.exists():
        say(f"fetching uv {version} into {home.relative_to(ROOT)}")
        made = subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)])
        if made.returncode != 0:
            sys.exit(
                "error: this Python cannot create virtual environments. Install its venv module "
                "(Debian: python3-venv) or uv itself, then try again."
            )
        python = home / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", "--require-hashes", f"--requirement={lock}")
    return str(uv)


def create(env: Environment) -> None:
    """Make the environment anew when the interpreter or the choice of torch has changed."""
    system = setting("SYSTEM_TORCH")
    wanted = fingerprint(
        sys.executable, sys.version, setting("TORCH"), setting("TORCH_INDEX"), system
    )
    if env.python.exists() and env.fresh("venv", wanted):
        return
    if env.root.exists() and not env.stamps.exists() and any(env.root.iterdir()):
        sys.exit(f"error: {env.root} is not this script's; remove it or set VENV=elsewhere.")
    version = ".".join(map(str, sys.version_info[:3]))
    say(f"creating {env.root.name} with Python {version}")
    run(find_uv(), "venv", "--quiet", "--clear", "--python", sys.executable, env.root)
    env.stamp("made", "by scripts/environment.py")
    if system:
        share_torch(env)
    env.stamp("venv", wanted)


def share_torch(env: Environment) -> None:
    """Let the environment see the packages of the interpreter it was made from, after its own.

    A path file does what ``--system-site-packages`` does, and also where that interpreter
    belongs to a virtual environment itself.
    """
    question = "import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))"
    answer = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True)
    if answer.returncode != 0:
        sys.exit(f"error: SYSTEM_TORCH is set, but {sys.executable} cannot import torch.")
    ours = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.check_output([str(env.python), "-c", ours], text=True).strip()
    Path(site, "system-torch.pth").write_text(answer.stdout)


def pip(env: Environment) -> tuple[str | Path, ...]:
    return (find_uv(), "pip", "install", "--python", env.python)


def install(env: Environment, layers: list[str]) -> None:
    """Install the lock files of these layers, and torch, where they have changed.

    A lock file is complete. Without ``--no-deps``, a trainer's dependency on torch would bring
    along another torch than the one that is shared or comes later.
    """
    alone = layers == [ALONE]
    torch, index = ("", "") if alone else (setting("TORCH"), setting("TORCH_INDEX"))
    if not alone and not (torch or index or setting("SYSTEM_TORCH")):
        layers = [*layers, "torch"]
    keys = {layer: fingerprint(ROOT / "requirements" / f"{layer}.txt") for layer in layers}
    stale = [layer for layer in layers if not env.fresh(layer, keys[layer])]
    if stale:
        note = " (torch is large: the first time takes minutes)" if "torch" in stale else ""
        say(f"installing {', '.join(stale)}{note}")
        files = (f"--requirements=requirements/{layer}.txt" for layer in stale)
        run(*pip(env), "--no-deps", "--require-hashes", *files)
        for layer in stale:
            env.stamp(layer, keys[layer])
    key = fingerprint(torch, index)
    if (torch or index) and not env.fresh("own torch", key):
        torch = torch or (ROOT / "requirements" / "torch.in").read_text().strip()
        say(f"installing {torch}")
        where = ("--index", index) if index else ()
        run(*pip(env), "--constraints", "requirements/demo.txt", *where, torch)
        env.stamp("own torch", key)


def build(env: Environment) -> None:
    """Build the release extension into the source tree and link the package to it."""
    key = fingerprint(*sorted(path for pattern in SOURCES for path in ROOT.glob(pattern)))
    # The library lies in the source tree, where another environment may have put another one.
    built = list((ROOT / "python" / "gradwire").glob("_native*.so"))
    stamp = ROOT / ".cache" / "extension"
    current = stamp.exists() and stamp.read_text() == key
    if built and current and env.fresh("extension", key):
        return
    if not shutil.which("cargo"):
        sys.exit(
            "error: Rust is needed to build the extension: install it (rustup), then try again."
        )
    say("building the release extension")
    path = os.pathsep.join([str(env.root / "bin"), str(Path(find_uv()).parent), os.environ["PATH"]])
    maturin = env.root / "bin" / "maturin"
    # maturin refuses to choose between two kinds of environment.
    variables = {"VIRTUAL_ENV": str(env.root), "CONDA_PREFIX": None, "PATH": path}
    run(maturin, "develop", "--release", "--locked", "--uv", **variables)
    stamp.parent.mkdir(exist_ok=True)
    stamp.write_text(key)
    env.stamp("extension", key)


def main(layers: list[str]) -> None:
    if sys.version_info < MINIMUM:
        sys.exit("error: Python 3.11 or newer is needed: make ... PYTHON=/path/to/python3.11")
    env = Environment(ROOT / setting("VENV", ".venv"))
    create(env)
    if layers == [ALONE]:
        install(env, layers)
        return
    install(env, ["demo", *(layer for layer in layers if layer != "demo")])
    build(env)


if __name__ == "__main__":
    main(sys.argv[1:])
