"""The script by which mpirun runs a job without a launcher, as on PaddlePaddle's page for Open MPI. Pure."""

from __future__ import annotations

import shlex
from typing import Final

from pslaunch.runtime.shared.env import INIT_ARGS, get_init_var

from ..errors import SpecError
from ..node.job import PYTHON
from ..options.spec import JobSpec
from ..plan import BUNDLED_PSERVER, make_plan

_VARIABLES: Final = ("ports_num", "ports_num_for_sparse", "trainer_count", "use_gpu")


def render_plain_script(spec: JobSpec, hostfile: str) -> str:
    """Return start_mpi_train.sh. hostfile: as in mpirun's command line. Raises SpecError.

    It has one pserver, beside rank 0, since mpirun may give no rank to another host.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    plan, hosts = make_plan(spec, spec.job_name), spec.site.reach.hosts
    if plan.server != "bundled":
        raise SpecError(f"--script=plain starts bundled pservers only; pservers: {plan.server}, {plan.why}")
    if not hostfile:
        raise SpecError("--script=plain needs the hostfile of its mpirun: -hostfile FILE")
    templates = Environment(
        loader=PackageLoader("pslaunch.templates", "mpi"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters["sh"] = shlex.quote
    python = spec.python or "python3"
    trainer = [python if word == PYTHON else word for word in spec.command]
    return templates.get_template("plain.sh.j2").render(
        hostfile=shlex.quote(hostfile),
        ranks=spec.site.reach.ranks,
        variables=_list_variables(spec, hosts[0].name),
        pserver=shlex.join([python, *BUNDLED_PSERVER]),
        trainer=shlex.join(trainer),
    )


def _list_variables(spec: JobSpec, host: str) -> list[tuple[str, str]]:
    """Return the variables of all ranks with equal values."""
    port = INIT_ARGS["port"].default if spec.port is None else spec.port
    values = {
        "PADDLE_CLUSTER_TRAIN": "True",
        get_init_var("pservers"): f"[{host}]" if ":" in host else host,
        get_init_var("port"): str(port),
        **{get_init_var(name): str(getattr(spec, name)) for name in _VARIABLES},
        **{get_init_var(name): value for name, value in spec.trainer_flags.items()},
        **spec.env,
    }
    return [*values.items()]
