"""Sets of a pserver, as trainer 0 asks for them: saves on request, loads, and snapshots.

Trainer 0 asks for the parts of a save, or of a step, which are answered once they are on the disk, and seals
the set when it has the answers of all pservers. Pserver 0 also keeps what the trainers note of themselves.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import shutil
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..client.control import Control, Message
from ..files.exports import set_newest
from ..files.manifest import MANIFEST, Manifest, read_manifest, write_manifest
from ..files.objects import Content, PartFile, SetError
from ..files.saving import Entry, Header, sync_folder
from ..files.sets import Set, Share, describe_part, read_layout
from .others import Others, list_holders
from .pserver_options import EXPORTS, Options
from .threads import REQUESTS, Shard

PIECE_BYTES = 1 << 20
NO_TRAINER = -1  # an observer, which may ask for stats


@dataclass(slots=True, eq=False)
class Asker:
    """A trainer's connection, and its questions that wait for their answers."""

    control: Control
    trainer: int  # or NO_TRAINER
    waiting: list[Message] = field(default_factory=list)
    busy: bool = False  # a thread carries out the first one,
    done: Message | None = None  # and this is its answer


class Cuts:
    """State of one pserver's snapshots. Raises no errors: they are answers."""

    def __init__(
        self,
        options: Options,
        shards: Sequence[Shard],
        make_header: Callable[[], Header],
        wake: Callable[[], None],
        collect: Callable[[], Message],
    ) -> None:
        """`make_header` gives that of port 0; it is called once a trainer has connected.

        wake() lets somebody call answer_waiting() soon. collect() gives what the pserver counts.
        """
        self._options, self._shards, self._make_header, self._wake = options, shards, make_header, wake
        self._root = options.snapshot_dir
        self._do_stats = lambda _question: collect()
        self._askers: list[Asker] = []
        self._saves: dict[str, tuple[int, Path]] = {}  # number and folder of each save on request
        self._turn = threading.Lock()  # of what takes time
        self._notes: dict[int, dict[int, Message]] = {}  # step -> trainer -> its state
        self._ended: dict[int, tuple[int, Message]] = {}  # trainer -> pass that it has ended, its state then
        self._begun: str | None = None  # the folder of the snapshot; "": without one, None: not known yet

    # -- questions

    def add(self, sock: socket.socket, trainer: int) -> Asker:
        """Take over a trainer's connection; call hear() when it has something to read."""
        self._askers.append(asker := Asker(Control(sock), trainer))
        return asker

    def hear(self, asker: Asker) -> bool:
        """Answer what a trainer asks; return False, and close the connection, if it is gone.

        An observer has one answer, from a thread: nobody waits until it has taken it.
        """
        try:
            while (question := asker.control.receive(0)) is not None:
                if question.get("ask") == "note" and asker.trainer != NO_TRAINER:
                    self._note(asker.trainer, question)
                else:
                    asker.waiting.append(question | {"trainer": asker.trainer})
                    if asker.trainer == NO_TRAINER:
                        self._askers.remove(asker)
                        threading.Thread(target=self._answer_observer, args=[asker], daemon=True).start()
                        return False
            self.answer_waiting()
            return True
        except (OSError, LookupError, TypeError):  # it is gone, or confused
            self._askers.remove(asker)
            asker.control.close()
            return False

    def _answer_observer(self, asker: Asker) -> None:
        with contextlib.suppress(OSError), closing(asker.control):
            asker.control.send(self._answer(asker, asker.waiting[0]) or {})

    def answer_waiting(self) -> None:
        """Answer all questions that can be answered now. Call it when there may be new parts, or answers."""
        for asker in self._askers:
            try:
                while asker.waiting and (answer := self._answer(asker, asker.waiting[0])) is not None:
                    asker.waiting.pop(0)
                    asker.control.send(answer)
            except OSError:
                asker.waiting.clear()
                with contextlib.suppress(OSError):
                    asker.control.sock.shutdown(socket.SHUT_RDWR)  # hear() will find it gone

    def close(self) -> None:
        for asker in self._askers:
            asker.control.close()

    def _answer(self, asker: Asker, question: Message) -> Message | None:
        """Return the answer, or None if it must wait."""
        what = question.get("ask")
        may = {NO_TRAINER: ("stats",)}.get(asker.trainer, ("state", "stats"))
        if (asker.trainer != 0 and what not in may) or not hasattr(self, f"_do_{what}"):
            who = "an observer" if asker.trainer == NO_TRAINER else f"trainer {asker.trainer}"
            return {"error": f"{who} may not ask for {what}"}
        if what in ("load", "copy"):
            return self._answer_later(asker, question)
        return self._carry_out(question)

    def _carry_out(self, question: Message) -> Message | None:
        try:
            answer: Message | None = getattr(self, f"_do_{question['ask']}")(question)
            return answer
        except (LookupError, TypeError, ValueError, AttributeError, OSError) as e:
            return {"error": str(e) or type(e).__name__, "errno": getattr(e, "errno", None)}

    def _answer_later(self, asker: Asker, question: Message) -> Message | None:
        """Let a thread carry out what takes time."""

        def run() -> None:
            with self._turn:  # a question may come again while a thread is at it
                asker.done = self._carry_out(question)
            self._wake()

        if not asker.busy:
            asker.busy = True
            threading.Thread(target=run, daemon=True).start()
        answer, asker.done = asker.done, None
        asker.busy = answer is None
        return answer

    def _note(self, trainer: int, note: Message) -> None:
        """Keep what a trainer says of itself; there is no answer."""
        if note["ended"]:
            self._ended[trainer] = note["pass"], note["state"]
        else:
            self._notes.setdefault(note["step"], {})[trainer] = note["state"]

    def _do_parts(self, question: Message) -> Message | None:
        step = question["step"]
        files = self._list_parts(step)
        if files is None or "error" in files:
            return files
        notes: dict[int, Message] = {}
        if self._make_header().pserver == 0:
            sync, number = question["all"], question["pass"]
            ended = {t: state for t, (of, state) in self._ended.items() if of == number or not sync}
            notes = ended | self._notes.get(step, {})
            if sync and len(notes) < self._options.num_gradient_servers:
                return None
            for trainer, note in notes.items():
                if "error" in note:
                    return {"error": f"trainer {trainer}: {note['error']}"}
            self._notes = {s: old for s, old in self._notes.items() if s > step}
        return {**files, "trainers": notes}

    def _list_parts(self, number: int) -> Message | None:
        """Return the parts of a cut, once they are on the disk, or why there are none."""
        found = [shard.parts.get(number) for shard in self._shards]
        if None in found:
            return None
        failed = [f"port {i}: {one}" for i, one in enumerate(found) if isinstance(one, str)]
        if failed:
            return {"error": failed[0]}
        return {"files": [asdict(entry) for own in found if isinstance(own, list) for entry in own]}

    def _do_export(self, question: Message) -> Message | None:
        return self._list_parts(EXPORTS + question["step"])

    def _do_save(self, question: Message) -> Message | None:
        """Cut all shards, once for each name of a save, and answer as to `parts`."""
        folder, save = self._root / question["folder"], str(question["save"])
        if save not in self._saves:
            number = REQUESTS + 1 + len(self._saves)
            self._saves[save] = number, folder
            for shard in self._shards:
                shard.save(number, folder, save)
        return self._list_parts(self._saves[save][0])

    def _do_load(self, question: Message) -> Message:
        """Open and verify what the shards need of a set; what is not here is taken from other pservers."""
        header, folder = self._make_header(), question["folder"]
        fetch = functools.partial(Others(self._options, header, question["pservers"]).fetch, folder)
        for port, shard in enumerate(self._shards):
            found = Set(self._root / folder, fetch)  # of its own: each shard has a thread
            shard.load(Share(found, read_layout(header), header.pserver, port))
        return {}

    def _do_copy(self, question: Message) -> Message:
        """Keep copies of the parts of those pservers whose holder this one is."""
        header, hosts = self._make_header(), [host for host, _ in question["pservers"]]
        others = Others(self._options, header, question["pservers"])
        folder = self._options.get_cut_folder(header, question["step"])
        for owner, entries in enumerate(question["files"]):
            if header.pserver in list_holders(hosts, owner, question["copies"]):
                for entry in entries:
                    others.keep(folder.name, folder / Path(entry["name"]).name, Entry(**entry))
        return {}

    def _do_piece(self, question: Message) -> Message:
        """Return a piece of a file of a set, for a node that has none."""
        with (self._root / question["folder"] / Path(question["name"]).name).open("rb") as f:
            f.seek(question["at"])
            return {"piece": base64.b64encode(f.read(PIECE_BYTES)).decode()}

    def _do_drop(self, question: Message) -> Message | None:
        """Remove the parts of a save once they are on the disk: it has failed, or they are taken."""
        number, folder = self._saves[question["save"]]
        found = [shard.parts.get(number) for shard in self._shards]
        if None in found:
            return None
        for entry in (entry for own in found if isinstance(own, list) for entry in own):
            (folder / entry.name).unlink(missing_ok=True)
        return {}

    def _do_seal(self, question: Message) -> Message:
        """Write the manifest, once all parts of all pservers are on the disk."""
        header, data = self._make_header(), question["manifest"]
        exported = "chain" in data["extra"]
        number = data["step"] + (EXPORTS if exported else 0)
        folder = self._options.get_cut_folder(header, number)
        with closing(Content(folder / header.name)) as f:
            files = [Entry(**entry) for entry in data["files"]]
            manifest = Manifest(**data | {"files": files} | describe_part(PartFile(f)))
        write_manifest(folder, manifest)
        if exported:
            set_newest(self._options.export_dir, manifest, folder.name)
        else:
            sync_folder(self._root)
            self._remove_older(manifest)
        for shard in self._shards:  # their other threads add to the parts
            for old in [old for old in list(shard.parts) if old <= number]:
                del shard.parts[old]
        return {}

    def _remove_older(self, newest: Manifest) -> None:
        """Keep the newest sets of this training, and what is no set only if it is newer than they are."""
        own = [one for one in find_sets(self._root) if one[1].run == newest.run]
        kept = [folder.name for folder, _ in own[: self._options.snapshot_keep]]
        for folder in self._root.glob("cut-*-*"):
            sealed = any(folder == one for one, _ in own)
            if folder.name not in kept and (sealed or self._is_abandoned(folder, min(kept))):
                shutil.rmtree(folder, ignore_errors=True)

    def _is_abandoned(self, folder: Path, oldest: str) -> bool:
        """Return True for a cut of this job that was never sealed and never will be."""
        if (folder / MANIFEST).exists() or folder.name > oldest:
            return False
        with contextlib.suppress(OSError, ValueError):
            for path in folder.glob("*.bin"):
                with closing(Content(path)) as f:
                    return PartFile(f).read_header().job_id == self._options.job.job_id
        return False

    # -- begin

    def _do_sets(self, question: Message) -> Message:
        """List the snapshots in a folder, and their files that are here."""
        root = self._root / question["folder"]
        return {
            "sets": [
                {"folder": str(folder), "name": folder.name, "step": one.step, "job_id": one.job_id}
                | {"run": one.run, "trainers": len(one.extra["trainers"]), "objects": list(one.objects)}
                | {"written": one.extra["written"], "files": len(one.files)}
                | {"here": [entry.name for entry in one.files if (folder / entry.name).exists()]}
                for folder, one in find_sets(root)
                if "trainers" in one.extra
            ],
            "root": str(root),
        }

    def _do_go(self, question: Message) -> Message:
        self._begun = question["folder"]
        return {}

    def _do_state(self, question: Message) -> Message | None:
        """Return what the snapshot has of the trainer, once trainer 0 has said which one it is."""
        if self._begun is None:
            return None
        if not self._begun:
            return {"state": None, "step": 0}
        found = read_manifest(self._root / self._begun)
        return {"state": found.extra["trainers"].get(str(question["trainer"])), "step": found.step}


def find_sets(root: Path) -> list[tuple[Path, Manifest]]:
    """Return the whole sets in a folder, which may be one itself, the newest first."""
    found: list[tuple[Path, Manifest]] = []
    for folder in [root, *root.glob("cut-*-*")]:
        with contextlib.suppress(OSError, SetError):
            found.append((folder, read_manifest(folder)))
    return sorted(found, key=lambda one: float(one[1].extra.get("written", 0)), reverse=True)
