"""`pslaunch k8s render`: prints a job's manifests, or writes them to files."""

from __future__ import annotations

from ...options.locate import check_folder_to_make
from ...options.spec import JobSpec
from ...plan import make_plan
from ..face import CommandLine
from . import manifests


def print_manifests(line: CommandLine, spec: JobSpec) -> int:
    """Print the manifests of a job, or write them with `--output_dir`; return 0. Raises PslaunchError."""
    folder, reach = check_folder_to_make(line.given.get("output_dir"), line.cwd), spec.site.reach
    plan = make_plan(spec, spec.draft.name)
    package = manifests.pack_package(plan, line.environ, line.tell)
    manifests.refuse_brought(plan, package)
    rendered = manifests.render(plan, reach, package)
    if folder is None:
        line.out.write("---\n".join(rendered.values()))
    else:
        manifests.write(rendered, folder)
    line.tell(f"before it is applied: {manifests.make_secret_command(reach)}")
    return 0
