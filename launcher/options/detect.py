"""What a program's text says: its pservers, its syntax, its imports. Reads files, runs nothing.

A program that reads its role (`is_server`, `run_server`, `TRAINING_ROLE`) is started in both roles, as
with Fleet: "script". One that imports the runtime, its tables for PyTorch, or PaddlePaddle is a trainer with
pservers beside it, as in v2: "bundled". All others have none, unless a number of pservers is given.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

from ..errors import SpecError
from ..node.dispatch.data_shards import DataShards
from ..node.job import Package

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
        if module.role:
            line, name = module.role
            return "script", f"{_shorten(path, workspace)}:{line} asks for its role ({name})"
        served = served or any(RUNTIME.match(one.name) for one in module.imports)
    if not served and not unread:
        lacks = f"{start.name} imports neither pslaunch.runtime nor paddle"
        return "none", f"{lacks}; --server_num N starts N"
    blind = f", but {', '.join(unread)} can't be read; --server changes this" if unread else ""
    asks = "does not ask for its role (is_server, run_server, TRAINING_ROLE)"
    return "bundled", f"{start.name} {asks}{blind}"


def has_import(workspace: Path, program: str, module: str) -> bool:
    """Return True if a program, or a module of the workspace that it imports, imports such a module."""
    walked = _walk(workspace / program, workspace, [])
    return any(one.name.partition(".")[0] == module for _, summary in walked for one in summary.imports)


def check_syntax(program: Path, python: str | None, *, is_remote: bool) -> None:
    """Raise SpecError if a Python program has a syntax error. A program that can't be read here passes.

    python: that runs it; None for one like ours. Another one of this machine is asked, and on other machines
    it is the user's choice.
    """
    try:
        _read(program)
    except SyntaxError as e:
        version, other = ".".join(map(str, sys.version_info[:2])), ""
        if python and python != sys.executable:
            if is_remote or _can_parse(python, program):
                return
            other = f", nor of {python}"
        said = f"{program.name} is not a program of Python {version}{other}: {_describe(e)}"
        raise SpecError(said) from None
    except UNREADABLE:
        pass


def check_needs(workspace: Path, program: str, package: Package | None = None) -> None:
    """Raise SpecError for a missing file that a Python program names: `# pslaunch: needs FILE: REMEDY`.

    Files of the package's links and data shards are not asked for: they may be only on the hosts.
    """
    links, shards = package.links if package else (), DataShards(package.data_shards if package else ())
    with contextlib.suppress(*UNREADABLE):
        for name, remedy in _read(workspace / program).needs:
            there = any(map(Path(name).is_relative_to, links)) or shards.find_number(name) is not None
            if not there and not (workspace / name).exists():
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
    return getattr(error, "strerror", "") or str(error) or type(error).__name__


def _shorten(path: Path, workspace: Path) -> str:
    return str(path.relative_to(workspace)) if path.is_relative_to(workspace) else str(path)


def find_gpu_use(program: Path, workspace: Path) -> Literal["", "sees", "chooses"]:
    """Return how a program uses GPUs by its text: those that it sees, or one by its place on the node."""
    found = {word for _, module in _walk(program, workspace, []) for word in module.words}
    return "" if not found & GPU_WORDS else "chooses" if found & PLACE_WORDS else "sees"


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
    for path, module in _walk(program, workspace, []):
        for line, whole, when in module.imports:
            name, kind = whole.partition(".")[0], found.needed if when == "at once" else found.later
            known = when == "perhaps" or not name or name in sys.stdlib_module_names
            if not known and not _is_here(name, program.parent, workspace):
                kind.setdefault(name, f"{_shorten(path, workspace)}:{line}")
    for name in found.needed:
        found.later.pop(name, None)
    return found


def _is_here(name: str, *folders: Path) -> bool:
    return any((folder / f"{name}.py").is_file() or (folder / name).is_dir() for folder in folders)


# --- Files, each read once. ---

GPU_WORDS: Final = frozenset({"torch", "tensorflow", "jax", "use_gpu"})
# Of programs that take one of all GPUs of the node by their place there.
PLACE_WORDS: Final = frozenset(
    {"LOCAL_RANK", "local_rank", "set_device", "set_visible_devices"}
    | {"deepspeed", "accelerate", "lightning", "pytorch_lightning", "transformers"}
)
NEEDS: Final = re.compile(r"(?m)^# pslaunch: needs (\S+): (.+?)\r?$")
When = Literal["at once", "later", "perhaps"]  # in a function: later; guarded, or by a call: perhaps


class Import(NamedTuple):
    """The import of a module, or of a name that may be one."""

    line: int
    name: str  # whole, with leading dots if it is relative
    when: When


class Summary(NamedTuple):
    """What the text of one module says."""

    imports: list[Import]
    role: tuple[int, str] | None  # the first word that asks for the role, after its line
    words: set[str]  # of GPUs and places
    needs: list[tuple[str, str]]  # files with their remedies


def _read(path: Path) -> Summary:
    if path.suffix != ".py":
        raise ValueError("no Python program")
    state = path.stat()
    return _read_once(path, state.st_mtime_ns, state.st_size, state.st_ino)


@functools.lru_cache(MAX_FILES)
def _read_once(path: Path, *_version: int) -> Summary:
    with path.open("rb") as f:
        source = f.read(MAX_BYTES + 1)
    if len(source) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES // 1_000_000} MB")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as "\d"
        tree = ast.parse(source, str(path))
    text = source.decode("utf-8", "replace") if b"# pslaunch: needs" in source else ""
    return _summarize(tree)._replace(needs=NEEDS.findall(text))


def _summarize(tree: ast.Module) -> Summary:
    imports, roles, words = list[Import](), list[tuple[int, str]](), set[str]()
    todo: list[tuple[ast.AST, When]] = [(tree, "at once")]
    while todo:
        node, when = todo.pop()
        match node:
            case ast.Import(names=names):
                imports += [Import(node.lineno, alias.name, when) for alias in names]
            case ast.ImportFrom(names=names):
                base = "." * node.level + (f"{node.module}." if node.module else "")
                imports += [Import(node.lineno, base + alias.name, when) for alias in names]
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                imports.append(Import(node.lineno, name, "perhaps"))
            case ast.Attribute(attr=word) | ast.Name(id=word) if word in ROLE_NAMES:
                roles.append((node.lineno, word))
            case ast.Constant(value=str(word)) if word == ROLE_VARIABLE:
                roles.append((node.lineno, word))
            case ast.keyword(arg="use_gpu", value=ast.Constant(value=False)):
                pass
            case ast.keyword(arg=str(word)) | ast.Attribute(attr=word) | ast.Constant(value=str(word)):
                words.add(word.lstrip("-").replace("-", "_"))
            case _:
                pass
        todo += _list_parts(node, when)
    words.update(one.name.partition(".")[0] for one in imports)
    return Summary(sorted(imports), min(roles, default=None), words & (GPU_WORDS | PLACE_WORDS), [])


def _list_parts(node: ast.AST, when: When) -> Iterator[tuple[ast.AST, When]]:
    """Yield the parts of a node, and when the module's own import runs their imports."""
    sure: list[ast.stmt] | None = None
    match node:
        case ast.Try(handlers=handlers) if any(map(_is_guard, handlers)):
            sure = node.finalbody
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            sure = node.orelse
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() if when == "at once":
            when = "later"
        case _:
            pass
    for part in ast.iter_child_nodes(node):
        yield part, when if sure is None or part in sure else "perhaps"


