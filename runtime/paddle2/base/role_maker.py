"""Part of this process in a Fleet job: from its environment, or from the program."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...shared import env

__all__ = ["PaddleCloudRoleMaker", "Role", "UserDefinedRoleMaker"]

ROLE = "TRAINING_ROLE"
SERVERS = "PADDLE_PSERVERS_IP_PORT_LIST"
WORKERS = "PADDLE_TRAINER_ENDPOINTS"
WORKERS_NUM = "PADDLE_TRAINERS_NUM"
WORKER_ID = "PADDLE_TRAINER_ID"
NEEDED = {
    "TRAINER": (ROLE, SERVERS, WORKERS_NUM, WORKER_ID),
    "PSERVER": (ROLE, SERVERS, WORKERS_NUM, "POD_IP", "PADDLE_PORT"),
}
ALONE = f"no {', '.join(NEEDED['TRAINER'])} in the environment: this program trains alone"


class Role:
    """Numbers of the roles, as in PaddlePaddle."""

    WORKER = 1
    SERVER = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Part of this process in its job."""

    is_server: bool = False
    index: int = 0  # among the processes of its role
    workers: int = 1
    servers: tuple[str, ...] = ()  # host:port in order of indices; none: a worker that trains alone
    worker_endpoints: tuple[str, ...] = ()
    note: str = ""  # for the user


def read_part(environ: Mapping[str, str]) -> Part:
    """Return the part that the environment gives; pure. Raises EnvError, naming the variables."""
    if not any(environ.get(name) for name in (ROLE, WORKERS_NUM, WORKER_ID)) and not environ.get(SERVERS):
        return Part(note=ALONE)
    role = environ.get(ROLE, "").upper()
    if role not in NEEDED:
        hint = env.suggest(role, NEEDED)
        raise env.EnvError(f"{ROLE}={environ.get(ROLE, '')!r}: expected TRAINER or PSERVER{hint}")
    workers = env.parse_count(environ[WORKERS_NUM], WORKERS_NUM) if environ.get(WORKERS_NUM) else 0
    single = role == "TRAINER" and workers == 1 and env.read_job(environ).launched
    missing = [name for name in NEEDED[role] if not environ.get(name) and not (single and name == SERVERS)]
    if missing:
        raise env.EnvError(
            f"{ROLE}={role}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; "
            f"a {role} needs {', '.join(NEEDED[role])}"
        )
    servers = _read_endpoints(environ.get(SERVERS, ""), SERVERS)
    if role == "PSERVER":
        own = env.join_addr(environ["POD_IP"], env.parse_port(environ["PADDLE_PORT"], "PADDLE_PORT"))
        if own not in servers:
            listed, hint = ",".join(servers), env.suggest(own, servers)
            raise env.EnvError(f"this server is POD_IP:PADDLE_PORT={own}, but {SERVERS} has {listed}{hint}")
        index = servers.index(own)
    else:
        index = env.parse_int(environ[WORKER_ID], WORKER_ID)
        if index >= workers:
            raise env.EnvError(f"{WORKER_ID}={index} must be below {WORKERS_NUM}={workers}")
    return Part(
        is_server=role == "PSERVER",
        index=index,
        workers=workers,
        servers=servers,
        worker_endpoints=_read_endpoints(environ.get(WORKERS, ""), WORKERS),
    )


def _read_endpoints(endpoints: Sequence[str] | str, name: str) -> tuple[str, ...]:
    parts = endpoints.split(",") if isinstance(endpoints, str) else endpoints
    found = [env.split_addr(part, name) for part in parts if part.strip()]
    return tuple(env.join_addr(host, port) for host, port in found)


class PaddleCloudRoleMaker:
    """The part that the environment gives: the variables of a launcher, or four of the user's own."""

    def __init__(self, is_collective: bool = False) -> None:
        _refuse_collective(is_collective, type(self).__name__)

    def make_part(self) -> Part:
        """Return the part of this process. Raises EnvError, naming the variables."""
        return read_part(os.environ)


class UserDefinedRoleMaker:
    """The part that the program gives: `current_id`, `role`, `worker_num` and `server_endpoints`."""

    def __init__(
        self,
        is_collective: bool = False,
        init_gloo: bool = False,
        *,
        current_id: int = 0,
        role: int = Role.WORKER,
        worker_num: int = 0,
        server_endpoints: Sequence[str] | str = (),
        worker_endpoints: Sequence[str] | str = (),
    ) -> None:
        """`init_gloo` has no effect: workers always wait for each other through the pservers."""
        name = type(self).__name__
        _refuse_collective(is_collective, name)
        if role not in (Role.WORKER, Role.SERVER):
            raise ValueError(f"{name}: role={role!r}, expected Role.WORKER or Role.SERVER")
        is_server = role == Role.SERVER
        servers = _read_endpoints(server_endpoints, "server_endpoints")
        given_workers = _read_endpoints(worker_endpoints, "worker_endpoints")
        workers = worker_num or len(given_workers)
        index = env.parse_int(current_id, "current_id")
        limit, given = (len(servers), "servers") if is_server else (workers, "workers")
        if not servers or not workers:
            raise ValueError(f"{name}: server_endpoints={[*servers]} and worker_num={workers}: give both")
        if index >= limit:
            raise ValueError(f"{name}: current_id={index} must be below {limit}, the number of {given}")
        self._part = Part(
            is_server=is_server, index=index, workers=workers, servers=servers, worker_endpoints=given_workers
        )

    def make_part(self) -> Part:
        return self._part


RoleMaker = PaddleCloudRoleMaker | UserDefinedRoleMaker


def _refuse_collective(is_collective: bool, where: str) -> None:
    if is_collective:
        raise ValueError(
            f"{where}: is_collective=True: this runtime trains with parameter servers alone; leave it out"
        )
