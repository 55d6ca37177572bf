"""Do all of a release that needs no host, and say what is left to a person.

    .cache/wheel-env/bin/python scripts/check_release.py [--only STEP ...] [--skip STEP ...]

Each step prints its result and its seconds. What this machine lacks, such as a compiler's target,
an interpreter or the network, leaves a step out with the reason, which is not a failure; releasing
means to see to those by other means. Wheels go to dist.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts import environment, prepare_release, wheel

ROOT = wheel.ROOT
CACHE = ROOT / ".cache" / "release"
ADVISORIES = "https://github.com/rustsec/advisory-db"
DEBIAN = "http://deb.debian.org/debian"
TARGETS = (
    "aarch64-unknown-linux-gnu",
    "aarch64-unknown-linux-musl",
    "x86_64-unknown-linux-musl",
    "aarch64-apple-darwin",
    "x86_64-apple-darwin",
    "x86_64-pc-windows-gnu",
)
# Interpreter, numpy and torch; the last is installed only with --torch, for its size.
MATRIX = (
    ("3.11", "1.26.*", "2.4.*"),
    ("3.11", ">=2", "2.15.*"),
    ("3.12", "1.26.*", None),
    ("3.13", ">=2", None),
    ("3.14", ">=2", "2.15.*"),
    ("3.14t", ">=2", None),
)
TORCH = ROOT / "tests" / "packaging" / "two_ranks.py"
LEFT = """\
Left to a person (.github/RELEASING.md):
  - accounts: the repository, the package index, Read the Docs, conda-forge's feedstock
  - the index's trusted publisher for release.yml and its environment `pypi`
  - runs of tests.yml and release.yml: macOS, Windows, and the advisories
  - a private channel for reports of security, as SECURITY.md says
  - the tag, the date in CHANGELOG.md, and a look at the index's page"""


class LeftOut(Exception):
    """Raised where a machine cannot do the step."""


