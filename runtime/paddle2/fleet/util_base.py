"""Values and files of all workers: sums, lists, shares."""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.life import FLEET

Array = npt.NDArray[Any]
_MODES = {"sum": np.add, "min": np.minimum, "max": np.maximum}


class UtilBase:
    """`fleet.util`. Workers take part, and all of them call the same functions in the same order."""

    def all_reduce(self, input: npt.ArrayLike, mode: str = "sum", comm_world: str = "worker") -> Array:
        """Return the sum, the minimum or the maximum over all workers, in the kind of `input`.

        Numbers are added in the order of workers, so all get the same bits.
        """
        if mode not in _MODES:
            raise ValueError(f"fleet.util.all_reduce: mode={mode!r}, expected sum, min or max")
        found = _gather(np.asarray(input), comm_world, "all_reduce")
        for worker, other in enumerate(found):
            if (other.shape, other.dtype) != (found[0].shape, found[0].dtype):
                raise ValueError(
                    f"fleet.util.all_reduce: worker 0 gave {_describe(found[0])}, worker {worker} "
                    f"{_describe(other)}; all must give the same kind"
                )
        return np.asarray(functools.reduce(_MODES[mode], found))

    def all_gather(self, input: npt.ArrayLike, comm_world: str = "worker") -> list[Any]:
        """Return the value of each worker, in order; a number as a number."""
        found = _gather(np.asarray(input), comm_world, "all_gather")
        return [one if one.ndim else one.item() for one in found]

    def barrier(self, comm_world: str = "worker") -> None:
        """Wait until all workers have called this, or have stopped."""
        _check_world(comm_world, "barrier")
        FLEET.barrier_worker()

    def get_file_shard(self, files: Sequence[str]) -> list[str]:
        """Return this worker's share of the files: neighbours, and one more for the first few workers."""
        if isinstance(files, str):
            raise TypeError(f"fleet.util.get_file_shard: files={files!r}, expected a list of files")
        part = FLEET.get_part()
        size, more = divmod(len(files), part.workers)
        first = part.index * size + min(part.index, more)
        return list(files[first : first + size + (part.index < more)])

    def print_on_rank(self, message: object, rank_id: int) -> None:
        """Print a message on one worker alone."""
        part = FLEET.get_part()
        if not part.is_server and part.index == rank_id:
            print(message, flush=True)


def _check_world(comm_world: str, name: str) -> None:
    if comm_world != "worker":
        raise ValueError(
            f"fleet.util.{name}: comm_world={comm_world!r} is not in this runtime: servers take part in "
            "nothing but training; expected worker"
        )


def _gather(array: Array, comm_world: str, name: str) -> list[Array]:
    _check_world(comm_world, name)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"fleet.util.{name}: expected numbers, not {_describe(array)}")
    data = io.BytesIO()
    np.save(data, array, allow_pickle=False)
    heard = FLEET.gather(data.getvalue(), f"util.{name}")
    return [np.load(io.BytesIO(one), allow_pickle=False) for one in heard]


def _describe(array: Array) -> str:
    return f"{array.dtype} of shape {list(array.shape)}"
