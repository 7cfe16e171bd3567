"""The kernels give the same bits in every build: each compiler, each level of optimizing, each processor."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support.arm64 import COMPILER as ARM64
from support.arm64 import CSRC, EMULATOR, FLAGS, need_program
from support.others import ROOT

KERNELS = "act compute entry err index init lookup matmul optim pack pool schedule sparse tiles"
SOURCES = [path for name in KERNELS.split() for path in CSRC.rglob(f"ps_{name}.c")]
PROGRAM = ROOT / "tests" / "c" / "bits" / "bits.c"
WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Wstrict-prototypes", "-Wconversion", "-Werror")
LIBRARIES = ("-lm", "-lpthread")
METHODS = 23  # optimizers, of which the last has no tables
EQUAL = 4  # two differ by L1 alone, in 3 lines; one state for a row of wild numbers is none in 2
SCHEDULES = 7
NETWORKS = 9  # trainings with each build of the kernels that the program holds, and 1, 2 and 4 threads
BUILDS = {
    "gcc -O0": ("gcc", "-O0"),
    "gcc -O3": ("gcc", "-O3"),
    "gcc native": ("gcc", "-O3", "-march=native"),
    "clang -O3": ("clang", "-O3"),
    "arm64 -O0": (ARM64, "-O0", "-static"),
    "arm64 -O3": (ARM64, "-O3", "-static"),
}


def bits(build: str, folder: Path) -> list[str]:
    """The digests that a build prints, arm64 under qemu."""
    compiler, *options = BUILDS[build]
    emulator = [need_program(EMULATOR)] if compiler == ARM64 else []
    target = folder / "bits"
    words = [*FLAGS, *WARNINGS, *options, f"-I{CSRC}", *SOURCES, PROGRAM, *LIBRARIES, "-o", target]
    subprocess.run([need_program(compiler), *words], check=True)
    done = subprocess.run([*emulator, str(target)], check=True, capture_output=True, text=True, timeout=300)
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The digests of the build that does least."""
    return bits("gcc -O0", tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("build", [build for build in BUILDS if build != "gcc -O0"])
def test_builds_compute_the_same_bits(build: str, plain: list[str], tmp_path: Path) -> None:
    assert bits(build, tmp_path) == plain


def test_every_kernel_is_in_it_and_gives_something_of_its_own(plain: list[str]) -> None:
    assert [line.rpartition(" ")[0] for line in plain] == [
        *(
            f"{form} {method} {kind}" if method < METHODS else f"add 0 {kind}"
            for kind in ("tame", "wild")
            for method in range(METHODS + 1)
            for form in (("optim", "full") if method < METHODS else ("",))
        ),
        *(f"init {kind} tame" for kind in range(2)),
        *(f"schedule {kind} tame" for kind in range(SCHEDULES)),
        *(f"sparse {method} tame" for method in range(METHODS - 1)),
        "lookup 0 tame",
        *["word2vec 0 tame"] * NETWORKS,
    ]
    assert len({line.split()[-1] for line in plain}) == len(plain) - NETWORKS + 1 - EQUAL


@pytest.mark.parametrize("flag", ["-ffast-math", "-ffinite-math-only"])
def test_builds_that_would_change_bits_are_refused(flag: str) -> None:
    argv = [
        need_program("gcc"),
        *FLAGS,
        flag,
        f"-I{CSRC}",
        "-c",
        str(CSRC / "kernels/ps_optim.c"),
        "-o",
        os.devnull,
    ]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode != 0
    assert "build without -ffast-math" in done.stderr
