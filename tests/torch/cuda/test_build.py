"""The CUDA extension is built, found and loaded, on a machine without a GPU."""

import importlib.util
import os
import re
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
import torch

import gradwire
import gradwire.torch
from gradwire.errors import ExtensionError
from gradwire.torch import cuda
from gradwire.torch.cuda import build
from scripts import cuda_wheel, environment
from tests.support import run_python

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".cache" / "cuda"

REGISTERED = """
import sys, torch
import gradwire.torch
from gradwire.torch import cuda
found = cuda.load()
print(found.reason)
has = torch._C._dispatch_has_kernel_for_dispatch_key
for name in ("decode_bucket", "encode_plan", "encode_bucket", "rollback_bucket", "probe"):
    assert has("gradwire::" + name, "CUDA"), name
    assert not has("gradwire::" + name, "CPU"), name
schema = str(torch.ops.gradwire.decode_bucket.default._schema)
assert schema.startswith("gradwire::decode_bucket(Tensor(a!) out, Tensor data"), schema
schema = str(torch.ops.gradwire.encode_bucket.default._schema)
assert "float divisor, Tensor(b!) out, Tensor(c!) scratch" in schema, schema
assert cuda.load() == found
assert gradwire.torch.backend("cuda").name == "cuda"
from gradwire.torch.backends.cuda import operators
codec = gradwire.sidco(ratio=0.01)
piece = operators.structs.Piece.from_buffer_copy(operators.completed([codec], [5000]).numpy())
assert (piece.numel, piece.sparsify.start_stages > 0) == (5000, True)
torch.ops.gradwire.encode_forget(0)
"""


OTHER_BYTES = re.compile(
    r"\b(?:fma|mad)\.\S*f(?:16|32|64)"  # a product and a sum rounded together,
    r"|\b(?:add|sub|mul)\.f"  # or left for the assembler to join: not so with `.rn`
    r"|\.(?:approx|full|ftz)\b"  # divisions, roots and small numbers that are not exact
    r"|\b(?:atom|red)\.\S*b?f(?:16|32|64)"  # sums in any order
)
"""Instructions of PTX whose results may differ from the core's."""


@pytest.fixture(scope="module")
def toolkit() -> build.Toolkit:
    try:
        return build.find_toolkit()
    except ExtensionError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def library(toolkit: build.Toolkit) -> Path:
    """The extension for one kind of GPU, which takes minutes to compile."""
    if torch.version.cuda is None:
        pytest.skip("torch was built without CUDA")
    return gradwire.torch.build_cuda(architectures=["90"], folder=FOLDER)


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GRADWIRE_CUDA_LIBRARY", raising=False)
    monkeypatch.setenv("GRADWIRE_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "gradwire_cuda", None)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_operators_are_registered_without_a_gpu(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_CUDA_LIBRARY", str(library))
    assert "named by GRADWIRE_CUDA_LIBRARY" in run_python(REGISTERED)


@pytest.mark.full
def test_a_build_is_found_again_and_not_repeated(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRADWIRE_CUDA_LIBRARY", raising=False)
    monkeypatch.setitem(sys.modules, "gradwire_cuda", None)
    monkeypatch.setenv("GRADWIRE_CACHE", str(FOLDER))
    assert cuda.status() == cuda.Status(library, "built from source")
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled again"))
    assert gradwire.torch.build_cuda(architectures=["90"], folder=FOLDER) == library


@pytest.mark.full
def test_the_library_refers_to_no_python(library: Path) -> None:
    symbols = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True)
    assert "aoti_torch_get_current_cuda_stream" in symbols.stdout
    lines = symbols.stdout.splitlines()
    assert not [line for line in lines if " U Py" in line or " U _Py" in line]
    # CUDA's runtime is in it, and nobody else's takes its place.
    assert not [line for line in lines if " cuda" in line or " __cuda" in line]


@pytest.mark.full
def test_the_wheel_of_the_library_installs(library: Path, tmp_path: Path) -> None:
    wheel = cuda_wheel.pack(library, tmp_path)
    venv.create(tmp_path / "env", with_pip=False)
    python = str(tmp_path / "env" / "bin" / "python")
    install = [environment.find_uv(), "pip", "install", "--offline", "--no-deps", "--quiet"]
    subprocess.run([*install, "--python", python, str(wheel)], check=True)
    program = "import gradwire_cuda as g; print(g.__version__, g.library().stat().st_size)"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    said = done.stdout.split()
    assert said == [gradwire.__version__, str(library.stat().st_size)]


@pytest.mark.usefixtures("nothing_installed")
def test_without_a_library_the_reason_says_what_to_do() -> None:
    found = cuda.status()
    assert found.library is None
    assert "gradwire.torch.cuda.build_cuda()" in found.reason
    with pytest.raises(ExtensionError, match="build_cuda"):
        cuda.load()


def test_flags_of_the_environment_do_not_count(
    toolkit: build.Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = toolkit.version()
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "--use_fast_math")
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "--no-such-flag")
    assert toolkit.version() == version
    build.run([str(toolkit.nvcc), "--version"])


