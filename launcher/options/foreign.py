"""Options of other launchers, with what to give in their place: for messages, and docs/from_others.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

# Alternatives: a message has the first of which the command has all options.
_TRAINERS: Final = ("--worker_num N, the number of all trainers",)
_SERVERS: Final = ("--server_num N, the number of all pservers",)
_NODES: Final = ("--nodes N", "--hosts LIST", "--hostfile FILE")
_HOSTS: Final = ("--hosts LIST", "--host LIST")
_HOSTFILE: Final = ("--hostfile FILE", *_HOSTS)
_GPUS: Final = ("--gpus N of each node, and --worker_num N, one trainer for each GPU",)
_CORES: Final = ("--cpu N", "--trainer_count N, the threads of each trainer")
_MEMORY: Final = ("--memory QUANTITY", "leave it out, no memory is set aside")
_FOUND: Final = ("leave it out, pslaunch finds addresses, ports and ranks itself",)
_AGAIN: Final = ("--max_restarts N, counted for the whole job",)
_FIXED: Final = ("leave it out, a job keeps its nodes and processes until its end",)
_LOGS: Final = (
    "--log_dir DIR, where each process has a file",
    "leave it out, each process has a log in log/",
)
_START: Final = ("--wait_timeout SECONDS", "--connect_timeout SECONDS", "leave it out, a start has no limit")
_FOLDER: Final = ("--job_dispatch_package DIR, or --job_workspace DIR",)
_PROGRAM: Final = ("give the program after the options: a file, -m MODULE, or a command",)
_SSH: Final = ("write it into ~/.ssh/config, as for ssh",)
_BACKEND: Final = ("choose the command: pslaunch local, fabric, mpi, slurm or k8s",)
_NAME: Final = ("--job_name NAME",)
_VARIABLE: Final = ("--env NAME=VALUE",)
_USER: Final = ("--hosts USER@HOST", "--host USER@HOST", "leave it out, programs run as you")

# By launcher: its options, those of one meaning in one key, with underscores and without their first dashes.
FOREIGN: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "torchrun": {
        "nproc_per_node": _TRAINERS, "nnodes": _NODES, "max_restarts": _AGAIN,
        "monitor_interval": ("leave it out, the end of a process is noticed at once",),
        "rdzv_backend rdzv_endpoint rdzv_id rdzv_conf standalone local_addr": _FOUND,
        "node_rank master_addr master_port": _FOUND, "redirects r tee t local_ranks_filter": _LOGS,
        "module no_python run_path": _PROGRAM},
    "torchx": {
        "j": ("--nodes N --worker_num N", "--hosts LIST --worker_num N", *_TRAINERS),
        "max_retries": _AGAIN, "rdzv_port": _FOUND, "script": _PROGRAM, "memMB": _MEMORY,
        "scheduler scheduler_args cfg": _BACKEND, "dryrun": ("--dry_run",)},
    "deepspeed": {
        "num_nodes": _NODES, "num_gpus num_accelerators": _GPUS, "H": _HOSTFILE,
        "i": ("--include LIST",), "e": ("--exclude LIST",), "ssh_port no_ssh no_ssh_check force_multi": _SSH,
        "node_rank master_addr master_port": _FOUND, "module no_python no_local_rank": _PROGRAM,
        "launcher launcher_args": _BACKEND, "enable_each_rank_log": _LOGS,
        "elastic_training min_elastic_nodes max_elastic_nodes": _FIXED},
    "horovodrun": {
        "num_proc np slots slots_per_host": _TRAINERS, "H": _HOSTS, "output_filename": _LOGS,
        "ssh_port p ssh_identity_file i": _SSH, "reset_limit": _AGAIN, "elastic_timeout": _FIXED,
        "network_interface network_interfaces": ("--nics NAME", *_FOUND), "start_timeout": _START,
        "min_np max_np min_num_proc max_num_proc host_discovery_script": _FIXED, "gloo mpi jsrun": _BACKEND},
    "mpirun": {
        "np n c npernode N ppn": _TRAINERS, "H host": _HOSTS, "x": _VARIABLE, "wdir wd": _FOLDER},
    "paddle.distributed.launch, fleetrun": {
        "nproc_per_node np trainer_num workers trainers": _TRAINERS, "servers": _SERVERS, "nnodes": _NODES,
        "ips host": _HOSTS, "devices xpus npus selected_gpus selected_xpus": _GPUS, "job_id": _NAME,
        "master rank start_port gloo_port with_gloo http_port sort_ip": _FOUND, "max_restart": _AGAIN,
        "elastic_level elastic_timeout elastic_server elastic_pre_hook scale": _FIXED,
        "heter_workers heter_worker_num heter_devices": ("leave it out, all trainers are alike",),
        "run_mode": ("--server script, which runs the program in both roles",)},
    "ray job submit": {
        "working_dir": _FOLDER, "no_wait": ("--detach",), "submission_id job_id": _NAME,
        "runtime_env runtime_env_json": ("--env NAME=VALUE --setup CMD --install", *_VARIABLE),
        "num_cpus entrypoint_num_cpus": _CORES, "num_gpus entrypoint_num_gpus": _GPUS,
        "entrypoint_memory": _MEMORY},
    "dmlc-submit": {
        "num_workers": _TRAINERS, "num_servers s": _SERVERS, "cluster": _BACKEND, "host_file": _HOSTFILE,
        "host_ip": _FOUND, "jobname": _NAME, "sync_dst_dir files archives": _FOLDER,
        "worker_cores server_cores": _CORES, "worker_memory server_memory": _MEMORY,
        "env_worker env_server": _VARIABLE, "kube_namespace": ("--namespace NAME",),
        "kube_worker_image kube_server_image": ("--image NAME",)},
    "paddle train, paddle.py, paddlecloud": {
        "num_gradient_servers trainers parallelism": _TRAINERS, "pservers": _SERVERS, "trainer_id": _FOUND,
        "user u": _USER, "jobname comment": _NAME},
    "other launchers": {
        "num_processes num_trainers nproc": _TRAINERS, "pserver_num": _SERVERS, "num_machines": _NODES},
}  # fmt: skip


def explain_foreign(
    shown: str, name: str, known: Collection[str], find_others: Callable[[str], Sequence[str]]
) -> str:
    """Return whose option it is and what to give in its place; "" for one of no other launcher.

    shown: as it was written. known: the command's options. find_others: as in split_command_line.
    """
    found: dict[str, list[str]] = {}
    for launcher, rows in FOREIGN.items():
        for ways in [ways for names, ways in rows.items() if name.replace("-", "_") in names.split()]:
            asked = [re.findall(r"--(\w+)", way) for way in ways]
            others = find_others(asked[0][0]) if asked[0] else ()
            way = f"{ways[0]} of pslaunch {' and '.join(others)}" if others else ways[0]
            way = next((w for w, options in zip(ways, asked, strict=True) if {*options} <= {*known}), way)
            found.setdefault(f"use {way}" if way.startswith("--") else way, []).append(launcher)
    said = "; ".join(f"to {', '.join(launchers)}: {way}" for way, launchers in found.items())
    return said and f"{shown} belongs {said}"
