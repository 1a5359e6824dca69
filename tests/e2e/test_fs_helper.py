"""The program that runs inside sandboxes for transfers, where what matters cannot be arranged from outside."""

from __future__ import annotations

import errno
import gzip
import io
import itertools
import json
import os
import pathlib
import random
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from support.trees import describe

SOURCES = pathlib.Path(__file__).resolve().parents[2] / "daemon" / "sync"
Helper = dict[str, Any]  # the program's names

STEPS = ("open", "write", "rename", "unlink", "mkdir", "rmdir", "symlink", "chmod", "fchmod", "utime", "close")
KILLED = 99
NOBODY = 65534


def load(root: pathlib.Path, *files: str) -> Helper:
    """Its /workspace is below `root`."""
    text = "\n".join((SOURCES / f"{name}.py").read_text() for name in ("helper", "helper_remove", *files))
    names: Helper = {}
    exec(compile(text, "helper", "exec"), names)
    names["WORKSPACE"] = os.fsencode(root / "workspace")
    names["HOME"] = names["WORKSPACE"] + b"/.deepinfra-sandboxd"
    names["SYNC"] = names["HOME"] + b"/sync"
    (root / "workspace" / ".deepinfra-sandboxd" / "sync").mkdir(parents=True)
    return names


@pytest.mark.parametrize("verb", ["sweep", "drop"])
def test_an_operation_that_is_still_at_work_is_swept_all_the_same(tmp_path: pathlib.Path, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = load(tmp_path)
    sync = pathlib.Path(os.fsdecode(helper["SYNC"]))
    (sync / "dead").mkdir()
    (sync / "dead" / "part-000000").write_text("x")
    seen = os.listdir
    refused = []

    def listdir(path: bytes) -> list[bytes]:
        """Whatever has been seen of its directory, it makes one more file there, as it does for each that it puts in place."""
        names = seen(path)
        try:
            (sync / "dead" / "new-1").write_text("stale")
        except FileNotFoundError:
            refused.append(path)
        return names

    monkeypatch.setattr(helper["os"], "listdir", listdir)
    helper[verb]({"op": {"sweep": "alive", "drop": "dead"}[verb], "live": []})
    monkeypatch.undo()
    assert refused and list(sync.iterdir()) == []


class Sent:
    """An archive as it has come to a sandbox, in parts; its members fail, are torn, have long names, holes and closed directories."""

    TORN, IN_THE_WAY = 7, 9

    def __init__(self, root: pathlib.Path) -> None:
        self.helper = load(root, "helper_parts", "helper_unpack")
        self.helper["PATIENCE"] = 0  # nothing more comes
        self.tree = root / "workspace" / "t"
        self.tree.mkdir()
        (self.tree / "taken").touch(0o600)
        self.expected: dict[bytes, tuple[Any, ...]] = {b"taken": ("file", 0o600, b"")}
        chance = random.Random(1)
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
            self._add(archive, "closed", tarfile.DIRTYPE, b"", 0o555)
            for i in range(1, 16):
                name = {self.IN_THE_WAY: "taken/x"}.get(i, f"closed/{'long' * 40 if i % 4 == 0 else ''}{i}")
                self._add(archive, name, tarfile.REGTYPE, chance.randbytes((0, 10, 9000, 700, 5000)[i % 5 - 2]), 0o640)
                if i in (self.TORN, self.IN_THE_WAY):
                    self.expected.pop(os.fsencode(name))
            self._add(archive, "closed/link", tarfile.SYMTYPE, b"1", 0o777)
        whole = stream.getvalue()
        self.directory = directory = pathlib.Path(os.fsdecode(self.helper["SYNC"])) / "op"
        directory.mkdir()
        cuts = [0, *sorted(chance.sample(range(1, len(whole)), 30)), len(whole)]
        for i, (begin, end) in enumerate(itertools.pairwise(cuts)):
            part = whole[begin:end]
            (directory / f"part-{i:06}").write_bytes(gzip.compress(part) if i % 3 == 2 else part)
        (directory / "torn-000000").write_text(json.dumps([self.TORN]))
        self.parts = len(cuts) - 1
        if os.getuid() == 0:
            for path in [self.tree.parent, *self.tree.parent.rglob("*")]:
                os.chown(path, NOBODY, NOBODY)

    def _add(self, archive: tarfile.TarFile, name: str, kind: bytes, content: bytes, mode: int) -> None:
        member = tarfile.TarInfo(str(self.tree / name)[1:])
        member.type, member.mode, member.mtime = kind, mode, 1_700_000_000
        if kind == tarfile.SYMTYPE:
            member.linkname = content.decode()
            self.expected[os.fsencode(name)] = ("link", content)
        elif kind == tarfile.DIRTYPE:
            self.expected[os.fsencode(name)] = ("directory", mode)
        else:
            member.size = len(content)
            self.expected[os.fsencode(name)] = ("file", mode, content)
        archive.addfile(member, io.BytesIO(content))

    def call(self, parts: int | None, prepare: Callable[[], None] = lambda: None) -> dict[str, Any] | None:
        """The answer of a process of its own, which is an ordinary user's, and *prepared*; None if it was killed."""
        asked = {"op": "op", "live": ["op"], "parts": parts, "ours": [], "claims": [str(self.tree), str(self.tree / "nothing")], "into": ""}
        back, out = os.pipe()
        child = os.fork()
        if child == 0:
            if os.getuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            os.getpid = lambda: 7  # as where each call has process ids of its own
            prepare()
            os.writev(out, [self.helper["answer"]("unpack", json.dumps(asked))])
            os._exit(0)
        os.close(out)
        with open(back, "rb") as file:
            answer = file.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, KILLED)
        return json.loads(answer) if code == 0 else None


