"""For all tests: options, where jobs run, and that a test leaves no process, port or file behind."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from pslaunch.runtime.process import settings
from support import furnished, guard, leaks
from support.jobs import (
    FREE_PLACES,
    PLACES,
    POD_PLACES,
    POD_SEAM_PLACES,
    SEAM_PLACES,
    TRAINING_SEAM_PLACES,
    FabricPlace,
    LocalPlace,
    Place,
)
from support.openmpi import MpiPlace
from support.others import find_gpu_python
from support.process import poll_until
from support.record import Record
from support.slurm import Slurm, SlurmPlace, need_slurm, run_slurm
from support.wheelhouse import make_wheelhouse
from testbed import Hosts, why_not
from testbed.kube import of_run

if TYPE_CHECKING:
    from support.kube import Kube

# A busy machine takes its time for an example; what hangs is ended by the limit of the test.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")


HAS_FAILED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--require` and `--seed`."""
    parser.addoption("--seed", type=int, default=1, help="of what the tests of faults choose by chance")
    parser.addoption(
        "--require",
        default="",
        metavar="all|MARKER,...",
        help="a skip is a failure: of any test, or of tests with one of these markers",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Give the run a mark and a temporary folder of its own; pytest's own folders stay where they were."""
    leaks.set_mark()
    # Ignored in a shell's background and under nohup, where it would stay so in every launcher of the tests.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    # Short: paths of Unix sockets have 107 bytes. Not "pslaunch-…": another run must not see it.
    folder = tempfile.mkdtemp(prefix="pslt-")
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    os.environ["XDG_STATE_HOME"] = os.environ["XDG_CACHE_HOME"] = folder  # records of jobs, hashes, wheels
    guarding = guard.start(f"{leaks.MARK}={os.environ[leaks.MARK]}", folder)

    def end() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        guarding.communicate()

    config.add_cleanup(end)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Record(config))
    of_run.begin_run(config)


def _required(config: pytest.Config, names: set[str]) -> bool:
    wanted = set(filter(None, str(config.getoption("--require")).split(",")))
    return "all" in wanted or bool(wanted & names)


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport, allowed: Sequence[str] = ()) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if any(words in reason for words in allowed):
            return
        report.outcome = "failed"
        report.longrepr = f"{reason} (a skip is a failure: --require)"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a required test's skip into a failure; add to a failed command what it said.

    Notes a failed body for the fixtures that clean up.
    """
    error = call.excinfo and call.excinfo.value
    if isinstance(error, subprocess.CalledProcessError):
        for stream in (error.stdout, error.stderr):
            error.add_note(stream.decode(errors="replace") if isinstance(stream, bytes) else stream or "")
    report = yield
    item.stash[HAS_FAILED] = report.failed
    if _required(item.config, {mark.name for mark in item.iter_markers()}):
        _fail_if_skipped(report, [mark.args[0] for mark in item.iter_markers("may_skip")])
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that skips itself as a whole."""
    report = yield
    if _required(collector.config, set()):
        _fail_if_skipped(report)
    return report


@pytest.fixture(scope="session", autouse=True)
def check_leftovers_of_the_run() -> Iterator[None]:
    """Fail the run if something is left when all fixtures are gone."""
    before = leaks.Leftovers.now()
    yield
    left = leaks.check(before)
    assert not left, "the run left behind:\n" + "\n".join(left)


@pytest.fixture(autouse=True)
def check_leftovers(check_leftovers_of_the_run: None) -> Iterator[None]:
    """Fail a test that leaves a process, a listening port or a file of ours behind."""
    before = leaks.Leftovers.now()
    leaks.begin_test(before)
    yield
    left = leaks.check(before)
    assert not left, "the test left behind:\n" + "\n".join(left)


@pytest.fixture(autouse=True)
def keep_settings() -> Iterator[None]:
    """Let what a test gives to init() end with it."""
    before = settings._current, dict(settings._given), settings._part
    yield
    settings._current, settings._given, settings._part = before


