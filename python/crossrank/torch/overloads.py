"""The other forms in which torch declares the methods of a process group.

Torch's own functions mostly call a method with lists of tensors and an object with options: `allreduce([t], opts)`. Each
method also has a form with one tensor, and values in place of the options: `allreduce(t, op)`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

__all__ = ["with_short_form"]

# Under which names torch's declarations have the tensors of a method, by their position.
_NAMES = (
    ("tensors", "tensor", "output_tensors", "output_tensor", "output"),
    ("input_tensors", "input_tensor", "input"),
)


def _as_list(value: Any) -> list[Any]:
    return [value] if isinstance(value, Tensor) else list(value)


def _as_lists(value: Any) -> list[list[Any]]:
    return [list(value)] if not len(value) or isinstance(value[0], Tensor) else [list(each) for each in value]


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {"list": _as_list, "lists": _as_lists}


def with_short_form(options: type, tensors: Sequence[str], **fields: str) -> Callable[[Any], Any]:
    """Lets a method take its short form too.

    `tensors` has "list" or "lists" for each parameter with tensors. The method gets copies of the lists: the program may use
    them again before an asynchronous operation has begun. `fields` has the parameters of the short form in order,
    with the names of the options that they set.
    """
    known = {**fields, "timeout": "timeout"}

    def convert(values: Sequence[Any]) -> list[Any]:
        return [_CONVERSIONS[kind](value) for kind, value in zip(tensors, values, strict=True)]

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(group: Any, *arguments: Any, **named: Any) -> Any:
            if len(arguments) == len(tensors) + 1 and isinstance(arguments[-1], options) and not named:
                return method(group, *convert(arguments[:-1]), arguments[-1])  # as torch's functions call it
            values = list(arguments[: len(tensors)])
            for names in _NAMES[len(values) : len(tensors)]:
                values += [named.pop(name) for name in names if name in named][:1]
            rest = arguments[len(tensors) :]
            opts = named.pop("opts", None)
            if rest and isinstance(rest[0], options):
                opts, rest = rest[0], ()
            if opts is None:
                opts = options()
            for name, value in {**dict(zip(known, rest, strict=False)), **named}.items():
                if name not in known:
                    raise TypeError(f"{method.__name__}() got an unexpected argument {name!r}")
                if value is not None:
                    setattr(opts, known[name], value)
            return method(group, *convert(values), opts)

        return call

    return decorate