def die_before(step: int) -> None:
    """Before it takes that one of STEPS."""
    steps = itertools.count()

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if next(steps) == step:
                os._exit(KILLED)
            return real(*args, **named)

        return call

    for name in STEPS:
        setattr(os, name, counted(getattr(os, name)))


@pytest.fixture
def room() -> Iterator[pathlib.Path]:
    """Where any user may go."""
    with tempfile.TemporaryDirectory(prefix="helper-") as directory:
        os.chmod(directory, 0o755)
        yield pathlib.Path(directory)


@pytest.mark.parametrize("early", [True, False], ids=["while parts come", "when all are there"])
def test_unpacking_that_is_killed_at_any_step_goes_on_where_it_was(room: pathlib.Path, early: bool) -> None:
    for step in itertools.count():
        sent = Sent(room / str(step))
        killed = sent.call(None if early else sent.parts, partial(die_before, step)) is None
        answer = sent.call(sent.parts)
        assert answer == {"failed": [[Sent.IN_THE_WAY, "in_the_way", "there is a file of that name"]], "gone": [1], "into": False}, step
        assert describe(sent.tree) == sent.expected, step
        assert [each.name for each in sent.directory.parent.iterdir() if "answer-" not in each.name] == ["op.done"], step
        assert sent.call(sent.parts) == answer, step
        if not killed:
            break
    assert step > 100


def fails(name: str, suffix: bytes, code: int, times: int = 1, first: Callable[[], None] = lambda: None) -> None:
    """What os.*name* does to the first paths of that end."""
    real, left = getattr(os, name), itertools.count()

    def call(*args: Any, **named: Any) -> Any:
        if args[-1 if name == "rename" else 0].endswith(suffix) and next(left) < times:
            first()
            raise OSError(code, os.strerror(code))
        return real(*args, **named)

    setattr(os, name, call)


def test_an_answer_that_finds_no_room_is_kept_when_there_is_some_again(room: pathlib.Path) -> None:
    sent = Sent(room)
    answer = sent.call(sent.parts, partial(fails, "rename", b"op.done", errno.ENOSPC))
    assert answer is not None and not sent.directory.exists()
    assert sent.call(sent.parts) == answer


def test_what_is_swept_is_not_told_as_failed(room: pathlib.Path) -> None:
    """A file fails, as the directory that it was made in has another name; the parts at hand are still read."""
    sent = Sent(room)
    swept = partial(os.rename, sent.directory, sent.directory.parent / "op.gone-1")
    assert sent.call(sent.parts, partial(fails, "rename", b"closed/15", errno.ENOENT, first=swept)) == {"error": "parts_missing"}
    assert (sent.tree / "closed").stat().st_mode & 0o777 == 0o555  # nobody has begun since
    assert not (sent.directory.parent / "op.done").exists()


def test_giving_up_leaves_what_is_on_its_way(room: pathlib.Path) -> None:
    sent = Sent(room)
    (sent.directory / ".put-1").write_text("of the platform, which gives it its name when it is whole")
    no_space = {"error": "no_space: No space left on device"}
    assert sent.call(None, partial(fails, "rename", b"closed/2", errno.ENOSPC)) == no_space
    assert [each.name for each in sent.directory.iterdir()] == [".put-1"]
    assert sent.call(sent.parts) == no_space
    assert not sent.directory.exists()
