"""Shapes of data from elsewhere, checked before it is used or shown.

A shape is a type; a list of one shape for lists of it; a dict of shapes by name, optional if the name ends
with `?`; a tuple of alternative shapes; None for null; or a function that returns True.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

NAME_CHARS = 200
MOST_COUNTED = 2**50


def make_range(kinds: tuple[type, ...], least: float, most: float) -> Callable[[Any], bool]:
    """Return the shape of a finite number of one of these types, from `least` to `most`."""

    def is_inside(value: Any) -> bool:
        return type(value) in kinds and least <= value <= most

    return is_inside


is_number = make_range((int, float), -(2**64), 2**64)
# Of steps, or of files or bytes of a node: their sum is a number too.
is_count = make_range((int,), 0, MOST_COUNTED)
# Seconds of a clock or a duration, which can be added, and shown as a date.
is_time = make_range((int, float), 0, MOST_COUNTED)
is_code = make_range((int,), 0, 255)  # an exit code as a shell knows it: 256 would be 0 there
is_failure_code = make_range((int,), 1, 255)
is_port = make_range((int,), 0, 65535)


def is_name(value: Any) -> bool:
    return type(value) is str and len(value) <= NAME_CHARS


def check_shape(value: Any, shape: Any, name: str = "it") -> None:
    """Raise ValueError, naming the place, unless data has this shape."""
    if isinstance(shape, dict) and isinstance(value, Mapping):
        for key, part in shape.items():
            plain = key.rstrip("?")
            if plain in value:
                check_shape(value[plain], part, plain)
            elif plain == key:
                raise ValueError(f"{name} lacks {plain!r}")
    elif isinstance(shape, list) and isinstance(value, (list, tuple)):
        for each in value:
            check_shape(each, shape[0], name)
    elif not _matches(value, shape):
        raise ValueError(f"{name} can't be {str(value)[:NAME_CHARS]!r}")


def fits(value: Any, shape: Any) -> bool:
    try:
        check_shape(value, shape)
    except ValueError:
        return False
    return True


def _matches(value: Any, shape: Any) -> bool:
    if isinstance(shape, tuple):
        return any(fits(value, one) for one in shape)
    if shape is None:
        return value is None
    if isinstance(shape, type):
        return type(value) is shape and (shape is not int or is_number(value))
    return not isinstance(shape, (dict, list)) and bool(shape(value))
