"""`EOFException`, at its place in PaddlePaddle."""

from . import publish

__all__ = ["EOFException"]
publish(__name__, __all__)


class EOFException(Exception):
    """The data of a DataLoader is at its end: call its reset(), then start() for the next pass."""
