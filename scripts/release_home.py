"""Write the address of the repository into a checkout that is about to be released.

    python3 scripts/release_home.py https://HOST/OWNER/gradwire

Links of the README are relative, which a package index cannot follow, and the repository does not
know where it will be hosted. A release runs this first, in a clean checkout: it turns the links
into absolute ones, to the tag of this version, and gives `pyproject.toml` its ``[project.urls]``.
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
    """Return a README whose links lead to the files of this version."""
    return LINK.sub(rf"\g<1>{home}/blob/v{version}/\g<2>", readme)


def with_urls(project: str, home: str) -> str:
    """Return a pyproject.toml with the addresses that follow from that of the repository."""
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
    parser.add_argument("home", help="the repository's address, without a slash at its end")
    home = parser.parse_args().home.rstrip("/")
    if not re.fullmatch(r"https://\S+", home):
        sys.exit(f"error: {home!r} is not an https address")
    version = tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["workspace"]["package"]
    readme, project = ROOT / "README.md", ROOT / "pyproject.toml"
    urls = with_urls(project.read_text("utf-8"), home)
    links = absolute(readme.read_text("utf-8"), home, version["version"])
    project.write_text(urls, "utf-8")
    readme.write_text(links, "utf-8")
    print(f"README.md and pyproject.toml now lead to {home}")


if __name__ == "__main__":
    main()
