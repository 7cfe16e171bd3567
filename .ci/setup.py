"""Makes `.venv/` in the checkout ready: `python3 .ci/setup.py train` or `python3 .ci/setup.py dev`.

Standard library only, and readable for an old Python, so that it can say what is missing. It does
nothing when a stamp in the venv fits; network is needed only for what is not installed yet.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = str(VENV / "bin" / "python")
STAMP = VENV / "pslaunch-setup"
OLDEST = (3, 11)
EXTRAS = ("ssh", "k8s")  # the others are large, and tests take those of the system
# These would send an install elsewhere than into the venv, or another Python's modules into ours.
MISLEADING = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PYTHONHOME", "PYTHONPATH")
ENVIRON = {name: value for name, value in os.environ.items() if name not in MISLEADING}


class SetupError(Exception):
    """Something that the user must do; where there is a command to paste, it is the first line."""


def run(step: str, *argv: str) -> None:
    """Run a command; raises SetupError with its last lines when it fails."""
    print(f"setup: {step}", file=sys.stderr, flush=True)
    done = subprocess.run(
        argv,
        env=ENVIRON,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode != 0:
        tail = "\n".join(done.stdout.decode("utf-8", "replace").strip().splitlines()[-25:])
        raise SetupError(f"{step} failed with exit code {done.returncode}: {' '.join(argv)}\n{tail}")


def succeeds(*argv: str, text: str = "") -> bool:
    """Tell whether a command ends with 0; `text` is its standard input."""
    try:
        done = subprocess.run(argv, input=text.encode(), env=ENVIRON, cwd="/", capture_output=True)
    except OSError:
        return False
    return done.returncode == 0


def find_missing() -> list[str]:
    """Return the Debian packages without which no venv can be made, or no C core built."""
    python = "python{}.{}".format(*sys.version_info[:2])
    compiler = ENVIRON.get("CC", "cc").split()
    missing = []
    if not succeeds(*compiler, "-E", "-xc", "-", text="#include <stdio.h>\n"):
        missing += ["gcc", "libc6-dev"]
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        missing.append(python + "-dev")
    if not succeeds(sys.executable, "-c", "import ensurepip, venv"):
        missing.append(python + "-venv")
    return missing


def install_missing(packages: list[str]) -> None:
    """Install packages through apt, or say how to."""
    if any(name.startswith("python") for name in packages) and Path(sys.base_prefix).resolve() != Path(
        "/usr"
    ):
        raise SetupError(
            f"make PYTHON=/usr/bin/python3 train\n{sys.executable} lacks its headers or its venv module; "
            "apt has them for the system's Python."
        )
    command = "apt-get install -y --no-install-recommends " + " ".join(packages)
    sudo = ["env"] if os.geteuid() == 0 else ["sudo", "-n", "env"]
    if not shutil.which("apt-get") or not succeeds(*sudo, "true"):
        raise SetupError(
            f"sudo apt-get update && sudo {command}\nMissing on this machine: {', '.join(packages)}. "
            "Paste the line above, or install the same by other means, then try again."
        )
    run("updating apt's lists of packages", *sudo, "apt-get", "update")
    run(f"installing system packages: {command}", *sudo, "DEBIAN_FRONTEND=noninteractive", *command.split())


def prepare(level: str) -> None:
    """Bring the venv to what the checkout wants; does nothing when it is there already."""
    import tomllib  # not in Pythons older than OLDEST

    sha = hashlib.sha256()
    sources = (ROOT / "runtime" / "csrc").rglob("*.[ch]")
    for path in [ROOT / "pyproject.toml", ROOT / "launcher" / "__init__.py", *sorted(sources)]:
        sha.update(hashlib.sha256(path.read_bytes()).digest())
    have = STAMP.read_text().split("\n") if STAMP.exists() else []
    level = "dev" if "dev" in have else level  # who can test can train
    want = [sha.hexdigest(), level, str(ROOT)]
    core = (PYTHON, "-c", "import pslaunch.runtime._core, numpy")
    if have == want and succeeds(*core):
        return
    missing = find_missing()
    if missing:
        install_missing(missing)
    if have[2:] != want[2:] or not succeeds(PYTHON, "-m", "pip", "--version"):  # new, moved, or broken
        run("making .venv", sys.executable, "-m", "venv", "--clear", str(VENV))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names = project["build-system"]["requires"] + project["project"]["dependencies"]
    names += [name for extra in EXTRAS for name in project["project"]["optional-dependencies"][extra]]
    names += project["dependency-groups"]["dev"] if level == "dev" else []
    pip = (PYTHON, "-m", "pip", "install", "-q", "--disable-pip-version-check")
    run("installing Python packages", *pip, *names)
    run("building the C core and installing pslaunch", *pip, "--no-build-isolation", "--no-deps", "-e", ".")
    run("looking whether the C core loads", *core)
    STAMP.write_text("\n".join(want))


def main() -> None:
    if sys.version_info < OLDEST:
        newer = filter(None, (shutil.which(f"python3.{minor}") for minor in range(20, OLDEST[1] - 1, -1)))
        for found in newer:
            os.execv(found, [found, *sys.argv])
        raise SetupError(
            "sudo apt-get update && sudo apt-get install -y python3.11\n"
            f"pslaunch needs Python 3.11 or later; {sys.executable} is {sys.version.split()[0]}. "
            "Debian 12 and Ubuntu 24.04 have one."
        )
    lock = os.open(ROOT, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # two makes at once; released by the end of this process
    prepare(sys.argv[1])


if __name__ == "__main__":
    try:
        main()
    except (SetupError, OSError) as problem:
        sys.exit(str(problem))
