"""Tab and modules that are imported when they are used: it lists their names and imports none."""

import sys


def tab_asks() -> bool:
    """Tell whether a REPL's completion is what has called a module's ``__getattr__``.

    `rlcompleter` takes every attribute that it lists, to see whether it can be called. That would
    import all modules, and an ImportError, of a library that is not installed, leaves it no names.
    """
    return sys._getframe(2).f_globals.get("__name__") == "rlcompleter"
