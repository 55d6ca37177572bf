"""Build the CUDA extension for all GPUs, and the wheel gradwire-cuda in dist. Takes no GPU.

    .venv/bin/python scripts/cuda_wheel.py [--architectures 80 90 100 120]

The wheel has one shared library and a module that says where it lies. One library serves every
Python from 3.11 on and torch from 2.11 on. Zig links it against glibc 2.28, as torch's own wheels
are, and auditwheel checks the symbols that it uses.

The compiler is that of `gradwire.torch.build_cuda`. The runtime of CUDA is in the library and does
not touch torch's, so one of CUDA 12 also serves torch with CUDA 13, and drivers from 525 on; one of
CUDA 13 needs a driver from 580 on. CUDA_HOME chooses.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import gradwire
from gradwire.torch.cuda import build

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.wheel import DIST, ROOT, record_entry

GLIBC = "2.28"

MODULE = '''"""The CUDA extension of gradwire."""

from pathlib import Path

__version__ = "{version}"


def library() -> Path:
    """Return the shared library."""
    return Path(__file__).parent / "{name}"
'''

METADATA = """Metadata-Version: 2.4
Name: gradwire-cuda
Version: {version}
Summary: The CUDA extension of gradwire.
License-Expression: Apache-2.0 OR MIT
License-File: LICENSE-APACHE
License-File: LICENSE-MIT
Requires-Python: >=3.11
Requires-Dist: gradwire=={version}
Requires-Dist: torch>=2.11
"""

WHEEL = """Wheel-Version: 1.0
Generator: gradwire
Root-Is-Purelib: false
Tag: {tag}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--architectures", nargs="+", default=list(build.ARCHITECTURES), metavar="NN"
    )
    chosen = parser.parse_args()
    library = build.build(chosen.architectures, ROOT / ".cache" / "cuda-wheel", report, link)
    with tempfile.TemporaryDirectory() as folder:
        wheel = check(pack(library, Path(folder)), DIST)
    print(f"==> {wheel.relative_to(ROOT)}", flush=True)


def report(what: str, done: float) -> None:
    print(f"{done:4.0%} {what}", flush=True)


def link(toolkit: build.Toolkit, libraries: Path, objects: Sequence[str], made: Path) -> None:
    """Link a library that needs no newer C library than `GLIBC`."""
    home = toolkit.nvcc.parents[1]
    search = [*toolkit.libraries, home / "lib64", home / "lib", libraries]
    # The compiler's own, for which the objects are; zig would bring others.
    runtimes = [
        build.run(["g++", f"-print-file-name={name}"]).strip()
        for name in ("libstdc++.so.6", "libgcc_s.so.1")
    ]
    hidden = made.with_suffix(".map")
    hidden.write_text("{ local: *; };")  # also CUDA's runtime: nobody else's takes its place
    target = f"{platform.machine()}-linux-gnu.{GLIBC}"
    command = [sys.executable, "-m", "ziglang", "cc", "-target", target, "-shared", "-s"]
    command += [f"-Wl,--version-script={hidden}", *objects, *(f"-L{path}" for path in search)]
    command += ["-lcudart_static", "-lpthread", "-ldl", "-lrt", *build.NEEDED, *runtimes]
    build.run([*command, "-o", str(made)])


def check(wheel: Path, folder: Path) -> Path:
    """Write a wheel with the tag of `GLIBC` if its library keeps to it; return its file."""
    tag = f"manylinux_{GLIBC.replace('.', '_')}_{platform.machine()}"
    command = [sys.executable, "-m", "auditwheel", "repair", "--plat", tag, "--only-plat"]
    # Those of torch, which is there before the library is loaded.
    command += ["--exclude", "libtorch*", "--exclude", "libc10*", "--wheel-dir", str(folder)]
    scripts = Path(sys.executable).parent
    path = f"{scripts}{os.pathsep}{os.environ['PATH']}"
    subprocess.run([*command, str(wheel)], env=os.environ | {"PATH": path}, check=True)
    (made,) = folder.glob(f"{'-'.join(wheel.name.split('-')[:-1])}-{tag}.whl")
    return made


def pack(library: Path, folder: Path) -> Path:
    """Write the wheel of a library, and return its file."""
    version = gradwire.__version__
    tag = f"py3-none-linux_{platform.machine()}"
    info = f"gradwire_cuda-{version}.dist-info"
    files = {
        "gradwire_cuda/__init__.py": MODULE.format(version=version, name=build.NAME).encode(),
        f"gradwire_cuda/{build.NAME}": library.read_bytes(),
        f"{info}/METADATA": METADATA.format(version=version).encode(),
        f"{info}/WHEEL": WHEEL.format(tag=tag).encode(),
        **{
            f"{info}/licenses/{name}": (ROOT / name).read_bytes()
            for name in ("LICENSE-APACHE", "LICENSE-MIT")
        },
    }
    record = "".join(f"{name},{record_entry(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    folder.mkdir(exist_ok=True)
    wheel = folder / f"gradwire_cuda-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return wheel


if __name__ == "__main__":
    main()
