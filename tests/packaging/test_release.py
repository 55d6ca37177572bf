"""What a package index and an installer get to see."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from scripts import check_release, environment, prepare_release, wheel
from tests.packaging import many_threads

ROOT = Path(__file__).parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
HOME = "https://example.org/owner/gradwire"


def test_the_metadata_says_what_it_runs_on():
    project = tomllib.loads(PROJECT)["project"]
    classifiers = project["classifiers"]
    assert "Operating System :: POSIX :: Linux" in classifiers
    oldest = project["requires-python"].removeprefix(">=")
    tried = {version for version, *_ in check_release.MATRIX} - {"3.14t"}
    assert oldest == min(tried)
    assert {f"Programming Language :: Python :: {version}" for version in tried} <= {*classifiers}
    assert "torch" not in " ".join(project["dependencies"])


def test_a_wheel_has_the_package_and_its_examples_alone():
    # Without a format, maturin copies a file into wheels as well, so into site-packages.
    *files, examples = tomllib.loads(PROJECT)["tool"]["maturin"]["include"]
    assert all(each["format"] == "sdist" for each in files)
    assert examples == {"path": "_examples/*", "from": "out-dir", "to": "gradwire/"}


def test_a_release_has_absolute_links_alone():
    relative = [match[2] for match in prepare_release.LINK.finditer(README)]
    assert relative
    assert all((ROOT / link.rstrip(")").partition("#")[0]).exists() for link in relative)
    released = prepare_release.released(README, HOME, "1.2.3")
    assert released.startswith("# gradwire\n\n**Gradient compression")
    assert "Install it: `pip install 'gradwire[torch]'` ([more]" in released
    assert "In your own program, one line is new:\n\n```python" in released
    assert "checkout" not in released
    assert "make test" not in released
    assert not prepare_release.LINK.search(released)
    assert f"({HOME}/raw/v1.2.3/docs/study.svg)" in released
    assert f"({HOME}/blob/v1.2.3/docs/ddp.md)" in released
    assert released.count(HOME) == len(relative)
    with pytest.raises(SystemExit, match="does not begin"):
        prepare_release.released(released, HOME, "1.2.3")


def test_a_release_has_addresses():
    project = tomllib.loads(prepare_release.with_urls(PROJECT, HOME))["project"]
    assert project["urls"]["Repository"] == HOME
    assert {"Documentation", "Changelog", "Issues"} <= project["urls"].keys()
    assert project["scripts"] == tomllib.loads(PROJECT)["project"]["scripts"]
    with pytest.raises(SystemExit, match="already"):
        prepare_release.with_urls(prepare_release.with_urls(PROJECT, HOME), HOME)


def test_a_release_has_the_licenses_of_what_is_compiled_into_it():
    text = prepare_release.licenses()
    for crate in ("pyo3", "rayon", "libm"):  # also what others need
        assert re.search(rf"^{crate} [\d.]+ \(.*MIT.*\)$", text, re.MULTILINE)
    assert "syn " not in text  # runs in the compiler alone
    assert text.count("Permission is hereby granted") > 5
    files = tomllib.loads(prepare_release.with_license(PROJECT))["project"]["license-files"]
    assert files == ["LICENSE-APACHE", "LICENSE-MIT", "LICENSE-CRATES"]


def test_workflows_use_actions_of_known_commits():
    folder = ROOT / ".github" / "workflows"
    used = re.findall(r"uses: (\S+.*)", "".join(file.read_text() for file in folder.iterdir()))
    assert len(used) >= 8
    assert all(re.fullmatch(r"\S+@[0-9a-f]{40} # v[\d.]+", each) for each in used)


def test_all_files_have_one_version(monkeypatch, tmp_path):
    version = check_release.versions()
    assert (
        version
        == tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    )
    for name in (*check_release.VERSIONS, "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text("utf-8"), "utf-8")
    (tmp_path / "CITATION.cff").write_text("version: 9.9.9\n")
    monkeypatch.setattr(check_release, "ROOT", tmp_path)
    with pytest.raises(RuntimeError, match=r"9\.9\.9"):
        check_release.versions()


def test_a_release_has_the_version_of_its_tag_and_a_date(monkeypatch, tmp_path):
    version = check_release.versions()
    monkeypatch.setenv("GITHUB_REF_TYPE", "tag")
    monkeypatch.setenv("GITHUB_REF_NAME", "v9.9.9")
    with pytest.raises(RuntimeError, match=r"the tag is v9\.9\.9"):
        check_release.versions()
    for name in (*check_release.VERSIONS, "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text("utf-8"), "utf-8")
    monkeypatch.setattr(check_release, "ROOT", tmp_path)
    monkeypatch.setenv("GITHUB_REF_NAME", f"v{version}")
    (tmp_path / "CHANGELOG.md").write_text(f"## {version} (unreleased)\n")
    with pytest.raises(RuntimeError, match="no date"):
        check_release.versions()
    (tmp_path / "CHANGELOG.md").write_text(f"## {version} (2026-12-01)\n")
    assert check_release.versions() == version


def test_a_step_that_cannot_run_is_left_out_and_one_that_fails_fails(monkeypatch, capsys):
    def unable() -> str:
        raise check_release.LeftOut("no compiler")

    def wrong() -> str:
        raise RuntimeError("two wheels")

    monkeypatch.setattr(
        check_release, "steps", lambda _: {"a": lambda: "fine", "b": unable, "c": wrong}
    )
    monkeypatch.setattr(sys, "argv", ["check_release.py", "--skip", "c"])
    assert check_release.main() == 0
    monkeypatch.setattr(sys, "argv", ["check_release.py", "--skip", "c", "--strict"])
    assert check_release.main() == 1
    monkeypatch.setattr(sys, "argv", ["check_release.py"])
    assert check_release.main() == 1
    said = capsys.readouterr().out
    for line in (r"a +ok .* s  fine", r"b +left out .* no compiler", r"c +FAILED .* two wheels"):
        assert re.search(line, said)
    assert "trusted publisher" in said
    assert said.endswith("1 ok, 1 left out, 1 FAILED\n")
    monkeypatch.setattr(sys, "argv", ["check_release.py", "--only", "nothing"])
    with pytest.raises(SystemExit):
        check_release.main()


def test_a_wheel_does_not_name_the_folder_that_it_was_built_in(tmp_path):
    files = {"g/sboms/g.cyclonedx.json": f"{tmp_path.as_uri()}/rust".encode(), "g/_native.so": b"1"}
    record = "\n".join(f"{name},{wheel.record_entry(data)}" for name, data in files.items())
    with zipfile.ZipFile(tmp_path / "old", "w") as old:
        for name, data in (files | {"g/RECORD": record}).items():
            old.writestr(name, data)
        with zipfile.ZipFile(tmp_path / "new", "w") as new:
            wheel.replace_folder(old, new, tmp_path)
            assert new.namelist() == old.namelist()
            read = {name: new.read(name) for name in new.namelist()}
    assert read["g/sboms/g.cyclonedx.json"] == b"file:///gradwire/rust"
    for line in read.pop("g/RECORD").splitlines():
        name, _, entry = line.decode().partition(",")
        assert entry == wheel.record_entry(read[name])


def test_recipes_and_workflows_can_be_read():
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text("utf-8"))
    assert recipe["schema_version"] == 1
    assert {"package", "source", "build", "requirements", "tests", "about"} <= recipe.keys()
    project = tomllib.loads(PROJECT)
    assert recipe["requirements"]["run"][1] == project["project"]["dependencies"][0].replace(
        ">=", " >="
    )
    assert recipe["about"]["license"] == project["project"]["license"]
    hosted = yaml.safe_load((ROOT / ".readthedocs.yaml").read_text("utf-8"))
    locks = re.findall(r"-r (\S+)", " ".join(hosted["build"]["jobs"]["install"]))
    assert locks
    assert all((ROOT / lock).exists() for lock in locks)
    for file in (ROOT / ".github").rglob("*.yml"):
        assert yaml.safe_load(file.read_text("utf-8"))
    (form,) = (ROOT / ".github" / "ISSUE_TEMPLATE").iterdir()
    assert "`gradwire info`" in form.read_text("utf-8")


def test_threads_do_not_change_each_others_frames():
    many_threads.main()


def test_the_environment_of_the_wheel_is_without_torch(monkeypatch, tmp_path):
    installed: list[str] = []
    monkeypatch.setattr(environment, "run", lambda *words, **_: installed.extend(map(str, words)))
    monkeypatch.setattr(environment, "find_uv", lambda: "uv")
    monkeypatch.setenv("TORCH", "torch==2.4")
    env = environment.Environment(tmp_path)
    environment.install(env, ["wheel"])
    assert [word for word in installed if word.startswith("--requirements")] == [
        "--requirements=requirements/wheel.txt"
    ]
    assert not any("torch" in word for word in installed)
    locked = (ROOT / "requirements" / "wheel.txt").read_text("utf-8")
    assert "ziglang==" in locked
    assert "torch" not in locked


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_wheel_installs_where_torch_does_and_works_without_it():
    done = subprocess.run(
        ["make", "wheel", f"PYTHON={sys.executable}"],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "works without torch" in done.stdout
    name = re.search(r"==> dist/(\S+\.whl)", done.stdout)
    assert name
    version = importlib.metadata.version("gradwire")
    assert name[1].startswith(f"gradwire-{version}-cp311-abi3-")
    if sys.platform == "linux":
        assert "-manylinux_2_28_" in name[1]
    with zipfile.ZipFile(ROOT / "dist" / name[1]) as built:
        names = built.namelist()
    assert {"gradwire/py.typed", "gradwire/_examples/gpt.py"} <= {*names}
    assert all(name.startswith("gradwire") for name in names)
    assert any(re.fullmatch(r"gradwire/_native\S*\.(so|pyd)", each) for each in names)


def test_only_the_layer_of_torch_brings_torch(monkeypatch, tmp_path):
    # The trainers depend on torch, which TORCH, TORCH_INDEX and SYSTEM_TORCH replace.
    locks = {path.stem: path.read_text("utf-8") for path in (ROOT / "requirements").glob("*.txt")}
    assert re.search(r"^lightning==2\.", locks["trainers"], re.MULTILINE)
    assert {name for name, lock in locks.items() if re.search(r"(?m)^torch==", lock)} == {"torch"}
    assert not re.search(r"(?m)^(nvidia|cuda|triton)\b", locks["trainers"])

    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(environment, "run", lambda *words, **_: commands.append(words))
    monkeypatch.setattr(environment, "find_uv", lambda: "uv")
    monkeypatch.setenv("SYSTEM_TORCH", "1")
    environment.install(environment.Environment(tmp_path), ["demo", "trainers"])
    (command,) = commands
    assert {"--no-deps", "--require-hashes"} <= set(command)
    assert "--requirements=requirements/trainers.txt" in command


def test_every_locked_package_has_hashes():
    folder = ROOT / "requirements"
    locks = sorted(folder.glob("*.txt"))
    assert [each.stem for each in locks] == sorted(each.stem for each in folder.glob("*.in"))
    for lock in locks:
        _, *packages = re.split(r"^(?=\w)", lock.read_text("utf-8"), flags=re.MULTILINE)
        assert packages
        assert all("==" in each and " --hash=sha256:" in each for each in packages)


KNOWN = {
    "accelerate",
    "lightning",
    "matplotlib",
    "ml-dtypes",
    "rich",
    "scikit-learn",
    "torch",
    "transformers",
}
COMPILER = {f"nvidia-{part}" for part in ("cuda-nvcc", "cuda-runtime", "cuda-crt", "nvvm")}


def test_messages_tell_to_install_only_packages_that_are_known():
    # Whoever registers a name that we tell and do not have gets into every machine that obeys.
    sources = [path.read_text("utf-8") for path in (ROOT / "python").rglob("*.py")]
    words = [match for text in sources for match in re.findall(r'pip install ([^"{]*)', text)]
    names = {word.strip("'").partition(">=")[0] for each in words for word in each.split()}
    assert names >= COMPILER
    assert names <= KNOWN | COMPILER
