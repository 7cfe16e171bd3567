"""conf.py: a cluster as PaddlePaddle's scripts describe it, run as Python in a namespace of its own.

Every rejected name or value is a SpecError with file, line, name, and the nearest name.
"""

from __future__ import annotations

import ast
import contextlib
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pslaunch.runtime.shared import env as contract

from ...errors import SpecError
from ...node import binding
from ...options.args import NEAR
from ...options.kinds import SourceValues, Value, format_value, to_plain_text, to_text
from .options import OPTIONS

# Names of our options in conf.py.
KEYS: Final[Mapping[str, str]] = {
    "HOSTS": "hosts",
    "ROOT_DIR": "root_dir",
    "JOB_NAME": "job_name",
    "PADDLE_NIC": "nics",
    "PADDLE_PORT": "port",
    "PADDLE_PORTS_NUM": "ports_num",
    "PADDLE_PORTS_NUM_FOR_SPARSE": "ports_num_for_sparse",
    "PADDLE_USE_GPU": "use_gpu",
}
# PADDLE_* read by the programs themselves, without an option of ours.
VARIABLES: Final = frozenset(
    {"PADDLE_WITH_GLOO", "PADDLE_DATA_HOME", *(contract.get_init_var(name) for name in contract.INIT_ARGS)}
)
_UPPER: Final = re.compile(r"[A-Z][A-Z0-9_]*")
_KINDS: Final = {option.name: option.kind for option in OPTIONS}


def read_conf(path: Path, name: str, tell: Callable[[str], None] = lambda _text: None) -> SourceValues:
    """Run a conf.py and return its values by the names of our options. Raises SpecError.

    name: of the file in messages. tell: receives a line about values left out.
    """
    try:
        source = path.read_bytes()
    except OSError as e:
        raise SpecError(f"{name} can't be read: {e.strerror}") from e
    tree, namespace = _run(source, path, name)
    places = _Places(tree, name)
    layer: dict[str, list[Value]] = {}
    left_out = []
    for key, value in namespace.items():
        if (meant := _find_meant(key)) and meant not in namespace:
            remedy = f"did you mean {meant}? A variable of this name: --env {key}=VALUE"
            raise SpecError(f"{places.make_label(key)}: unknown name; {remedy}")
        if key == "HOSTS":
            layer["hosts"] = list(_read_hosts(value, places))
        elif key in KEYS:
            label = places.make_label(key)
            layer[KEYS[key]] = [Value(to_text(_KINDS[KEYS[key]], value, label), label)]
        elif _UPPER.fullmatch(key):
            variable = list(_read_variable(key, value, places))
            layer.setdefault("env", []).extend(variable)
            if not variable and not callable(value) and not isinstance(value, ModuleType):
                left_out.append(places.make_label(key))
    if left_out:
        tell(f"{', '.join(left_out)}: not text or a number, so not passed to the programs")
    return layer


def _run(source: bytes, path: Path, name: str) -> tuple[ast.Module, dict[str, Any]]:
    """Run the file and return its syntax tree and its names."""
    namespace: dict[str, Any] = {"__name__": "conf", "__file__": str(path)}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as "\d"
            tree = ast.parse(source, str(path))
            code = compile(source, str(path), "exec", dont_inherit=True)
        # Its prints must not mix with our output.
        with _allow_imports(path.parent), contextlib.redirect_stdout(sys.stderr):
            exec(code, namespace)
    except SyntaxError as e:
        raise SpecError(f"{name}{_find_line(e, path)}: {type(e).__name__}: {e.msg}") from e
    except (Exception, SystemExit) as e:
        words = traceback.format_exception_only(e)[-1].strip()
        raise SpecError(f"{name}{_find_line(e, path)}: {words}") from e
    return tree, namespace


@contextlib.contextmanager
def _allow_imports(folder: Path) -> Iterator[None]:
    """Allow imports from the folder, as for a program there, without writing there."""
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes
        if str(folder) in sys.path:
            sys.path.remove(str(folder))


def _find_line(error: BaseException, path: Path) -> str:
    """Return the error's line in the file as `:7`."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f":{error.lineno}" if error.lineno else ""
    frames = traceback.extract_tb(error.__traceback__)
    found = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f":{found[-1]}" if found else ""


class _Places:
    """Places of the values in conf.py as `conf.py:3`, and of the elements of its lists."""

    def __init__(self, tree: ast.Module, file: str) -> None:
        self._file = file
        self._lines: dict[str, int] = {}
        self._elements: dict[str, list[int]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._lines[node.id] = max(node.lineno, self._lines.get(node.id, 0))
            elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.List, ast.Tuple)):
                elements = [element.lineno for element in node.value.elts]
                self._elements.update({t.id: elements for t in node.targets if isinstance(t, ast.Name)})

    def find(self, key: str) -> str:
        return f"{self._file}:{self._lines[key]}" if key in self._lines else self._file

    def make_label(self, key: str) -> str:
        return f"{self.find(key)}: {key}"

    def find_elements(self, key: str, n: int) -> list[str]:
        lines = self._elements.get(key, [])
        return [f"{self._file}:{line}" for line in lines] if len(lines) == n else [self.find(key)] * n


def _read_hosts(value: object, places: _Places) -> Iterator[Value]:
    if not isinstance(value, (list, tuple)):
        meant = 'a list, such as ["node1", "node2"]'
        raise SpecError(f"{places.make_label('HOSTS')}={format_value(value)}: expected {meant}")
    for host, place in zip(value, places.find_elements("HOSTS", len(value)), strict=True):
        if not isinstance(host, str):
            raise SpecError(f"{place}: HOSTS has {format_value(host)}, which is not text")
        yield Value(host, place)


def _find_meant(key: str) -> str:
    """Return the known name that a name without PADDLE_ nearly is; "" for any other, such as a variable's."""
    if key in KEYS or key.startswith("PADDLE_") or not (key.isupper() or key.upper() in KEYS):
        return ""
    return contract.find_near(key.upper(), [*KEYS, *VARIABLES], 0.85)


def _read_variable(key: str, value: object, places: _Places) -> Iterator[Value]:
    """Yield a name that is not ours as a variable for every process, if it is text or a number."""
    if key.startswith("PADDLE_") and key not in VARIABLES | binding.list_contract_names():
        hint = contract.suggest(key, [*KEYS, *VARIABLES], f"; known names: {', '.join(KEYS)}", NEAR)
        raise SpecError(f"{places.make_label(key)}: unknown name{hint}")
    if (text := to_plain_text(value)) is not None:
        yield Value(f"{key}={text}", places.find(key) + ":")
    elif key.startswith("PADDLE_"):
        raise SpecError(f"{places.make_label(key)}={format_value(value)}: expected text or a number")