def run(*words: str | Path, cwd: Path = ROOT, **extra: str) -> str:
    """Return the output of a command, and raise what it printed if it fails."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=os.environ | extra,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, done.args, done.stdout)
    return done.stdout


def need(*programs: str) -> None:
    """Leave the step out where one of these programs is missing."""
    if missing := [each for each in programs if not shutil.which(each)]:
        raise LeftOut(f"{', '.join(missing)} not found")


def clean() -> str:
    if changed := run("git", "status", "--porcelain"):
        raise RuntimeError(f"the tree has changes:\n{changed}")
    return run("git", "rev-parse", "--short", "HEAD").strip()


def versions() -> str:
    """Return the version, which all files have to agree about, and the tag that is released."""
    text = {name: (ROOT / name).read_text("utf-8") for name in VERSIONS}
    found = {name: re.search(VERSIONS[name], text[name], re.MULTILINE) for name in VERSIONS}
    given = {name: match[1] if match else "none" for name, match in found.items()}
    if len(set(given.values())) > 1 or "version" in tomllib.loads(_project())["project"]:
        raise RuntimeError(f"versions differ: {given}")
    version = given["Cargo.toml"]
    if os.environ.get("GITHUB_REF_TYPE") == "tag":
        if (tag := os.environ["GITHUB_REF_NAME"]) != f"v{version}":
            raise RuntimeError(f"the tag is {tag}, and the version {version}")
        if f"## {version} (unreleased)" in text["CHANGELOG.md"]:
            raise RuntimeError(f"CHANGELOG.md has no date for {version}")
    return version


VERSIONS = {
    "Cargo.toml": r'^version = "(.+)"',
    "CHANGELOG.md": r"^## (\S+)",
    "CITATION.cff": r"^version: (\S+)",
    "conda/recipe.yaml": r'^  version: "(.+)"',
}


def _project() -> str:
    return (ROOT / "pyproject.toml").read_text("utf-8")


def deny() -> str:
    need("cargo-deny")
    checks = ["licenses", "bans", "sources"]
    try:
        run("git", "ls-remote", "--exit-code", ADVISORIES, "HEAD", GIT_TERMINAL_PROMPT="0")
        checks.append("advisories")
    except subprocess.CalledProcessError:
        pass
    run("cargo", "deny", "--locked", "check", *checks)
    absent = "" if len(checks) == 4 else "; advisories cannot be fetched, so CI has to check them"
    return ", ".join(checks) + absent


def licenses() -> str:
    text = prepare_release.licenses()
    crates = re.findall(r"^[a-z]\S+ \d[^ ]* \(", text, re.MULTILINE)
    return f"LICENSE-CRATES names {len(set(crates))} crates"


def reproducible() -> str:
    """Build the wheel in two folders, and compare the bytes."""
    made: list[Path] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("one", "another"):
            tree = Path(folder) / name / "gradwire"
            run("git", "clone", "--quiet", "--no-hardlinks", ROOT, tree)
            out = Path(folder) / f"out-{name}"
            target = {"CARGO_TARGET_DIR": f"{folder}/target-{name}"}
            wheel.build(None, root=tree, out=out, variables=target)
            made += out.glob("*.whl")
        first, second = (path.read_bytes() for path in made)
        if first != second:
            raise RuntimeError("two folders give two wheels")
        wheel.DIST.mkdir(exist_ok=True)
        shutil.copy(made[0], wheel.DIST)
        return f"{made[0].name}, {len(first)} bytes, twice the same"


def sdist() -> str:
    """Build the sdist, and from it, without a network, the wheel; run a share of its tests."""
    need("unshare", "cargo")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(Path(sys.executable).parent / "maturin", "sdist", "--out", folder)
        (archive,) = folder.glob("*.tar.gz")
        run("tar", "-xf", archive, cwd=folder)
        (tree,) = (each for each in folder.iterdir() if each.is_dir())
        python = _environment(
            folder / "env",
            sys.executable,
            "numpy",
            "pytest",
            "pytest-timeout",
            "maturin>=1.12.1,<2",
            "hypothesis",
        )
        left = [each for each in run("git", "ls-files").split() if not (tree / each).exists()]
        if left := [each for each in left if not each.startswith((".git", "rust/core/fuzz/"))]:
            raise RuntimeError(f"the sdist lacks {', '.join(left)}")
        run("cargo", "fetch", "--locked", cwd=tree)
        offline = ("unshare", "--net", "--map-root-user", python, "-m")
        run(
            *offline,
            "pip",
            "install",
            "--no-build-isolation",
            "--no-deps",
            ".",
            cwd=tree,
            CARGO_NET_OFFLINE="true",
            PATH=f"{python.parent}:{os.environ['PATH']}",
        )
        tests = ["tests/test_frame.py", "tests/test_state.py", "tests/golden"]
        done = run(*offline, "pytest", "-q", *tests, cwd=tree)
        return f"{archive.name}: {done.strip().splitlines()[-1].strip('= ')}, without a network"


def conda() -> str:
    """Render conda's recipe; building it would take conda's channels."""
    with tempfile.TemporaryDirectory() as folder:
        python = _environment(Path(folder) / "env", sys.executable, "py-rattler-build")
        return run(python, "-c", RENDER, ROOT / "conda" / "recipe.yaml").strip() + "; not built"


def workflows() -> str:
    """Check the workflows by their schema, and for what an attacker could use."""
    with tempfile.TemporaryDirectory() as folder:
        tools = _environment(Path(folder), sys.executable, "check-jsonschema", "zizmor").parent
        files = sorted((ROOT / ".github" / "workflows").iterdir())
        run(tools / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", *files)
        return run(tools / "zizmor", "--offline", "--quiet", ROOT / ".github").strip()


RENDER = """
import sys
from rattler_build import Stage0Recipe
(variant,) = Stage0Recipe.from_file(sys.argv[1]).render()
print("renders", variant.recipe.package.name, variant.recipe.package.version)
"""


def _environment(folder: Path, python: str | Path, *packages: str | Path) -> Path:
    """Return the interpreter of a new virtual environment with these packages."""
    run(environment.find_uv(), "venv", "--quiet", "--seed", "--python", python, folder)
    inside = folder / "bin" / "python"
    _install(inside, *packages)
    return inside


def _install(python: str | Path, *packages: str | Path) -> None:
    run(environment.find_uv(), "pip", "install", "--quiet", "--python", python, *packages)


def compiler(target: str) -> dict[str, str]:
    """Return the variables that let cargo build for the target, and arguments under `ARGUMENTS`.

    rustup's compiler where it has the target; otherwise Debian's, which brings the sources of the
    standard library along (rustc-web, rust-web-src): cargo then builds that, too. What strips
    libraries for macOS is rustup's in any case.
    """
    libraries = run("rustc", "--print", "target-libdir", "--target", target).strip()
    if list(Path(libraries).glob("libstd-*.rlib")):
        return {}
    debian = Path("/usr/bin/rustc")
    if not (debian.exists() and Path("/usr/lib/rustlib/src/rust/library/std").exists()):
        raise LeftOut("Rust has not this target (rustup target add; or Debian's rust-web-src)")
    tools = Path(run("rustc", "--print", "target-libdir").strip()).parent / "bin"
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:{tools}",
        "RUSTC": str(debian),
        "RUSTC_BOOTSTRAP": "1",
        "ARGUMENTS": "-Zbuild-std=std,panic_abort",
    }


def cross(target: str) -> Callable[[], str]:
    def build() -> str:
        if "windows" in target:
            need("x86_64-w64-mingw32-gcc")
        if "darwin" in target:
            need("llvm-nm")
        variables = compiler(target)
        arguments = variables.pop("ARGUMENTS", "").split()
        made = wheel.build(target, arguments=arguments, variables=variables)
        said = [made.name]
        if arguments:
            said.append("with a standard library built from source")
        if "darwin" in target:
            said.append(exports(made))
        if "musl" in target:
            said.append(loads(made, target.partition("-")[0]))
        return ", ".join(said)

    return build


def exports(made: Path) -> str:
    """Check that the library exports the module's function, and return what says so."""
    with tempfile.TemporaryDirectory() as folder:
        library = _library(made, folder)
        exported = run("llvm-nm", "--extern-only", "--defined-only", "--just-symbol-name", library)
    if "_PyInit__native" not in exported.split():
        raise RuntimeError(f"the library does not export PyInit__native, but {exported}")
    return "exports PyInit__native; not run"


