"""What importing the package brings along."""

import pytest

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
        print(sorted(new & {"torch", "matplotlib", "scipy", "pandas"}))
        """
    )
    assert out.strip() == "[]"


def test_dir_lists_what_is_public_and_nothing_else():
    assert sorted(dir(gradwire)) == sorted(
        {*gradwire.__all__, "cost", "delta", "numerics", "torch", "weights"}
    )
    modules = "accelerate activations collective cost cuda ddp diloco fsdp horovod lightning optim"
    listed = {
        *gradwire.torch.__all__,
        *modules.split(),
        "transformers",
        "weights",
        "Reducer",
        "all_reduce",
        "build_cuda",
    }
    assert sorted(dir(gradwire.torch)) == sorted(listed)


def test_torch_is_imported_when_it_is_used_and_tab_lists_more_than_is_imported():
    out = run_python(
        """
        import rlcompleter, sys
        sys.modules["horovod"] = None
        import gradwire

        def tab(text):
            rlcompleter.Completer.complete(completer, text, 0)
            return completer.matches

        completer = rlcompleter.Completer({"gradwire": gradwire})
        print(tab("gradwire.tor"), "torch" in sys.modules)
        print(gradwire.torch.encode.__module__, "torch" in sys.modules)
        print(set(map("gradwire.torch.".__add__, dir(gradwire.torch)))
            - {each.rstrip("()") for each in tab("gradwire.torch.")})
        print(tab("gradwire.torch.hor"), "gradwire.torch.ddp" in sys.modules)
        """
    )
    assert out.splitlines() == [
        "['gradwire.torch'] False",
        "gradwire.torch.tensors True",
        "set()",
        "['gradwire.torch.horovod'] False",
    ]


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
    assert "pip install 'torch>=2.4'" in out


def test_all_names_are_there():
    assert all(hasattr(gradwire, name) for name in gradwire.__all__)
    assert gradwire.__version__.count(".") == 2


def test_an_unknown_attribute_is_an_attribute_error():
    assert not hasattr(gradwire, "no_such_thing")


def _warnings(**environment: str) -> list[str]:
    script = """
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import gradwire
        print(gradwire.simd_level(), gradwire.get_num_threads())
        for each in caught:
            print(each.category.__name__, each.message)
        """
    return run_python(script, **environment).splitlines()


@pytest.mark.parametrize("level", ["scalar", "SCALAR", " Scalar "])
def test_the_case_of_a_level_does_not_matter(level):
    in_use, *complaints = _warnings(GRADWIRE_SIMD=level)
    assert in_use.startswith("scalar ")
    assert complaints == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GRADWIRE_SIMD", "avx1024"),
        ("GRADWIRE_NUM_THREADS", "abc"),
        ("GRADWIRE_NUM_THREADS", "0"),
        ("GRADWIRE_NUM_THREADS", "2.5"),
        ("GRADWIRE_NUM_THREADS", "4097"),
    ],
)
def test_a_variable_that_is_ignored_is_a_warning(name, value):
    _, *complaints = _warnings(**{name: value})
    assert len(complaints) == 1
    assert complaints[0].startswith(f"RuntimeWarning {name}={value} is ignored: ")


def test_threads_come_from_the_own_variable_then_from_openmp():
    both = {"GRADWIRE_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}
    assert _warnings(**both)[0].endswith(" 3")
    assert _warnings(**both | {"GRADWIRE_NUM_THREADS": "many"})[0].endswith(" 5")
    assert _warnings(GRADWIRE_NUM_THREADS="", OMP_NUM_THREADS="7,2") == _warnings(
        OMP_NUM_THREADS="7"
    )


def test_the_simd_level_can_be_lowered_from_outside():
    level = run_python("import gradwire; print(gradwire.simd_level())", GRADWIRE_SIMD="scalar")
    assert level.strip() == "scalar"
