"""What a program's text says: its pservers, its syntax, its imports. Reads files, runs nothing.

A program that reads its role (`is_server`, `run_server`, `TRAINING_ROLE`) is started in both roles, as
with Fleet: "script". One that imports the runtime or PaddlePaddle is a trainer with pservers beside it, as in
v2: "bundled". All others have none, unless a number of pservers is given.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

from ..errors import SpecError

ServerMode = Literal["auto", "bundled", "script"]
ServerKind = Literal["bundled", "script", "none"]

ROLE_NAMES: Final = frozenset({"is_server", "run_server"})
ROLE_VARIABLE: Final = "TRAINING_ROLE"
# Modules whose programs need pservers.
RUNTIME: Final = re.compile(r"(paddle|pslaunch\.(runtime|torch))(\.|$)")
MAX_FILES: Final = 500  # read of a workspace
MAX_BYTES: Final = 4_000_000  # of one file
UNREADABLE: Final = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)
GUARDS: Final = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})


def choose_server(
    server: ServerMode, server_num: int | None, workspace: Path, program: str
) -> tuple[ServerKind, str]:
    """Return the kind of pservers and the reason for the user. `program`: as in JobSpec.

    With "auto" by the role words and imports of it and of modules of the workspace that it imports. Files
    that can't be read are in the reason.
    """
    if server_num == 0:
        return "none", "as given (--server_num 0)"
    if server != "auto":
        return server, f"given (--server {server})"
    start, unread = workspace / program, list[str]()
    if start.suffix != ".py":
        if server_num is None:
            return "none", f"{start.name} is no Python program of the workspace; --server_num N starts N"
        return "bundled", f"{start.name} is not a Python program, so it was not read; --server changes this"
    served = server_num is not None
    for path, module in _walk(start, workspace, unread):
        if asked := _find_role_word(module):
            name, line = asked
            return "script", f"{_shorten(path, workspace)}:{line} asks for its role ({name})"
        served = served or any(map(RUNTIME.match, _list_imports(module)))
    if not served and not unread:
        lacks = f"{start.name} imports neither pslaunch.runtime, pslaunch.torch nor paddle"
        return "none", f"{lacks}; --server_num N starts N"
    blind = f", but {', '.join(unread)} can't be read; --server changes this" if unread else ""
    return (
        "bundled",
        f"{start.name} does not ask for its role (is_server, run_server, TRAINING_ROLE){blind}",
    )


def has_import(workspace: Path, program: str, module: str) -> bool:
    """Return True if a program, or a module of the workspace that it imports, imports such a module."""
    start = workspace / program
    walked = _walk(start, workspace, []) if start.suffix == ".py" else ()
    return any(name.partition(".")[0] == module for _, tree in walked for name in _list_imports(tree))


def _list_imports(tree: ast.AST) -> Iterator[str]:
    """Yield the whole names of imported modules, guarded or not; a name taken from a module may be one."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name
            case _:
                pass


def _parse(path: Path) -> ast.Module:
    state = path.stat()
    return _parse_once(path, state.st_mtime_ns, state.st_size, state.st_ino)


@functools.lru_cache(MAX_FILES)
def _parse_once(path: Path, *_version: int) -> ast.Module:
    with path.open("rb") as f:
        source = f.read(MAX_BYTES + 1)
    if len(source) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES // 1_000_000} MB")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as "\d"
        return ast.parse(source, str(path))


def check_syntax(program: Path, python: str | None, *, is_remote: bool) -> None:
    """Raise SpecError if a Python program has a syntax error. A program that can't be read here passes.

    python: that runs it; None for one like ours. Another one of this machine is asked, and on other machines
    it is the user's choice.
    """
    if program.suffix != ".py":
        return
    try:
        _parse(program)
    except SyntaxError as e:
        version, other = ".".join(map(str, sys.version_info[:2])), ""
        if python and python != sys.executable:
            if is_remote or _can_parse(python, program):
                return
            other = f", nor of {python}"
        raise SpecError(
            f"{program.name} is not a program of Python {version}{other}: {_describe(e)}"
        ) from None
    except UNREADABLE:
        pass