def loads(made: Path, machine: str) -> str:
    """Check that musl's loader finds all that the library needs but Python's functions."""
    emulator = ["qemu-aarch64"] if machine == "aarch64" else []
    need(*emulator)
    root = debian("bookworm", "arm64" if emulator else "amd64", "musl")
    with tempfile.TemporaryDirectory() as folder:
        loader = str(root / f"lib/ld-musl-{machine}.so.1")
        words = [*emulator, loader, "--list", str(_library(made, folder))]
        said = subprocess.run(words, capture_output=True, text=True, check=False)
    errors = re.findall(r"(?m)^(?!.*: _?Py\w+: symbol not found$).+", said.stderr)
    if errors or "libc.so" not in said.stdout:
        raise RuntimeError(f"musl's loader cannot load it: {errors}")
    return "musl's loader finds all but Python; not run"


def _library(made: Path, folder: str) -> Path:
    shutil.unpack_archive(made, folder, "zip")
    (library,) = Path(folder).rglob("_native*.so")
    return library


def debian(suite: str, architecture: str, package: str) -> Path:
    """Return the root folder of one of Debian's packages, fetched by apt and only unpacked."""
    need("apt-get", "dpkg")
    root = CACHE / f"{package}-{architecture}"
    if (root / "usr" / "bin").exists():
        return root
    state = CACHE / "apt" / root.name
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True, exist_ok=True)
    (state / "status").write_text("")
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (state / "list").write_text(f"deb [signed-by={keys}] {DEBIAN} {suite} main\n")
    settings = (
        f"Dir::Etc::sourcelist={state}/list",
        "Dir::Etc::sourceparts=-",
        f"Dir::State::lists={state}/lists",
        f"Dir::State::status={state}/status",
        f"Dir::Cache={state}/cache",
        f"APT::Architecture={architecture}",
        f"APT::Architectures={architecture}",
        "APT::Install-Recommends=0",
        "Debug::NoLocking=1",
        f"APT::Sandbox::User={os.environ.get('USER', 'root')}",
    )
    apt = ["apt-get", "-qq", *(word for each in settings for word in ("-o", each))]
    try:
        run(*apt, "update")
        run(*apt, "install", "--yes", "--download-only", package, "libstdc++6")
    except subprocess.CalledProcessError as error:
        raise LeftOut(f"apt has no {package} for {architecture}") from error
    for archive in (state / "cache" / "archives").glob("*.deb"):
        run("dpkg", "--extract", archive, root)
    return root


