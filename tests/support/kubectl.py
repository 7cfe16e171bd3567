"""A shell with kubectl, for commands as pages have them."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.kube import Kube
from testbed.kube.cluster import BUILT

LIMIT_S = 200.0


class Shell:
    """A shell in a folder, with kubectl and our commands, for one user in the namespace of these tests."""

    def __init__(self, cluster: Kube, user: Mapping[str, Any], folder: Path, tools: Path) -> None:
        """Write kubeconfig and bin/ into `tools`. user: what is in a kubeconfig."""
        self.folder = folder
        config = copy.deepcopy(dict(user))
        config["contexts"][0]["context"]["namespace"] = cluster.namespace
        (tools / "bin").mkdir(parents=True)
        (tools / "bin/kubectl").symlink_to((BUILT / "kubectl").resolve())
        (tools / "kubeconfig").write_text(json.dumps(config))
        self._environ = {
            **os.environ,
            "PATH": f"{tools}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "KUBECONFIG": str(tools / "kubeconfig"),
            "NO_PROXY": cluster.address[0],
        }

    def run(self, command: str, given: bytes = b"") -> str:
        """Return the output of a command, which must give 0."""
        done = subprocess.run(
            ["sh", "-c", command], cwd=self.folder, env=self._environ, input=given,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        said = done.stdout.decode(errors="replace")
        assert done.returncode == 0, f"{command} gave {done.returncode}:\n{said}"
        return said
