"""Third-party modules that a program imports. Reads files, runs nothing."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from .detect import UNREADABLE, parse, walk

GUARDS: Final = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})


class Imported(NamedTuple):
    """Modules by name with the place of the first import, as "train.py:3"."""

    needed: dict[str, str]  # at the start
    later: dict[str, str]  # in a function, perhaps never called


def find_imports(program: Path, workspace: Path) -> Imported:
    """Return the third-party modules of `program` and of the modules of `workspace` that it imports.

    Packages by their first name; imports guarded by `except ImportError` are left out. An unreadable
    program, or one not in Python, gives nothing.
    """
    found = Imported({}, {})
    if program.suffix != ".py":
        return found
    roots = {program.parent, workspace}
    try:
        tree = parse(program)
    except UNREADABLE:
        return found
    for path, module in walk(program, tree, workspace, []):
        shown = path.relative_to(workspace) if path.is_relative_to(workspace) else path
        for name, line, now in _walk_imports(module.body, now=True):
            if name not in sys.stdlib_module_names and not any(_has(root, name) for root in roots):
                (found.needed if now else found.later).setdefault(name, f"{shown}:{line}")
    for name in found.needed:
        found.later.pop(name, None)
    return found


def _has(root: Path, name: str) -> bool:
    return (root / f"{name}.py").is_file() or (root / name).is_dir()


def _walk_imports(body: Iterable[ast.AST], *, now: bool) -> Iterator[tuple[str, int, bool]]:
    """Yield first name, line, and True if the module's own import runs it."""
    for node in body:
        match node:
            case ast.Import(names=names):
                yield from ((alias.name.partition(".")[0], node.lineno, now) for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0], node.lineno, now
            case ast.Try(handlers=handlers) if any(map(_is_guard, handlers)):
                yield from _walk_imports(node.finalbody, now=now)
            case ast.If(test=test) if ast.unparse(test).endswith("TYPE_CHECKING"):
                yield from _walk_imports(node.orelse, now=now)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                yield from _walk_imports(ast.iter_child_nodes(node), now=False)
            case _:
                yield from _walk_imports(ast.iter_child_nodes(node), now=now)


def _is_guard(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(t, ast.Name) and t.id in GUARDS for t in types)
