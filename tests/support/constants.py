"""The constants of the C core, as its headers have them."""

from __future__ import annotations

import re
from pathlib import Path

HEADERS = Path(__file__).parents[2] / "runtime" / "csrc"
LIMITS = {"UINT32_MAX": 2**32 - 1, "UINT64_MAX": 2**64 - 1}


def read_header(name: str) -> str:
    """A header's text without its comments."""
    return re.sub(r"/\*.*?\*/", "", (HEADERS / name).read_text(), flags=re.DOTALL)


class Constants(dict[str, int]):
    """Numbers of headers: macros and enumerators on lines of their own, computed when they are asked for."""

    def __init__(self, *headers: str) -> None:
        super().__init__(LIMITS)
        text = "".join(map(read_header, headers))
        self.said = dict(re.findall(r"^(?:#define| +) ?(PS_\w+) (?:= )?(.*?),? *$", text, re.MULTILINE))

    def __missing__(self, name: str) -> int:
        said = re.sub(r"UINT(32|64)_C|\(uint64_t\)", "", self.said[name])
        self[name] = int(eval(said, {"__builtins__": {}}, self))
        return self[name]


def read_operations() -> dict[str, int]:
    """The numbers of the operations of frames, by name."""
    first = read_header("wire/ps_frame.h").split("enum {")[1].split("}")[0]
    return {name: int(number) for name, number in re.findall(r"PS_(\w+) = (\d+)", first)}


CONSTANTS = Constants(
    "tables/ps_schedule.h", "wire/ps_frame.h", "shard/ps_peer.h", "shard/ps_cut.h", "shard/ps_mail.h"
)
OPERATIONS = read_operations()