# Cases that a place leaves out, as expressions: another place of its backend shows the same by the same code.
REPEATED = "logs_are_complete|time_limit|two_jobs_with|losing_a_guard.*-19"
SECOND_PLACES = ("local_cluster", "fabric_led", "mpi4", "mpi_led", "slurm_led", *POD_SEAM_PLACES)
LEFT_OUT = {
    **dict.fromkeys(SECOND_PLACES, REPEATED),
    "k8s_detached": f"{REPEATED}|bits_depend",
    "fabric_furnished": "two_jobs_at_once|killed_process.*-11-|other_modes.*geo",
    "mpi_furnished": "other_modes.*async",
    "k8s": "other_modes.*geo",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out tests that have no sense at their place, by their marks."""
    items[:] = [item for item in items if _belongs(item)]


def _belongs(item: pytest.Item) -> bool:
    place = item.callspec.params.get("place") if hasattr(item, "callspec") else None
    marks = {mark.name for mark in item.iter_markers()}
    if place in (*SEAM_PLACES, *TRAINING_SEAM_PLACES) and "seam" not in marks:
        return False
    if "gpu" in marks and not find_gpu_python():
        return False
    without = {"standing": POD_PLACES, "held": FREE_PLACES}
    has_no_sense = any(place in places and name in marks for name, places in without.items())
    return not has_no_sense and not (place in LEFT_OUT and re.search(LEFT_OUT[place], item.name))


LED = "--head=node"


def get_kube() -> ModuleType:
    from support import kube  # its library is slow to import

    return kube


# A place by its name, made of what fixtures give by theirs.
MAKERS: dict[str, Callable[[Callable[[str], Any]], Place]] = {
    "local": lambda _get: LocalPlace(1),
    "local_cluster": lambda _get: LocalPlace(3),
    "local_led": lambda _get: LocalPlace(1, LED),
    "local_led_cluster": lambda _get: LocalPlace(3, LED),
    "fabric": lambda get: FabricPlace(get("hosts")),
    "fabric_led": lambda get: FabricPlace(get("hosts"), LED),
    "fabric_furnished": lambda get: FabricPlace(get("hosts"), *get("install")),
    "mpi": lambda get: MpiPlace(get("hosts"), 5),
    "mpi4": lambda get: MpiPlace(get("hosts"), 4),
    "mpi_led": lambda get: MpiPlace(get("hosts"), 5, LED),
    "mpi_furnished": lambda get: MpiPlace(get("hosts"), 5, *get("install")),
    "mpi4_led_furnished": lambda get: MpiPlace(get("hosts"), 4, LED, *get("install")),
    "slurm": lambda get: SlurmPlace(get("slurm")),
    "slurm_led": lambda get: SlurmPlace(get("slurm"), LED),
    "k8s": lambda get: get_kube().KubePlace(get("cluster"), 2),
    "k8s_separate": lambda get: get_kube().SeparatePlace(get("cluster")),
    "k8s_detached": lambda get: get_kube().FreePlace(get("cluster"), "detached"),
    "k8s_rendered": lambda get: get_kube().FreePlace(get("cluster"), "rendered"),
}


@pytest.fixture
def make_place(request: pytest.FixtureRequest) -> Callable[[str], Place]:
    """Return what makes a place by its name."""
    return lambda name: MAKERS[name](request.getfixturevalue)


@pytest.fixture(params=[*PLACES, *SEAM_PLACES])
def place(request: pytest.FixtureRequest, make_place: Callable[[str], Place]) -> Place:
    """Return the place where the contract is tested."""
    return make_place(request.param)


@pytest.fixture(params=[4, 5])
def major(request: pytest.FixtureRequest) -> int:
    """Return the version of Open MPI."""
    return int(request.param)


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make wheels of the packages that the runtime imports, from those installed here."""
    furnished.need_same_python()
    return make_wheelhouse(tmp_path_factory.mktemp("wheels") / "house")


@pytest.fixture
def install(hosts: Hosts, wheelhouse: Path) -> Iterator[tuple[str, ...]]:
    """Options that have `hosts` import what this machine does, which takes long once."""
    environments = furnished.Environments(hosts)
    environments.put_back()
    yield furnished.options(wheelhouse)
    environments.keep()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty workspace whose path is none that a shell would take unquoted."""
    path = tmp_path / "my job's $HOME"
    path.mkdir()
    return path


def make_set(count: int, *, bastion: bool = False) -> Hosts:
    """Hosts of this run of the tests, whose sessions carry its mark."""
    if reason := why_not():
        pytest.skip(reason)
    mark = os.environ[leaks.MARK]
    return Hosts(count, bastion=bastion, run_id=mark, environment=f"{leaks.MARK}={mark}")


@contextlib.contextmanager
def keep_set() -> Iterator[Hosts]:
    """Keep three hosts for many tests."""
    hosts = make_set(3)
    leaks.kept_hosts.add(hosts.id)
    try:
        with hosts:
            yield hosts
    finally:
        leaks.kept_hosts.discard(hosts.id)


@pytest.fixture(scope="session")
def standing_hosts(check_leftovers_of_the_run: None) -> Iterator[Hosts]:
    """Three hosts for many tests, one after the other."""
    with keep_set() as hosts:
        yield hosts


@pytest.fixture
def hosts(standing_hosts: Hosts) -> Iterator[Hosts]:
    """Three hosts as they were made; a test that leaves a process on one of them fails."""
    standing_hosts.reset()
    yield standing_hosts

    def left() -> list[str]:
        return [f"{host.name}: {words}" for host in standing_hosts for words in host.processes().values()]

    poll_until(lambda: not left(), describe=lambda: f"left on {left()}", timeout_s=leaks.GRACE_S)


@pytest.fixture
def make_hosts(check_leftovers: None) -> Iterator[Callable[..., Hosts]]:
    """Make sets of hosts of the test's own: arguments as of `make_set`."""
    with contextlib.ExitStack() as stack:
        yield lambda count, **options: stack.enter_context(make_set(count, **options))


@pytest.fixture(scope="session")
def standing_slurm(check_leftovers_of_the_run: None) -> Iterator[Slurm]:
    """Slurm on three hosts of its own, for many tests, one after the other."""
    need_slurm()
    with keep_set() as hosts, run_slurm(hosts) as slurm:
        yield slurm


@pytest.fixture
def slurm(standing_slurm: Slurm) -> Iterator[Slurm]:
    """Slurm without a job; what a test leaves there is ended."""
    yield standing_slurm
    standing_slurm.end_jobs()


@pytest.fixture(scope="session")
def standing_cluster(check_leftovers_of_the_run: None) -> Iterator[Kube]:
    """The run's Kubernetes cluster, for many tests."""
    with get_kube().open_kube() as found:
        yield found


@pytest.fixture
def cluster(standing_cluster: Kube, request: pytest.FixtureRequest) -> Iterator[Kube]:
    """The run's Kubernetes cluster with an empty namespace; a test that leaves an object there fails."""
    standing_cluster.empty()  # of what an interrupted test has left
    yield standing_cluster
    if request.node.stash[HAS_FAILED]:
        standing_cluster.empty()  # its one failure tells more than what it has left
    standing_cluster.wait_until_gone()
