"""What importing the package brings along."""

import gradwire
from tests.support import run_python


def test_importing_takes_neither_torch_nor_anything_else_that_is_large():
    out = run_python(
        """
        import sys
        import numpy
        before = set(sys.modules)
        import gradwire, gradwire.cli, gradwire.cli.inspect, gradwire.cli.codecs
        new = {name.partition(".")[0] for name in set(sys.modules) - before}
        print(sorted(new & {"torch", "rich", "matplotlib", "sklearn", "scipy", "pandas"}))
        """
    )
    assert out.strip() == "[]"


def test_torch_is_imported_when_it_is_asked_for():
    out = run_python(
        """
        import sys
        import gradwire
        assert "torch" not in sys.modules
        print(gradwire.torch.encode.__module__, "torch" in sys.modules)
        """
    )
    assert out.split() == ["gradwire.torch.tensors", "True"]


def test_a_star_import_takes_no_torch():
    out = run_python("import sys; exec('from gradwire import *'); print('torch' in sys.modules)")
    assert out.strip() == "False"


def test_without_torch_the_error_says_what_to_install():
    out = run_python(
        """
        import sys
        sys.modules["torch"] = None
        import gradwire
        try:
            gradwire.torch
        except ImportError as error:
            print(error)
        """
    )
    assert "pip install 'gradwire[torch]'" in out


def test_all_names_are_there():
    assert all(hasattr(gradwire, name) for name in gradwire.__all__)
    assert gradwire.__version__.count(".") == 2


def test_an_unknown_attribute_is_an_attribute_error():
    assert not hasattr(gradwire, "no_such_thing")


def test_the_simd_level_can_be_lowered_from_outside():
    level = run_python("import gradwire; print(gradwire.simd_level())", GRADWIRE_SIMD="scalar")
    assert level.strip() == "scalar"
