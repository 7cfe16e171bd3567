"""The folders of a job on one node: locked for it, made ready, given back.

If nodes share a folder (NFS), the first of them owns it; the others get subfolders.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import socket
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Callable

from pslaunch.runtime.shared import env

from .. import codes, listing, procs
from ..codes import Refusal, choose_code
from ..logs import GUARDS_LOG, OWN_LOGS

if TYPE_CHECKING:
    from ..messages import Folders, PrepareMsg

SHARED_WAIT_S = 2.0  # for another node of this job to write its name into a shared lock
AGAIN_S = 0.1
MAX_LOCK_BYTES = 400  # job, node, launcher
JOURNAL_PATH = ".pslaunch/dispatch/journal"  # as in into_place.py, which is loaded only if there is one


class JobFolders:
    """The folders named by an order to prepare. `hand_over` gives the keeper the log's path and the lock."""

    def __init__(self, order: PrepareMsg, hand_over: Callable[[bytes, Sequence[int]], None]) -> None:
        self._hand_over = hand_over
        self._job_id, self._node, self._nodes = order["job_id"], int(order["node"]), int(order["nodes"])
        self._launcher, self._keep_logs = order["launcher"], int(order["keep_logs"])
        # For what guards an agent of this node that is lost, and whose place is ours.
        self._guard_s = float(order["lost_after_s"]) + float(order["grace_s"]) + procs.KILL_LIMIT_S
        self._goes_on = False  # the job was here before
        self.paths: Folders = {
            "workspace": os.path.expanduser(order["workspace"]),
            "log_dir": os.path.expanduser(order["log_dir"]),
            "output_dir": os.path.expanduser(order["output_dir"]),
            "state_dir": os.path.expanduser(order["state_dir"]),
        }
        self.dispatched = bool(order["dispatched"])
        self.shared: int | None = None  # the node that owns the folder, if another one
        self._lock_fd = -1
        # Copies of a simulated cluster are below its log folder; only they know their address beforehand.
        sent = self.dispatched and not order["addr"]
        beside = sent and self.paths["log_dir"].startswith(f"{self.workspace}/")
        self._option = "--root_dir" if beside else "--log_dir"  # decides the place of the folders
        if not self.dispatched and not os.path.isdir(self.workspace):
            text = f"the workspace {self.workspace} is not a folder on {socket.gethostname()}"
            advice = "name an existing folder (--job_workspace), or send one (--job_dispatch_package)"
            raise Refusal(codes.PREFLIGHT, f"{text}: {advice}")

    @property
    def workspace(self) -> str:
        return self.paths["workspace"]

    @property
    def guards_log(self) -> str:
        return os.path.join(self.paths["log_dir"], GUARDS_LOG)

    def enter(self) -> None:
        """Lock the log folder, then make all ready; share it with a node of this job that was first. Slow."""
        if self._lock_fd >= 0:
            return  # another head asks
        begun_s, wait_s = time.monotonic(), SHARED_WAIT_S if self._nodes > 1 else 0.0
        while True:
            self._make(self.paths["log_dir"])
            self._make(self.paths["state_dir"], own=True)
            holder = self._lock()
            if holder is None:
                break
            job_id, first, launcher = f"{holder}\n\n".split("\n")[:3]
            guarded = job_id == self._job_id and first == str(self._node)
            if job_id == self._job_id and first.isdigit() and self.shared is None and not guarded:
                self.shared = int(first)  # again, with this node's own subfolders
                self.paths["log_dir"] += f"/node-{self._node}"
                self.paths["state_dir"] += f"/node-{self._node}"
            # Without a name, a node of this job may not have written it yet.
            elif time.monotonic() < begun_s + (self._guard_s if guarded else wait_s):
                time.sleep(AGAIN_S)
            else:
                advice = (
                    "end it or wait for it, or choose another --log_dir (--job_name if a package is sent)"
                )
                by = f" (its launcher is {launcher})" if launcher else ""
                used = f"job {job_id or '(unknown)'} is using this log folder{by}"
                raise Refusal(codes.USAGE, f"{used}; {advice}")
        self._finish_dispatch()
        self._make_ready()

    def _make(self, path: str, *, own: bool = False) -> None:
        try:
            listing.refuse_foreign_link(path)
            if own:
                listing.make_own_folder(path)
            else:
                os.makedirs(path, exist_ok=True)
        except OSError as e:
            text = f"the folder {path} can't be made: {e.strerror}; choose another {self._option}"
            raise Refusal(choose_code(e), text) from None

    def leave(self) -> None:
        if self._lock_fd >= 0:
            os.ftruncate(self._lock_fd, 0)
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _lock(self) -> str | None:
        """Take the lock, or return its holder: job, node, launcher."""
        path = os.path.join(self.paths["state_dir"], "lock")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        os.fchmod(fd, 0o600)  # another user who can open it could lock it
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.read(fd, MAX_LOCK_BYTES).decode("utf-8", "replace").strip()
            os.close(fd)
            return other
        first = self._find_first_node() if self._nodes > 1 and self.shared is None else None
        if first is not None:
            os.close(fd)
            return first
        self._goes_on = self._read_owner() == self._job_id
        self._put_away()
        with listing.name_file(path):
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{self._job_id}\n{self._node}\n{self._launcher}\n".encode(), 0)
            os.fsync(fd)  # other hosts may look
        self._lock_fd = fd
        # The keeper holds it too: no other job may enter while it still ends our processes.
        self._hand_over(os.fsencode(self.guards_log), [fd])
        return None

    def _put_away(self) -> None:
        """Keep the logs of earlier jobs, misleading beside ours, in a folder each; remove the oldest.

        Only logs are moved or removed; all of them if they may fill the disk. Raises Refusal before
        any is removed.
        """
        folder, state_dir = self.paths["log_dir"], self.paths["state_dir"]
        if self._goes_on:
            return
        known = [line.strip() for line in listing.read_lines(state_dir, listing.KEPT_JOBS)]
        owner, logs = self._read_owner(), _list_logs(folder)
        disk = os.statvfs(folder)
        fits = sum(os.lstat(log).st_size for log in logs) <= disk.f_bavail * disk.f_frsize
        kept = [*known, owner] if owner not in ("", self._job_id, *known) and logs else known
        kept = kept[-self._keep_logs :] if self._keep_logs and fits else []
        earlier = os.path.join(folder, listing.EARLIER_LOGS)
        try:
            if owner in kept and owner not in known:
                place = os.path.join(earlier, owner)
                listing.refuse_foreign_link(earlier)
                os.makedirs(place, exist_ok=True)
                for log in logs:
                    os.replace(log, os.path.join(place, os.path.basename(log)))
            if kept != known:
                path = os.path.join(state_dir, listing.KEPT_JOBS)
                listing.replace_file(path, f"{path}-{self._node}", (f"{job_id}\n" for job_id in kept))
        except OSError as e:
            if e.errno not in (errno.ENOSPC, errno.EDQUOT):
                advice = "make it a folder that can be written, or remove earlier logs by --keep_logs 0"
                text = f"logs of earlier jobs can't be kept in {earlier}: {e.strerror}; {advice}"
                raise Refusal(choose_code(e), text) from None
            kept = []
        for log in _list_logs(folder):
            os.unlink(log)
        for job_id in {*known, owner}.difference(kept, [""]):
            place = os.path.join(earlier, job_id)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                for log in _list_logs(place):
                    os.unlink(log)
                if not os.listdir(place):
                    os.rmdir(place)

    def _read_owner(self) -> str:
        """Return the job of the present logs."""
        return "".join(listing.read_lines(self.paths["state_dir"], listing.OWNER)[:1]).strip()

    def _find_first_node(self) -> str | None:
        """Return the first job and node in the folder, unless it is this one; needs no locks across hosts."""
        folder, name = self.paths["state_dir"], f"first-{self._job_id}"
        try:
            os.symlink(str(self._node), os.path.join(folder, name))
        except FileExistsError:
            first = os.readlink(os.path.join(folder, name))
            return None if first == str(self._node) else f"{self._job_id}\n{first}"
        except OSError:
            return None  # no links here: rely on locks
        for other in os.listdir(folder):  # of earlier jobs
            if other.startswith("first-") and other != name:
                os.unlink(os.path.join(folder, other))
        return None

    def _finish_dispatch(self) -> None:
        """Finish an interrupted dispatch in our folders: no program may see half of it."""
        if self.dispatched:
            self._make(self.workspace)
        if self.shared is None and os.path.lexists(os.path.join(self.workspace, JOURNAL_PATH)):
            from ..dispatch import into_place
            from ..dispatch.manifest import ManifestError

            try:
                into_place.finish(self.workspace)
            except ManifestError as e:
                path = os.path.join(self.workspace, JOURNAL_PATH)
                text = f"{path}, left by a dispatch that was cut, can't be read ({e}): remove it"
                raise Refusal(codes.IO, f"{text}, and dispatch again") from None

    def _make_ready(self) -> None:
        self._write_state(listing.OWNER, ())
        folder = self._find_node_folder() if self.shared is None else self.paths["log_dir"]
        listing.write_text(os.path.join(folder, "nodefile"), f"{self._node}\n")
        self._make(self.paths["output_dir"])
        if not self._node and not self._goes_on:
            with contextlib.suppress(OSError):  # then everything in output/ will count as the job's
                self._write_state(listing.EARLIER, listing.list_folder(self.paths["output_dir"]))

    def _write_state(self, name: str, lines: Iterable[str]) -> None:
        """Replace a file of the state folder; its first line is our job."""
        path = os.path.join(self.paths["state_dir"], name)
        listing.replace_file(path, f"{path}-{self._node}", itertools.chain([f"{self._job_id}\n"], lines))

    def write_nodes(self, addrs: Iterable[str]) -> None:
        folder = self._find_node_folder()
        own = os.path.join(folder, ".pslaunch")
        listing.make_own_folder(own)
        beside = os.path.join(own, f"nodes-{self._node}")
        listing.replace_file(os.path.join(folder, "nodes"), beside, (f"{addr}\n" for addr in addrs))

    def _find_node_folder(self) -> str:
        """Return the folder of node files: the workspace, or if it is read-only the log folder."""
        return self.workspace if os.access(self.workspace, os.W_OK) else self.paths["log_dir"]


def _list_logs(folder: str) -> list[str]:
    """Return the paths of the logs in a folder: of programs, and our own."""
    names = [name for name in os.listdir(folder) if env.is_log(name) or name in OWN_LOGS]
    return [os.path.join(folder, name) for name in names]
