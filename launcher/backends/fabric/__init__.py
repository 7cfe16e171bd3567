"""Hosts reached by SSH, as in PaddlePaddle's conf.py."""

from __future__ import annotations

from typing import ClassVar

from ..face import Face


class FabricFace(Face):
    name, extra, example = "fabric", "ssh", "--hosts node[1-3] --root_dir /data/job"
    spec, backend, reach = "spec:make_fabric_spec", "backend:FabricBackend", "spec:FabricReach"
    helps: ClassVar = {
        "": """Run one job on the hosts of conf.py, by SSH.

        The folder of --job_dispatch_package is sent to every host, and PROGRAM (train.py unless given) runs
        in it there. The hosts need sshd and Python 3.9 or later. Options overrule ./pslaunch.toml, which
        overrules conf.py; words before and after PROGRAM are handled as by `pslaunch local`.
        """,
        "check": """Check all hosts of a job and report everything that would prevent it from running.

        Takes the command line of `pslaunch fabric` unchanged. Nothing is sent to the hosts or started there.
        With --json: one object a host. The exit code is 0 if the job can run.
        """,
    }
    place: ClassVar = {
        "conf": ("FILE", "Ask the first host of this conf.py. [default: the jobs known on this machine]")
    }
    place_hint, far_hint = "--conf conf.py asks hosts", "add --conf conf.py"
    places = "spec:find_first_host"
    file, reader = "conf", "conf_py:read_conf"


FACE = FabricFace()
