"""Write the tables of docs/options.md anew from the code: `make docs`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import typer

from pslaunch import cli
from pslaunch.options.conf_py import KEYS
from pslaunch.options.options import get_options
from pslaunch.options.typer_glue import JobCommand, make_options
from pslaunch.runtime.pserver import pserver_options
from pslaunch.runtime.shared import env

PAGE: Final = Path(__file__).parent / "options.md"
COMMANDS: Final[dict[str, Any]] = vars(typer.main.get_command(cli.app))["commands"]
NONE: Final = "\N{EN DASH}"
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
    "init() log_dir": "glog `--log_dir`",
    "init() connect_timeout": NONE,
    **{name: f"v2 `{name}`" for name in ("trainer_id", "pservers", "seed")},
    **{name: f"v2 trainer `--{name}`" for name in env.TRAINER_FLAGS if name != "no_save"},
}


def _find_ancestor(table: str, name: str) -> str:
    return ANCESTORS.get(f"{table} {name}") or ANCESTORS.get(name, NONE)


def _list_aliases(names: Sequence[str]) -> str:
    """Return the other names of an option, for the beginning of its meaning."""
    return "".join(f"`{alias}`; " for alias in names[1:])


def list_options(command: str) -> list[tuple[str, str, str, str]]:
    """Return name, metavar, default and meaning of every option of a command."""
    if command == "pserver":
        actions = [a for a in pserver_options._make_parser({})._actions if a.dest != "help"]
        found = [(a.dest, str(a.metavar), a.help or "") for a in actions]
    else:
        one = getattr(COMMANDS[command], "commands", {}).get("render", COMMANDS[command])
        params = make_options(one.backend) if isinstance(one, JobCommand) else one.params
        options = [p for p in params if p.param_type_name == "option"]
        found = [
            (p.opts[0][2:], "" if p.is_flag else p.metavar, _list_aliases(p.opts) + p.help) for p in options
        ]
    parts = [
        (name, metavar, *text.removesuffix("]").partition(" [default: ")) for name, metavar, text in found
    ]
    return [(name, metavar, default, meaning) for name, metavar, meaning, _, default in parts]


def _make_rows(table: str) -> list[Sequence[str]]:
    """Return the rows of a table, its head first."""
    if table == "conf.py":
        help_of = {name: option.help for name, option in get_options("fabric").items()}
        said = [(f"`{key}`", f"`--{name}`", help_of[name]) for key, name in KEYS.items()]
        return [("name", "option", "meaning"), *said]
    if table == "init()":
        args = [
            (
                f"`{name}`",
                f"`{env.get_init_var(name)}`",
                arg.default,
                arg.meaning,
                _find_ancestor(table, name),
            )
            for name, arg in env.INIT_ARGS.items()
        ]
        shown = [(n, var, "" if d in (None, "") else f"`{d}`", *rest) for n, var, d, *rest in args]
        return [("argument", "variable", "default", "meaning", "ancestor"), *shown]
    options = [
        (f"`--{name}{f' {metavar}' if metavar else ''}`", default, meaning, _find_ancestor(table, name))
        for name, metavar, default, meaning in list_options(table.removeprefix("pslaunch "))
    ]
    return [("option", "default", "meaning", "ancestor"), *options]


def render(page: str) -> str:
    """Return the page with the table between each pair of markers as the code has it."""

    def make_table(found: re.Match[str]) -> str:
        head, *rows = _make_rows(found[2])
        lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
        return "\n".join([found[1], lines[0], "|" + "---|" * len(head), *lines[1:], found[3]])

    return re.sub(r"(<!-- table: (.+?) -->)\n.*?(<!-- end -->)", make_table, page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
