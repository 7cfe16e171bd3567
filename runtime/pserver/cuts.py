"""Snapshots of a pserver: it writes its parts of cuts, and begins with one, as trainer 0 says.

Trainer 0 asks for the parts of a step, which are answered once they are on the disk, and seals the set when
it has the answers of all pservers. Pserver 0 also keeps what the trainers note of themselves. In the main
thread, but for open_part() and the reading of parts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO

from ..client.control import Control, Message
from ..files.manifest import MANIFEST, Manifest, SetError, hash_file, parse_manifest, write_manifest
from ..files.saving import DIGEST_BYTES, MAX_HEADER_BYTES, START, Entry, File, Header
from .pserver_options import Options
from .threads import Shard

_PIECE = 1 << 20


@dataclass(slots=True, eq=False)
class Asker:
    """A trainer's connection, and its questions that wait for their answers."""

    control: Control
    trainer: int
    waiting: list[Message] = field(default_factory=list)


class Cuts:
    """State of one pserver's snapshots. Raises no errors: they are answers."""

    def __init__(self, options: Options, shards: Sequence[Shard], make_header: Callable[[], Header]) -> None:
        """`make_header` gives that of port 0; it is called once a trainer has connected."""
        self._options, self._shards, self._make_header = options, shards, make_header
        self._root = options.snapshot_dir
        self._askers: list[Asker] = []
        self._failed: dict[int, str] = {}  # steps whose cut failed
        self._notes: dict[int, dict[int, Message]] = {}  # step -> trainer -> its state
        self._ended: dict[int, tuple[int, Message]] = {}  # trainer -> pass that it has ended, its state then
        self._begun: Message | None = None  # that with which to begin, as trainer 0 has said
        self._all_begun = False  # all pservers have it, as trainer 0 has said to pserver 0
        self._restoring: set[int] = set()  # shards that are reading
        self._why = ""  # they could not

    # -- cuts

    def open_part(self, port: int, step: int) -> tuple[Path, File]:
        """Return folder and file for a cut of a shard. Raises OSError."""
        folder = self._root / f"cut-{self._options.epoch:04d}-{step:012d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).unlink(missing_ok=True)  # of another training
        return folder, File(folder, replace(self._make_header(), port=port))

    def note_cut(self, port: int, step: int, why: str) -> None:
        """Note that a cut of a shard is on the disk, or why not."""
        if why:
            self._failed[step] = f"port {port}: {why}"
        self._answer_waiting()

    def note_restored(self, port: int, why: str) -> None:
        """Note that a shard has begun with a cut, or why not."""
        self._restoring.discard(port)
        self._why = self._why or why
        self._answer_waiting()

    # -- questions

    def add(self, sock: socket.socket, trainer: int) -> Asker:
        """Take over a trainer's connection; call hear() when it has something to read."""
        self._askers.append(asker := Asker(Control(sock), trainer))
        return asker

    def hear(self, asker: Asker) -> bool:
        """Answer what a trainer asks; return False, and close the connection, if it is gone."""
        try:
            while (question := asker.control.receive(0)) is not None:
                if question.get("ask") == "note":
                    self._note(asker.trainer, question)
                elif question.get("ask") == "go":
                    self._all_begun = True
                else:
                    asker.waiting.append(question)
            self._answer_waiting()
            return True
        except OSError:
            self._askers.remove(asker)
            asker.control.close()
            return False

    def _answer_waiting(self) -> None:
        """Answer all questions that can be answered now."""
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
        """Close all connections."""
        for asker in self._askers:
            asker.control.close()

    def _answer(self, asker: Asker, question: Message) -> Message | None:
        """Return the answer, or None if it must wait."""
        try:
            what = question["ask"]
            if what == "state":
                begun = self._begun if self._all_begun else None
                return begun and self._tell_state(asker.trainer, begun)
            if asker.trainer != 0 or what not in ("sets", "begin", "parts", "seal"):
                return {"error": f"trainer {asker.trainer} may not ask for {what}"}
            answer: Message | None = getattr(self, f"_do_{what}")(question)
            return answer
        except (LookupError, TypeError, ValueError, OSError) as e:
            return {"error": str(e) or type(e).__name__}

    def _note(self, trainer: int, note: Message) -> None:
        """Keep what a trainer says of itself; there is no answer."""
        if note["ended"]:
            self._ended[trainer] = note["pass"], note["state"]
        else:
            self._notes.setdefault(note["step"], {})[trainer] = note["state"]

    @staticmethod
    def _tell_state(trainer: int, begun: Message) -> Message:
        state = begun["trainers"].get(str(trainer))
        return {"state": state, "step": begun["step"], "passes": begun["passes"]}

    def _do_parts(self, question: Message) -> Message | None:
        step = question["step"]
        if step in self._failed:
            return {"error": self._failed[step]}
        if any(step not in shard.parts for shard in self._shards):
            return None
        notes: dict[int, Message] = {}
        if self._make_header().pserver == 0:
            sync, number = question["all"], question["pass"]
            ended = {t: state for t, (of, state) in self._ended.items() if of == number or not sync}
            notes = ended | self._notes.get(step, {})
            if sync and len(notes) < self._options.num_gradient_servers:
                return None
            self._notes = {s: old for s, old in self._notes.items() if s > step}
        return {"files": [asdict(shard.parts[step]) for shard in self._shards], "trainers": notes}

    def _do_seal(self, question: Message) -> Message:
        data = question["manifest"]
        manifest = Manifest(**data | {"files": [Entry(**entry) for entry in data["files"]]})
        folder = self._root / f"cut-{manifest.epoch:04d}-{manifest.step:012d}"
        write_manifest(folder, manifest)
        self._remove_older(manifest)
        for shard in self._shards:
            shard.parts = {step: entry for step, entry in shard.parts.items() if step > manifest.step}
        return {"folder": str(folder)}

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
                with path.open("rb") as f:
                    return find_body(f)[0].job_id == self._options.job_id
        return False

    # -- begin

    def _do_sets(self, question: Message) -> Message:
        """List the sets in a folder from which this pserver can begin, the newest first."""
        root = Path(question["folder"]) if question["folder"] else self._root
        return {
            "sets": [
                {"folder": str(folder), "name": folder.name, "step": one.step}
                | {"job_id": one.job_id, "trainers": len(one.extra["trainers"])}
                for folder, one in find_sets(root)
                if self._lacks(folder, one) is None
            ],
            "root": str(root),
        }

    def _list_parts(self, manifest: Manifest) -> list[Entry]:
        """Return the parts that this pserver reads: its own, or all if they are of others."""
        header, known = self._make_header(), {entry.name: entry for entry in manifest.files}
        names = [replace(header, port=port).name for port in range(len(self._shards))]
        same = manifest.extra["shape"] == list_shape(header)
        return [known[name] for name in names] if same else list(manifest.files)

    def _lacks(self, folder: Path, manifest: Manifest) -> str | None:
        for entry in self._list_parts(manifest):
            path = folder / entry.name
            if not path.exists():
                return f"{path} is missing: let snapshot_dir be a folder that all nodes share"
        return None

    def _do_begin(self, question: Message) -> Message | None:
        """Begin as trainer 0 says, with a set or without; answered when all shards have read their parts."""
        if self._begun is None:
            self._begun = {"trainers": {}, "step": 0, "run": 0, "passes": 0}
            if question["folder"]:
                self._begin_with(Path(question["folder"]))
        if self._restoring:
            return None
        return {"error": self._why} if self._why else {"step": self._begun["step"], "run": self._begun["run"]}

    def _begin_with(self, folder: Path) -> None:
        manifest = parse_manifest(folder)[0]
        if (why := self._lacks(folder, manifest)) is not None:
            raise SetError(why)
        self._begun = {name: getattr(manifest, name) for name in ("step", "run", "passes")}
        self._begun["trainers"] = manifest.extra["trainers"]
        self._restoring = set(range(len(self._shards)))
        pipes = [os.pipe() for _ in self._shards]
        for shard, (out, _) in zip(self._shards, pipes, strict=True):
            shard.restore(out)
        ends = [into for _, into in pipes]
        threading.Thread(target=self._feed, args=(folder, manifest, ends), name="begin", daemon=True).start()

    def _feed(self, folder: Path, manifest: Manifest, ends: list[int]) -> None:
        """Give the shards their bodies, once all parts were compared with their digests."""
        try:
            for entry in self._list_parts(manifest):
                with (folder / entry.name).open("rb") as f:
                    if hash_file(f) != entry:
                        raise SetError(
                            f"{folder / entry.name} is damaged: its digest is not that of {MANIFEST}; remove "
                            f"{folder}, and the training goes on from the snapshot before"
                        )
            for port in range(len(self._shards)):
                with os.fdopen(ends.pop(0), "wb") as into:
                    for piece in self._read_part(folder, manifest, port):
                        into.write(piece)
        except BrokenPipeError:
            pass  # the shard says why
        except (OSError, ValueError) as e:
            self._why = str(e)
        for end in ends:
            os.close(end)

    def _read_part(self, folder: Path, manifest: Manifest, port: int) -> Iterator[bytes]:
        """Yield the body for a shard."""
        with (folder / replace(self._make_header(), port=port).name).open("rb") as f:
            length = find_body(f)[1]
            while piece := f.read(min(_PIECE, length)):
                length -= len(piece)
                yield piece


def list_shape(header: Header) -> list[int]:
    """Return the numbers that say which values are in which part."""
    return [header.pservers, header.ports_num, header.ports_num_for_sparse]


def find_body(f: IO[bytes]) -> tuple[Header, int]:
    """Go to the body of a part; return the header before it, and its length. Raises ValueError, OSError."""
    header, at = Header.decode(f.read(START.size + MAX_HEADER_BYTES))
    return header, f.seek(0, os.SEEK_END) - DIGEST_BYTES - f.seek(at)


def find_sets(root: Path) -> list[tuple[Path, Manifest]]:
    """Return the whole sets in a folder, which may be one itself, the newest first."""
    found: list[tuple[Path, Manifest]] = []
    for folder in [root, *root.glob("cut-*-*")]:
        with contextlib.suppress(OSError, SetError):
            found.append((folder, parse_manifest(folder)[0]))
    return sorted(found, key=lambda one: float(one[1].extra.get("written", 0)), reverse=True)