def arm64() -> str:
    """Use the wheel with Python and numpy under emulation."""
    need("qemu-aarch64")
    found = sorted(wheel.DIST.glob("*manylinux_2_28_aarch64.whl"))
    if not found:
        raise LeftOut("no wheel in dist: run the step wheel-aarch64-unknown-linux-gnu first")
    root = debian("bookworm", "arm64", "python3")
    with tempfile.TemporaryDirectory() as folder:
        platform = ("--python-platform=aarch64-manylinux_2_28", "--python-version=3.11")
        words = (*platform, "--only-binary=:all:", f"--target={folder}/site")
        _install(sys.executable, *words, found[-1], "numpy")
        emulated = ("qemu-aarch64", "-L", root, root / "usr/bin/python3.11")
        said = run(*emulated, "-c", wheel.TRY, cwd=Path(folder), PYTHONPATH=f"{folder}/site")
        return f"{said.strip().splitlines()[-1]}, {found[-1].name}"


def windows() -> str:
    """Run the core's tests under Wine 10, which knows all that Rust's library calls, under /usr."""
    need("x86_64-w64-mingw32-gcc", "unshare")
    target = "x86_64-pc-windows-gnu"
    variables = compiler(target)
    root = debian("trixie", "amd64", "wine64")
    zlib = root / "usr/lib/x86_64-linux-gnu/wine/x86_64-windows/zlib1.dll"
    if not zlib.is_symlink():  # Debian makes the link at installation
        zlib.symlink_to("/usr/x86_64-w64-mingw32/lib/zlib1.dll")
    start = f"mount --bind {root}/usr /usr && exec /usr/lib/wine/wine64"
    runner = root / "wine"
    runner.write_text(f'#!/bin/sh\nexec unshare -m -r sh -c \'{start} "$@"\' wine "$@"\n')
    runner.chmod(0o755)
    arguments = variables.pop("ARGUMENTS", "").split()
    name = target.upper().replace("-", "_")
    variables |= {
        f"CARGO_TARGET_{name}_LINKER": "x86_64-w64-mingw32-gcc",
        f"CARGO_TARGET_{name}_RUNNER": str(runner),
        "WINEDEBUG": "-all",
        "WINEPREFIX": str(CACHE / "wine-prefix"),
        "WINESERVER": "/usr/lib/wine/wineserver64",
        "PROPTEST_CASES": "4",
    }
    words = ["--locked", "-p", "gradwire-core", "--lib", "--test=golden", "--test=hostile", "--"]
    words += [word for test in ROUNDED_TWICE for word in ("--skip", test)]
    said = run("cargo", "test", *arguments, f"--target={target}", *words, cwd=ROOT, **variables)
    passed = "; ".join(re.findall(r"test result: ok\. (\d+ passed)", said))
    return f"{passed}, under Wine, without {len(ROUNDED_TWICE)} that take a C library's exact fma"


# MinGW's own `fma`, which the scalar level calls, is not rounded once as that of MSVC's library is.
ROUNDED_TWICE = (
    "simd::product::tests::every_entry_is_one_chain_of_fused_sums_on_every_level",
    "solve::error::tests::sums_are_those_of_every_row_however_small_errors_are",
    "solve::magr::tests::neither_the_level_nor_the_threads_change_anything",
    "solve::tests::neither_the_level_nor_the_threads_change_anything",
)


VERSION = """
import sys, sysconfig
print("%d.%d" % sys.version_info[:2] + "t" * bool(sysconfig.get_config_var("Py_GIL_DISABLED")))
"""