def check_needs(workspace: Path, program: str) -> None:
    """Raise SpecError for a missing file that the program names: `# pslaunch: needs FILE: REMEDY`."""
    with contextlib.suppress(OSError):
        text = (workspace / program).read_text(errors="replace")
        for name, remedy in re.findall(r"(?m)^# pslaunch: needs (\S+): (.+)$", text):
            if not (workspace / name).exists():
                said = remedy.replace("{folder}", str(workspace))
                raise SpecError(f"{program} needs {name}, which is not in {workspace}: {said}")


def _can_parse(python: str, program: Path) -> bool:
    import subprocess  # rarely needed

    words = "import ast, sys; ast.parse(open(sys.argv[1], 'rb').read())"
    asked = [python, "-W", "ignore", "-c", words, str(program)]
    return subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def _describe(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}" if error.lineno else str(error.msg)
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error) or type(error).__name__


def _shorten(path: Path, workspace: Path) -> str:
    return str(path.relative_to(workspace)) if path.is_relative_to(workspace) else str(path)


def _find_role_word(tree: ast.Module) -> tuple[str, int] | None:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in ROLE_NAMES:
                return name, node.lineno
            case ast.Constant(value=str(name)) if name == ROLE_VARIABLE:
                return name, node.lineno
            case _:
                pass
    return None


def _walk(program: Path, workspace: Path, unread: list[str]) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the program, then the workspace's modules that it imports, breadth first."""
    roots = list(dict.fromkeys((program.parent, workspace)))
    found = [program]
    for path in found:  # which grows
        try:
            module = _parse(path)
        except UNREADABLE as e:
            unread.append(f"{_shorten(path, workspace)} ({_describe(e)})")
            continue
        yield path, module
        for imported in _find_imported(path, module, roots):
            if imported not in found and len(found) < MAX_FILES:
                found.append(imported)


def _find_imported(path: Path, tree: ast.Module, roots: list[Path]) -> Iterator[Path]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _find_files(roots, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            bases = [*path.parents][node.level - 1 : node.level] if node.level else roots
            parts = node.module.split(".") if node.module else []
            for alias in node.names:
                yield from _find_files(bases, [*parts, alias.name])


def _find_files(bases: list[Path], parts: list[str]) -> Iterator[Path]:
    """Yield the files loaded by importing `parts`: the `__init__.py` of each package, then the module."""
    for base in bases:
        for n in range(1, len(parts) + 1):
            place = base.joinpath(*parts[:n])
            for candidate in (place / "__init__.py", place.with_name(f"{place.name}.py")):
                if candidate.is_file():
                    yield candidate


# --- GPUs. ---

GPU_WORDS: Final = frozenset({"torch", "tensorflow", "jax", "use_gpu"})
# Of programs that take one of all GPUs of the node by their place there.
PLACE_WORDS: Final = frozenset(
    {"LOCAL_RANK", "local_rank", "set_device", "set_visible_devices"}
    | {"deepspeed", "accelerate", "lightning", "pytorch_lightning", "transformers"}
)


def find_gpu_use(program: Path, workspace: Path) -> Literal["", "sees", "chooses"]:
    """Return how a program uses GPUs by its text: those that it sees, or one by its place on the node."""
    found: set[str] = set()
    for _, module in _walk(program, workspace, []) if program.suffix == ".py" else ():
        found.update(name.partition(".")[0] for name in _list_imports(module))
        for node in ast.walk(module):
            match node:
                case ast.keyword(arg="use_gpu", value=ast.Constant(value=False)):
                    pass
                case ast.keyword(arg=str(word)) | ast.Attribute(attr=word) | ast.Constant(value=str(word)):
                    found.add(word.lstrip("-").replace("-", "_"))
                case _:
                    pass
    return "" if not found & GPU_WORDS else "chooses" if found & PLACE_WORDS else "sees"


# --- Imports. ---


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
    for path, module in _walk(program, workspace, []):
        for name, line, now in _walk_imports(module.body, now=True):
            if name not in sys.stdlib_module_names and not _is_here(name, program.parent, workspace):
                place = f"{_shorten(path, workspace)}:{line}"
                (found.needed if now else found.later).setdefault(name, place)
    for name in found.needed:
        found.later.pop(name, None)
    return found


def _is_here(name: str, *folders: Path) -> bool:
    return any((folder / f"{name}.py").is_file() or (folder / name).is_dir() for folder in folders)


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
