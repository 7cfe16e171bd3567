"""Write the tables of docs/ anew from the code: `make docs`."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pslaunch import api, cli, errors
from pslaunch.backends import registry
from pslaunch.backends.fabric.conf_py import KEYS
from pslaunch.options.foreign import FOREIGN
from pslaunch.runtime.engine.kernel_numbers import KERNELS
from pslaunch.runtime.pserver import pserver_options
from pslaunch.runtime.shared import env

ROOT: Final = Path(__file__).parents[1]
NAMES: Final = "api architecture from_others modules optimizers options"
PAGES: Final = tuple(ROOT / "docs" / f"{name}.md" for name in NAMES.split())
COMMANDS: Final[Mapping[str, Any]] = {name: cli.app.get_command(name) for name in cli.app.list_commands()}
NONE: Final = "\N{EN DASH}"
# Tables of options that several commands share, with these commands; the wider ones first.
SHARED: Final = {
    "every job": registry.OWN,
    "jobs on other machines": tuple(
        name for name in registry.OWN if "agent_python" in registry.get_options(name)
    ),
    "jobs on hosts": tuple(name for name in registry.OWN if "root_dir" in registry.get_options(name)),
    "later shells": ("jobs", "status", "top", "logs", "report", "stop", "delete", "fetch"),
}
Row = tuple[str, str, str, str]  # of an option: name, metavar, default, meaning
# The names that PaddlePaddle's cluster scripts and other tools have for our options.
ANCESTORS: Final = {
    "server_num": "Fleet `--server_num`",
    "worker_num": "Fleet `--worker_num`, later `--trainer_num`",
    "server": "v2 is `bundled`, Fleet is `script`",
    "job_workspace": "`paddle.py --job_workspace`",
    "job_dispatch_package": "`paddle.py --job_dispatch_package`",
    "job_name": "conf.py `JOB_NAME`, Kubernetes `JOB_NAME`",
    "trainer_count": "v2 `--trainer_count`",
    "use_gpu": "v2 `--use_gpu`, conf.py `PADDLE_USE_GPU`",
    "gpus": "Fleet `--gpus`, later `--devices`",
    "pslaunch slurm gpus": "salloc `--gpus-per-node`",
    "pslaunch k8s gpus": "`nvidia.com/gpu` in a pod's limits",
    "bind_cores": "DeepSpeed `--bind_cores_to_rank`",
    "port": "v2 `--port`, conf.py `PADDLE_PORT`, Kubernetes `CONF_PADDLE_PORT`",
    "ports_num": "v2 `--ports_num`, conf.py `PADDLE_PORTS_NUM`, Kubernetes `CONF_PADDLE_PORTS_NUM`",
    "ports_num_for_sparse": "v2 `--ports_num_for_sparse`, conf.py `PADDLE_PORTS_NUM_FOR_SPARSE`, "
    "Kubernetes `CONF_PADDLE_PORTS_NUM_SPARSE`",
    "num_gradient_servers": "v2 `--num_gradient_servers`, Kubernetes `CONF_PADDLE_GRADIENT_NUM`",
    "env": "conf.py's upper-case names, as `LD_LIBRARY_PATH`",
    "log_dir": "Fleet `--log_dir`",
    "conf": "`paddle.py` reads `conf.py`",
    "detach": "`nohup … &`",
    "hosts": "conf.py `HOSTS`",
    "include": "DeepSpeed `--include`",
    "exclude": "DeepSpeed `--exclude`",
    **{
        name: f"mpirun `--{name.replace('_', '-')}`"
        for name in (
            "hostfile",
            "host",
            "prefix",
            "mca",
            "prtemca",
            "map_by",
            "rank_by",
            "bind_to",
            "oversubscribe",
            "allow_run_as_root",
        )
    },
    "pslaunch mpi worker_num": "mpirun `-n`, conf.py's hosts in `machines`",
    "pslaunch mpi env": "mpirun `-x`",
    "root_dir": "conf.py `ROOT_DIR`",
    "shard": "`scp train.txt-00001 [node2IP]:…`",
    "nics": "v2 `--nics`, conf.py `PADDLE_NIC`, Kubernetes `CONF_PADDLE_NIC`",
    "connect_timeout": "ssh `ConnectTimeout`",
    "host_key_policy": "ssh `StrictHostKeyChecking`",
    "follow": "`tail -f`, `kubectl logs -f`",
    "kill": "Ctrl+C in `paddle.py`",
    # Other things of the same name.
    "pslaunch pserver log_dir": "glog `--log_dir`",
    "pslaunch pserver save_dir": NONE,
}


def _find_ancestor(table: str, name: str) -> str:
    return ANCESTORS.get(f"{table} {name}") or ANCESTORS.get(name, NONE)


def _list_aliases(names: Sequence[str]) -> str:
    """Return the other names of an option, for the beginning of its meaning."""
    return "".join(f"`{alias}`; " for alias in names[1:])


def list_options(command: str) -> list[Row]:
    """Return name, metavar, default and meaning of every option of a command."""
    if command == "pserver":
        actions = [a for a in pserver_options._make_parser({})._actions if a.dest != "help"]
        found = [(a.dest, str(a.metavar), a.help or "") for a in actions]
    else:
        rows = [o for o in getattr(COMMANDS[command], "options", {}).values() if o.name != "help"]
        rows = [*registry.get_options(command).values()] if command in registry.OWN else rows
        found = [(o.name, o.metavar if o.kind.values else "", _list_aliases(o.names) + o.text) for o in rows]
    parts = [
        (name, metavar, *text.removesuffix("]").partition(" [default: ")) for name, metavar, text in found
    ]
    return [(name, metavar, default, meaning) for name, metavar, meaning, _, default in parts]


def share_options(table: str) -> dict[str, Row]:
    """Return the options that all commands of a shared table have, most of them in the same words."""
    commands = SHARED[table]
    rows = [{row[0]: row for row in list_options(command)} for command in commands]
    most = {
        name: Counter(found[name] for found in rows if name in found).most_common(1)[0] for name in rows[0]
    }
    return {
        name: row for name, (row, n) in most.items() if 2 * n > len(rows) and all(name in r for r in rows)
    }


def list_own_options(command: str) -> list[Row]:
    """Return the options of a command that no shared table has in the same words."""
    shared = {
        row
        for table, commands in SHARED.items()
        if command in commands
        for row in share_options(table).values()
    }
    return [row for row in list_options(command) if row not in shared]


def _list_table(table: str) -> list[Row]:
    if table not in SHARED:
        return list_own_options(table.removeprefix("pslaunch "))
    wider = [other for other in SHARED if {*SHARED[table]} < {*SHARED[other]}]
    known = {row for other in wider for row in share_options(other).values()}
    return [row for row in share_options(table).values() if row not in known]


def _show_default(value: object) -> str:
    return "" if value in (None, "") else f"`{value}`"


def _make_rows(table: str) -> list[Sequence[str]]:
    """Return the rows of a table, its head first."""
    if table == "conf.py":
        help_of = {name: option.help for name, option in registry.get_options("fabric").items()}
        said = [(f"`{key}`", f"`--{name}`", help_of[name]) for key, name in KEYS.items()]
        return [("name", "option", "meaning"), *said]
    if table in FOREIGN:
        found = [
            (
                ", ".join(f"`{'-' if len(n) == 1 else '--'}{n}`" for n in names.split()),
                "; else ".join(re.sub(r"(--\w+(?: [A-Z]+\b[=@A-Z]*)?)", r"`\1`", way) for way in ways),
            )
            for names, ways in FOREIGN[table].items()
        ]
        return [("option there", "here"), *found]
    if table == "init()":
        return [
            ("argument", "variable", "default", "meaning"),
            *(
                (f"`{name}`", f"`{env.get_init_var(name)}`", _show_default(arg.default), arg.meaning)
                for name, arg in env.INIT_ARGS.items()
            ),
        ]
    options = [
        (f"`--{name}{f' {metavar}' if metavar else ''}`", default, meaning, _find_ancestor(table, name))
        for name, metavar, default, meaning in _list_table(table)
    ]
    return [("option", "default", "meaning", "ancestor"), *options]


def _read_summary(path: Path) -> str:
    """Return the first line of a module's docstring, or the first sentence of a C file's comment."""
    text = path.read_text()
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    found = re.match(r"/\*(.*?)\*/", text, re.DOTALL)
    words = " ".join(re.sub(r"\n \*", " ", found[1]).split()) if found else ""
    return re.split(r"[.;] ", words, maxsplit=1)[0].rstrip(".") + "."


def list_rooms() -> Iterator[tuple[Path, str]]:
    """Yield each folder of modules with the task of its package."""
    for top in ("launcher", "runtime"):
        for init in sorted((ROOT / top).rglob("__init__.py")):
            yield init.parent, _read_summary(init)


def list_modules(folder: Path) -> list[tuple[str, str]]:
    """Return name and task of each module of a folder, of the C core by its header if it has one."""
    if folder.parent.name != "csrc":
        return [(p.name, _read_summary(p)) for p in sorted(folder.glob("*.py")) if p.stem != "__init__"]
    files = [(path, path.with_suffix(".h")) for path in sorted(folder.glob("*.c"))]
    return [(path.stem, _read_summary(header if header.exists() else path)) for path, header in files]


def _make_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def _make_rooms() -> str:
    rows = [(f"`{folder.relative_to(ROOT)}/`", task) for folder, task in list_rooms()]
    return _make_table(("folder", "task"), rows)


def _make_modules(top: str) -> str:
    if top == "runtime/csrc":
        folders = sorted(path for path in (ROOT / top).iterdir() if path.is_dir())
    else:
        folders = [folder for folder, _ in list_rooms() if folder.relative_to(ROOT).parts[0] == top]
    parts = []
    for folder in folders:
        rows = [(f"`{module}`", task) for module, task in list_modules(folder)]
        heading = f"### {folder.relative_to(ROOT)}/\n\n"
        parts += [heading + _make_table(("module", "task"), rows)] if rows else []
    return "\n" + "\n\n".join(parts) + "\n"


def _make_methods() -> str:
    """Return the table of optimizers in the C core."""
    rows = []
    for name, kernel in KERNELS.items():
        numbers = ", ".join(f"`{own}` ({usual:g})" for own, usual in kernel.numbers.items())
        state = "1 for each row; tables alone" if kernel.by_row else str(kernel.slots)
        state += "; dense parameters alone, each on one port" if kernel.whole else ""
        rows.append((str(kernel.number), f"`{name}`", state, numbers or NONE))
    return _make_table(("number", "method", "state", "numbers, with the usual values"), rows)


def _make_reference() -> str:
    """Return the signatures and docstrings of the Python API."""
    public = [(f"Job.{name}", f) for name, f in vars(api.Job).items() if not name.startswith("_")]
    whole = [("pslaunch.launch", api.launch), ("pslaunch.Job", api.Job), *public]
    parts = []
    for name, item in (*whole, ("pslaunch.JobError", errors.JobError)):
        said = "" if inspect.isclass(item) else re.sub(r"\(self(, )?", "(", str(inspect.signature(item)))
        said = re.sub(r"(: |-> )'([^']*)'", r"\1\2", said)  # annotations are texts
        wait = "await " if inspect.iscoroutinefunction(item) else ""
        parts.append(f"### {name}\n\n```\n{wait}{name}{said}\n```\n\n{inspect.getdoc(item)}")
    return "\n" + "\n\n".join(parts) + "\n"


def render(page: str) -> str:
    """Return the page with the text between each pair of markers as the code has it."""

    def make(found: re.Match[str]) -> str:
        kind, _, name = found[2].partition(": ")
        if kind == "table":
            head, *rows = _make_rows(name)
            text = _make_table(head, rows)
        elif kind == "modules":
            text = _make_modules(name)
        else:
            make_own = {"rooms": _make_rooms, "api": _make_reference, "methods": _make_methods}
            text = make_own[kind]()
        return f"{found[1]}\n{text}\n{found[3]}"

    return re.sub(
        r"(<!-- ((?:table|modules): .+?|rooms|api|methods) -->)\n.*?(<!-- end -->)",
        make,
        page,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(render(path.read_text()))