def _is_guard(handler: ast.ExceptHandler) -> bool:
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(t is None or (isinstance(t, ast.Name) and t.id in GUARDS) for t in types)


def _walk(program: Path, workspace: Path, unread: list[str]) -> Iterator[tuple[Path, Summary]]:
    """Yield the program, then the workspace's modules that it imports, breadth first."""
    roots = (program.parent, workspace) if program.parent != workspace else (workspace,)
    found, asked, queue = {program}, set[tuple[Path, str]](), [program]
    for path in queue:  # which grows
        try:
            module = _read(path)
        except UNREADABLE as e:
            unread.append(f"{_shorten(path, workspace)} ({_describe(e)})")
            continue
        yield path, module
        for one in module.imports:
            name = one.name.lstrip(".")
            level = len(one.name) - len(name)
            for base in [*path.parents][level - 1 : level] if level else roots:
                if (base, name) not in asked:
                    asked.add((base, name))
                    fresh = [file for file in _find_files(base, name) if file not in found]
                    found.update(fresh)
                    queue += fresh[: MAX_FILES - len(queue)]


def _find_files(base: Path, name: str) -> Iterator[Path]:
    """Yield the files loaded by importing a name: the `__init__.py` of each package, then the module."""
    place = str(base)
    for part in name.split("."):
        place = f"{place}/{part}"
        yield from map(Path, filter(os.path.isfile, (f"{place}/__init__.py", f"{place}.py")))
        if not os.path.isdir(place):  # noqa: PTH112 # Path's raises
            return
