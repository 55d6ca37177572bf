"""Tab completion of lazily imported modules: lists their names without importing them."""

import sys


def tab_asks() -> bool:
    """Tell whether a REPL's completion has called a module's ``__getattr__``.

    `rlcompleter` reads every attribute that it lists, to see whether it is callable. That would
    import all modules, and one ImportError, for a missing library, would leave it without names.
    """
    return sys._getframe(2).f_globals.get("__name__") == "rlcompleter"
