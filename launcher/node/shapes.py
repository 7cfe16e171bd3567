"""Shapes of data from elsewhere, checked before it is used or shown.

A shape is a type; a list of one shape for lists of it; a dict of shapes by name, optional if the name ends
with `?`; a tuple of alternative shapes; None for null; or a function that returns True.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST = 2**64  # of a number's absolute value
MOST_COUNTED = 2**50
NAME_CHARS = 200


def is_number(value: Any) -> bool:
    """Return True for a finite number of reasonable size."""
    return type(value) in (int, float) and -MOST <= value <= MOST


def is_count(value: Any) -> bool:
    """Return True for a number of steps, or of files or bytes of a node, whose sum is below MOST too."""
    return type(value) is int and 0 <= value <= MOST_COUNTED


def is_time(value: Any) -> bool:
    """Return True for seconds, of a clock or a duration, which can be added, and shown as a date."""
    return type(value) in (int, float) and 0 <= value <= MOST_COUNTED


def is_name(value: Any) -> bool:
    return type(value) is str and len(value) <= NAME_CHARS


def is_code(value: Any) -> bool:
    """Return True for an exit code as a shell knows it: 256 would be 0 there."""
    return type(value) is int and 0 <= value <= 255


def is_failure_code(value: Any) -> bool:
    return is_code(value) and value != 0


def is_port(value: Any) -> bool:
    return type(value) is int and 0 <= value <= 65535


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
