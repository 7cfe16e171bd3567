"""The quick start's program on hosts: as a job by SSH, and by hand with Fleet's variables."""

from __future__ import annotations

import contextlib
import shlex
import shutil
from pathlib import Path

from support.fleet import find_auc, make_blocks, write_quick_start
from support.jobs import FabricPlace, succeeded
from support.models import hash_set
from support.process import started
from testbed import Hosts

PORTS = 6170, 6171


def test_pasted_variables_train_as_a_job_does(
    workspace: Path, hosts: Hosts, install: tuple[str, ...]
) -> None:
    both = hosts[0], hosts[1]
    write_quick_start(workspace)
    place = FabricPlace(hosts, *install, on=both)
    options = ["--server_num=2", "--worker_num=2"]
    succeeded(place, workspace, *options, program=["train.py", "sync", "model"])
    models = [host.root / workspace.name / "model" for host in both]

    digest = hash_set(models[0])  # worker 0 has taken the part of the other server
    shutil.rmtree(models[0])

    blocks = make_blocks([(host.address, port) for host, port in zip(both, PORTS, strict=True)], 2)
    folder = f"{hosts.root_dir}/{workspace.name}"
    with contextlib.ExitStack() as stack:
        processes = []
        for i, block in enumerate(blocks):
            pasted = "".join(f"export {name}={value}\n" for name, value in block.items())
            lines = f"cd {shlex.quote(folder)}\n{pasted}exec .pslaunch/venv-*/bin/python train.py sync model"
            argv = ["ssh", "-F", str(hosts.config), both[i % 2].name, lines]
            processes.append(stack.enter_context(started(argv)))
        codes = [process.wait() for process in processes]
    texts = [process.output() for process in processes]
    assert codes == [0] * 4, texts
    for host, port, text in zip(both, PORTS, texts, strict=False):
        assert f"Server listening on {host.address}:{port} selected port: {port}" in text
    for i, text in enumerate(texts[2:]):
        assert f"init rpc client with trainer_id {i}" in text
        assert find_auc(text) > 0.65
    assert hash_set(models[0]) == digest
