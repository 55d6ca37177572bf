"""What ``import gradwire`` costs a program that already uses numpy."""


class Import:
    """A fresh interpreter each time, and numpy's own import left out."""

    def timeraw_import(self) -> tuple[str, str]:
        return "import gradwire", "import numpy"
