"""Write the address of the repository into a checkout that is about to be released.

    python3 scripts/release_home.py https://HOST/OWNER/gradwire

The README's links are relative, which a package index cannot follow, and the repository does not
record where it is hosted. A release runs this first, in a clean checkout: it makes the links
absolute, to the tag of this version, and adds ``[project.urls]`` to `pyproject.toml`.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)\s]+\))")


def absolute(readme: str, home: str, version: str) -> str:
    """Return the README with links to the files of this version."""
    return LINK.sub(rf"\g<1>{home}/blob/v{version}/\g<2>", readme)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", help="URL of the repository, without a trailing slash")
    home = parser.parse_args().home.rstrip("/")
    if not re.fullmatch(r"https://\S+", home):
        sys.exit(f"error: {home!r} is not an https address")
    version = tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["workspace"]["package"]
    readme, project = ROOT / "README.md", ROOT / "pyproject.toml"
    urls = with_urls(project.read_text("utf-8"), home)
    links = absolute(readme.read_text("utf-8"), home, version["version"])
    project.write_text(urls, "utf-8")
    readme.write_text(links, "utf-8")
    print(f"README.md and pyproject.toml now link to {home}")


if __name__ == "__main__":
    main()
