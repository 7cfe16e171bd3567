"""`EOFException`, at its place in PaddlePaddle."""

__all__ = ["EOFException"]


class EOFException(Exception):
    """The data of a DataLoader is at its end: call its reset(), then start() for the next pass."""
