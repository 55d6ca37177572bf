"""Build the CUDA extension for all GPUs, and the wheel gradwire-cuda in dist. Takes no GPU.

    .venv/bin/python scripts/cuda_wheel.py [--architectures 80 90 100 120]

The wheel has one shared library and a module that says where it lies. One library serves every
Python from 3.11 on and torch from 2.11 on; it needs the C library of this machine, or a newer one.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import platform
import zipfile
from pathlib import Path

import gradwire
from gradwire.torch.cuda import build

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"

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
    library = build.build_cuda(architectures=chosen.architectures, folder=ROOT / ".cache" / "cuda")
    print(f"==> {pack(library, DIST).relative_to(ROOT)}", flush=True)


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
    record = "".join(f"{name},{digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    folder.mkdir(exist_ok=True)
    wheel = folder / f"gradwire_cuda-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return wheel


def digest(data: bytes) -> str:
    value = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={value}"


if __name__ == "__main__":
    main()