@pytest.mark.full
def test_kernels_have_no_instruction_that_rounds_otherwise(
    toolkit: build.Toolkit, tmp_path: Path
) -> None:
    passed = FOLDER / f"{build._key([OTHER_BYTES.pattern], toolkit.version())}.passed"
    if passed.exists():
        pytest.skip("has passed with these sources and this compiler")
    folders = [f"-I{path}" for path in (build.SOURCES, *toolkit.include)]
    oldest = f"-arch=compute_{build.ARCHITECTURES[0]}"

    def compiled(source: Path) -> str:
        made = tmp_path / source.with_suffix(".ptx").name
        flags = [*build._FLAGS, oldest, *folders, "-ptx", str(source), "-o", str(made)]
        build.run([str(toolkit.nvcc), *flags])
        return made.read_text()

    sources = [path for path in build.SOURCES.rglob("*.cu") if "const Kernels " in path.read_text()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        ptx = "".join(pool.map(compiled, sources))
    assert ptx.count(".entry") > 15
    assert len(re.findall(r"\b(?:add|sub|mul|div)\.rn\.f", ptx)) > 1000
    assert set(OTHER_BYTES.findall(ptx)) == set()
    FOLDER.mkdir(parents=True, exist_ok=True)
    passed.touch()


@pytest.mark.parametrize(
    ("built", "runs", "not_on"),
    [
        (("80", "90"), [(8, 0), (8, 6), (9, 0), (10, 0)], [(7, 5)]),
        (("90",), [(9, 0), (12, 0)], [(8, 0), (8, 9)]),
        (("80", "90a"), [(8, 9), (9, 0)], [(10, 0), (9, 1)]),
    ],
)
def test_code_runs_on_later_gpus_of_its_kind_and_its_ptx_on_all_later_ones(built, runs, not_on):
    assert all(build.runs_on(built, each) for each in runs)
    assert not any(build.runs_on(built, each) for each in not_on)


@pytest.mark.usefixtures("nothing_installed")
def test_a_library_is_taken_only_where_it_has_code_for_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for built, chosen in enumerate((("80", "90"), ("100",))):
        library = tmp_path / build._folder(chosen, "a compiler") / build.NAME
        library.parent.mkdir()
        library.write_bytes(b"")
        os.utime(library, (built, built))
    newest, older = build.cached()
    assert (newest.architectures, older.architectures) == (("100",), ("80", "90"))
    # Which GPUs there are is not known before the process uses CUDA.
    assert cuda.status() == cuda.Status(older.library, "built from source")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for here, wanted in (
        (((9, 0),), older.library),
        (((10, 3),), newest.library),
        (((8, 0), (12, 0)), older.library),  # for the second by its PTX
        (((7, 5),), None),
    ):
        monkeypatch.setattr(build, "capabilities", lambda here=here: here)
        assert cuda.status().library == wanted, here
    reason = cuda.status().reason
    assert "was built for 100, 80, 90, but the GPUs here are 75" in reason
    assert "build_cuda()" in reason


@pytest.mark.usefixtures("nothing_installed")
def test_a_package_of_another_version_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("gradwire_cuda")
    package.__version__ = "0.0.1"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gradwire_cuda", package)
    assert cuda.status().library is None
    assert f"build version {gradwire.__version__} with `make cuda`" in cuda.status().reason


@pytest.mark.usefixtures("nothing_installed")
def test_a_library_that_is_named_must_be_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRADWIRE_CUDA_LIBRARY", str(tmp_path / "missing.so"))
    assert "which is not a file" in cuda.status().reason
    (tmp_path / "broken.so").write_bytes(b"no library")
    monkeypatch.setenv("GRADWIRE_CUDA_LIBRARY", str(tmp_path / "broken.so"))
    with pytest.raises(ExtensionError, match="was not loaded: it is damaged"):
        cuda.load()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The files that a compiler makes that takes no time, for a torch with CUDA."""
    made: list[str] = []

    def run(command: list[str]) -> None:
        made.append(Path(command[command.index("-o") + 1]).name)
        Path(command[command.index("-o") + 1]).write_bytes(b"")

    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "lib" / "libtorch_cuda.so").write_bytes(b"")
    monkeypatch.setattr(build, "run", run)
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "torch" / "__init__.py"))
    monkeypatch.setattr(build, "find_toolkit", lambda: build.Toolkit(Path("nvcc")))
    monkeypatch.setattr(build.Toolkit, "version", lambda self: "any")
    return made


@pytest.mark.usefixtures("compiled")
def test_progress_counts_the_files_that_are_compiled(tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    made = gradwire.torch.build_cuda(
        architectures=["90"], folder=tmp_path, progress=lambda *what: told.append(what)
    )
    assert made.exists()
    sources = [each.name for each in build._files() if each.suffix in (".cu", ".cpp")]
    assert [what for what, _ in told] == [*sources, "done"]
    assert [share for _, share in told] == sorted(share for _, share in told)
    assert told[-2][1] < told[-1][1] == 1.0


def test_the_ranks_of_a_node_compile_once(compiled: list[str], tmp_path: Path) -> None:
    told: list[str] = []

    def rank(_: int) -> Path:
        return gradwire.torch.build_cuda(
            architectures=["90"], folder=tmp_path, progress=lambda what, _: told.append(what)
        )

    with ThreadPoolExecutor(8) as pool:
        (made,) = set(pool.map(rank, range(8)))
    assert made.exists()
    assert compiled.count(build.NAME) == told.count("done") == 1


def test_without_a_compiler_the_error_says_which_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build, "_machine_toolkit", lambda: None)
    monkeypatch.setattr(build, "_wheel_toolkit", lambda: None)
    with pytest.raises(ExtensionError, match="install nvidia-cuda-nvcc"):
        gradwire.torch.build_cuda(folder=tmp_path)


@pytest.mark.full
def test_what_the_compiler_says_is_in_the_error(library: Path, tmp_path: Path) -> None:
    with pytest.raises(ExtensionError, match=r"could not be compiled.*sm_12345"):
        gradwire.torch.build_cuda(architectures=["12345"], folder=tmp_path)


def test_the_sources_are_in_the_package() -> None:
    package = importlib.util.find_spec("gradwire.torch")
    assert package is not None
    assert package.origin is not None
    assert Path(package.origin).parent / "csrc" == build.SOURCES
    assert (build.SOURCES / "ops" / "decode.cpp").is_file()