def interpreter(version: str, given: list[str]) -> Path:
    """Return an interpreter of this version: a given one or an installed one."""
    pyenv = Path.home() / ".pyenv" / "versions"
    candidates = [
        *map(Path, given),
        *(Path(found) for found in [shutil.which(f"python{version}")] if found),
        *sorted(pyenv.glob(f"{version.rstrip('t')}*/bin/python3")),
    ]
    for path in candidates:
        done = subprocess.run([path, "-c", VERSION], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return path
    raise LeftOut(f"no Python {version} here (--python PATH adds one)")


def cell(version: str, numpy: str, torch: str | None, options: argparse.Namespace) -> str:
    """Use the wheel with these versions: with torch also in a DDP step of two ranks."""
    python = interpreter(version, options.python)
    free = version.endswith("t")
    pattern = f"*-cp{version.replace('.', '').replace('t', '')}*t-*" if free else "*-abi3-*"
    built = sorted(wheel.DIST.glob(f"{pattern}manylinux*x86_64.whl"))
    made = built[-1] if built else wheel.build(None, interpreter=str(python) if free else None)
    numpy = f"numpy=={numpy}" if "*" in numpy else f"numpy{numpy}"
    with tempfile.TemporaryDirectory() as folder:
        inside = _environment(Path(folder) / "env", python, made, numpy)
        run(inside, "-c", wheel.TRY, cwd=Path(folder))
        run(inside, wheel.THREADS, cwd=Path(folder))
        done = ["encode, decode, threads"]
        if torch and options.torch:
            _install(inside, f"torch=={torch}", numpy)
            run(inside, TORCH, cwd=Path(folder))
            done.append(f"DDP on torch {torch}")
        ask = "import numpy; print(numpy.__version__)"
        return f"numpy {run(inside, '-c', ask).strip()}: {', '.join(done)}"


def steps(options: argparse.Namespace) -> dict[str, Callable[[], str]]:
    """Return all steps by name, in order."""
    found: dict[str, Callable[[], str]] = {
        "tree": clean,
        "version": versions,
        "cargo-deny": deny,
        "licenses": licenses,
        "reproducible": reproducible,
        "sdist": sdist,
        "conda": conda,
        "workflows": workflows,
    }
    found |= {f"wheel-{target}": cross(target) for target in TARGETS}
    found |= {"try-aarch64": arm64, "try-windows": windows}
    for version, numpy, torch in MATRIX:
        name = f"matrix-{version}-numpy{re.sub('[^0-9.]', '', numpy).rstrip('.')}"
        found[name] = lambda v=version, n=numpy, t=torch: cell(v, n, t, options)  # type: ignore[misc]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", help="these steps, by the beginning of their names")
    parser.add_argument("--skip", nargs="+", default=[], help="all but these")
    parser.add_argument("--python", nargs="+", default=[], help="interpreters for the matrix")
    parser.add_argument("--torch", action="store_true", help="the matrix with torch (gigabytes)")
    parser.add_argument("--strict", action="store_true", help="fail if a step is left out")
    parser.add_argument("--list", action="store_true", help="name the steps")
    options = parser.parse_args()
    every = steps(options)
    asked = tuple(options.only or [""])
    if unknown := [
        each for each in (*asked, *options.skip) if not any(n.startswith(each) for n in every)
    ]:
        parser.error(f"no such step: {', '.join(unknown)}; there are {', '.join(every)}")
    chosen = [
        n for n in every if n.startswith(asked) and not n.startswith(tuple(options.skip or ["-"]))
    ]
    if options.list:
        print("\n".join(chosen))
        return 0
    counts = {"ok": 0, "left out": 0, "FAILED": 0}
    for name in chosen:
        began = time.monotonic()
        try:
            verdict, said = "ok", every[name]()
        except LeftOut as reason:
            verdict, said = "left out", str(reason)
        except Exception as error:
            output = getattr(error, "output", None) or ""
            verdict, said = "FAILED", f"{error}\n{output[-4000:]}"
        counts[verdict] += 1
        print(f"{name:<34} {verdict:<8} {time.monotonic() - began:6.1f} s  {said}", flush=True)
    print(LEFT)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 1 if counts["FAILED"] or (options.strict and counts["left out"]) else 0


if __name__ == "__main__":
    sys.exit(main())
