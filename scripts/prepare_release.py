"""Write what only a release has into a clean checkout: its address, and the licenses of crates.

    python3 scripts/prepare_release.py https://HOST/OWNER/gradwire

The README's links are relative, which a package index cannot follow, and the repository does not
record where it is hosted. So links become absolute, to the tag of this version, and
`pyproject.toml` gets ``[project.urls]``. A wheel has the code of other crates in it, so their
licenses go into ``LICENSE-CRATES``, which sdist and wheels have then. The README begins with the
commands of a checkout, which readers of an index do not have: they get ``pip install`` alone.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INSTALL = "pip install 'gradwire[torch]'"
LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)\s]+\))")


def released(readme: str, home: str, version: str) -> str:
    """Return the README for an index: installed from there, with links to this version's files."""
    readme, cut = re.subn(r"(?s)```sh\nmake demo.*?(?=In your own program)", "", readme)
    readme, named = re.subn(
        r"There is no release yet: .*(?= \()", f"Install it: `{INSTALL}`", readme
    )
    if (cut, named) != (1, 1):
        raise SystemExit("error: README.md does not begin as expected")

    def whole(link: re.Match[str]) -> str:
        way = "raw" if link[2].endswith((".svg)", ".png)")) else "blob"  # a picture, not its page
        return f"{link[1]}{home}/{way}/v{version}/{link[2]}"

    return LINK.sub(whole, readme)


def with_urls(project: str, home: str) -> str:
    """Return the pyproject.toml with the URLs of the repository added."""
    if "[project.urls]" in project:
        raise SystemExit("error: pyproject.toml has [project.urls] already")
    urls = {
        "Repository": home,
        "Documentation": f"{home}/tree/main/docs",
        "Changelog": f"{home}/blob/main/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }
    lines = "\n".join(f'{name} = "{url}"' for name, url in urls.items())
    return project.replace("[project.scripts]", f"[project.urls]\n{lines}\n\n[project.scripts]", 1)


def with_license(project: str) -> str:
    """Return the pyproject.toml with `LICENSE-CRATES` among its files."""
    return project.replace('"LICENSE-MIT"]', '"LICENSE-MIT", "LICENSE-CRATES"]', 1)


def licenses() -> str:
    """Return the licenses of all crates whose code is in a wheel, on any platform."""
    command = ["cargo", "metadata", "--locked", "--format-version=1"]
    found = json.loads(subprocess.check_output(command, cwd=ROOT))
    packages = {each["id"]: each for each in found["packages"]}
    needs = {
        node["id"]: [
            need["pkg"]
            for need in node["deps"]
            if any(kind["kind"] is None for kind in need["dep_kinds"])
        ]
        for node in found["resolve"]["nodes"]
    }
    (root,) = (name for name, each in packages.items() if each["name"] == "gradwire-python")
    linked, waiting = set[str](), [root]
    while waiting:
        name = waiting.pop()
        macro = any("proc-macro" in each["kind"] for each in packages[name]["targets"])
        if name not in linked and not macro:  # a macro runs in the compiler
            linked.add(name)
            waiting += needs[name]
    crates = [packages[name] for name in linked if packages[name]["source"]]
    texts: dict[str, list[str]] = {}
    for crate in sorted(crates, key=lambda each: str(each["name"])):
        title = f"{crate['name']} {crate['version']} ({crate['license']})"
        files = sorted(
            path
            for path in Path(crate["manifest_path"]).parent.iterdir()
            if path.is_file() and re.match("licen[sc]e|copying|notice|unlicense", path.name, re.I)
        )
        if not files:
            raise SystemExit(f"error: {title} has no file with its license")
        for path in [each for each in files if "MIT" in each.name.upper()] or files:  # one will do
            texts.setdefault(path.read_text("utf-8").strip(), []).append(title)
    parts = (["-" * 80, *dict.fromkeys(titles), "", text, ""] for text, titles in texts.items())
    return "\n".join(line for part in parts for line in part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", help="URL of the repository, without a trailing slash")
    home = parser.parse_args().home.rstrip("/")
    if not re.fullmatch(r"https://\S+", home):
        sys.exit(f"error: {home!r} is not an https address")
    version = tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["workspace"]["package"]
    readme, project = ROOT / "README.md", ROOT / "pyproject.toml"
    urls = with_license(with_urls(project.read_text("utf-8"), home))
    links = released(readme.read_text("utf-8"), home, version["version"])
    (ROOT / "LICENSE-CRATES").write_text(licenses(), "utf-8", newline="\n")
    project.write_text(urls, "utf-8", newline="\n")
    readme.write_text(links, "utf-8", newline="\n")
    print(f"README.md and pyproject.toml now link to {home}")


if __name__ == "__main__":
    main()
