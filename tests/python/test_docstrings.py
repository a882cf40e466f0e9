"""Everything public says what it does, and most of it shows how it is called."""

import importlib
import inspect
import typing

import pytest

# The project vLLM defines the calls of the other module, so its documents have the examples.
WITH_EXAMPLES = ["crossrank", "crossrank.compat.axolotl", "crossrank.compat.modelopt", "crossrank.torch"]
WITHOUT_EXAMPLES = ["crossrank.compat.vllm"]


def members(name):
    """Yields the name, the value and the docstring of all public objects of a module and of its classes."""
    if name != "crossrank":
        pytest.importorskip("torch")
    module = importlib.import_module(name)
    for each in module.__all__:
        value = getattr(module, each)
        if each.startswith("__"):
            continue
        yield each, value, value.__doc__
        if inspect.isclass(value):
            for attribute, member in vars(value).items():
                member = getattr(member, "__func__", member)  # of a class method
                if not attribute.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                    yield f"{each}.{attribute}", member, member.__doc__


def is_result(value):
    """Returns whether it only holds values, which the function that returns it explains."""
    return inspect.isclass(value) and (hasattr(value, "_fields") or hasattr(value, "__dataclass_fields__"))


@pytest.mark.parametrize("module", WITH_EXAMPLES + WITHOUT_EXAMPLES)
def test_every_public_object_has_a_docstring(module):
    found = list(members(module))
    assert len(found) > 5
    assert [name for name, _, text in found if not text] == []


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_functions_and_classes_have_an_example(module):
    from crossrank import Tensor

    callables = [
        (name, text)
        for name, value, text in members(module)
        if not isinstance(value, property)
        and value is not Tensor
        and not is_result(value)
        # Torch defines and documents the calls of a process group.
        and not name.startswith("CrossrankProcessGroup")
    ]
    assert [name for name, text in callables if ">>>" not in text] == []


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples_are_python(module):
    import doctest

    for name, _, text in members(module):
        for example in doctest.DocTestParser().get_examples(typing.cast(str, text)):
            compile(example.source, name, "single")
