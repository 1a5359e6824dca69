"""The process handle by itself: when it tells the exit, what a kill does, who waits for whom."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Callable

import pytest
from fake_daemon import NO_ANSWER, FakeDaemon, Message, Peer, Refusal, eventually

from deepinfra_sandboxd import Client, DaemonNotRunning, Exec
from deepinfra_sandboxd.process import CommandHandle

PIPE = 65536  # bytes that a pipe holds here


def make(client: Client, **options: object) -> CommandHandle:
    arguments = {"limit": 30.0, "interrupted": lambda: False, "quiet": False, **options}
    begin: Callable[[], Exec] = lambda: client.prepare(["x"], merge_output=True)
    return CommandHandle(begin, **arguments)  # type: ignore[arg-type]


def elsewhere(call: Callable[[], object]) -> object:
    """Run *call* on a thread that did not make the handle."""
    box: list[object] = []
    thread = threading.Thread(target=lambda: box.append(call()))
    thread.start()
    thread.join(10)
    return box[0]


def read_all(handle: CommandHandle) -> bytes:
    data = b""
    while piece := os.read(handle.stdout.fileno(), 4096):
        data += piece
    return data


def started(fake: FakeDaemon, count: int = 1) -> str:
    return str(fake.wait_for("exec.start", count)["exec_id"])


def descriptors() -> set[str]:
    """What this process has open, each pipe and socket by its own number."""
    found = set()
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # of the listing itself, or closed by others
            found.add(os.readlink(f"/proc/self/fd/{each}"))
    return found


def test_the_exit_is_told_only_after_the_last_byte_and_the_end_of_the_pipe(fake: FakeDaemon, client: Client) -> None:
    handle = make(client, limit=0.0)
    exec_id = started(fake)
    payload = os.urandom(4 * PIPE)
    sender = fake.peer().flood(exec_id, payload)
    eventually(lambda: pipe_level(handle) >= PIPE, "the pipe is full")
    client.call("daemon.ping")
    sender.join(5)
    fake.peer().exit(exec_id, 3)
    client.call("daemon.ping")  # the exit has been received by now
    assert handle.poll() is None and handle.returncode is None
    assert read_all(handle) == payload
    assert handle.wait(5) == 3 and handle.poll() == 3 and handle.returncode == 3


def test_a_handle_has_no_pid_and_a_real_descriptor(fake: FakeDaemon, client: Client) -> None:
    handle = make(client)
    assert not hasattr(handle, "pid")
    assert os.fstat(handle.stdout.fileno())
    fake.peer().exit(started(fake))
    handle.wait(5)


def test_output_is_in_the_pipe_while_the_command_runs(fake: FakeDaemon, client: Client) -> None:
    handle = make(client, limit=0.0)
    fake.peer().output(started(fake), b"live")
    assert os.read(handle.stdout.fileno(), 4096) == b"live"
    assert handle.poll() is None
    handle.kill()
    handle.wait(5)


def test_kill_keeps_the_output_and_does_not_wait_for_a_daemon_that_ignores_it(fake: FakeDaemon, client: Client) -> None:
    fake.on["exec.cancel"] = lambda peer, params: NO_ANSWER
    handle = make(client)
    exec_id = started(fake)
    fake.peer().output(exec_id, b"partial")
    assert os.read(handle.stdout.fileno(), 4096) == b"partial"
    begun = time.monotonic()
    handle.kill()
    handle.kill()
    assert time.monotonic() - begun < 0.5  # the answer never comes: whoever waits for it waits for seconds
    assert read_all(handle) == b""
    assert handle.wait(1) == 130 and time.monotonic() - begun < 1
    assert fake.wait_for("exec.cancel")["exec_id"] == exec_id
    assert fake.methods().count("exec.cancel") == 1


def test_the_tail_that_comes_with_a_kill_is_kept_and_later_output_is_dropped(fake: FakeDaemon, client: Client) -> None:
    def last_words(peer: Peer, params: Message) -> Message:
        peer.output(params["exec_id"], b"caught")
        return {"confirmed": False}

    fake.on["exec.cancel"] = last_words
    handle = make(client)
    exec_id = started(fake)
    handle.kill()
    assert read_all(handle) == b"caught"
    handle.wait(5)
    fake.peer().output(exec_id, b"z" * (4 << 20))  # acknowledged, or this would get stuck
    fake.peer().exit(exec_id, 130, "cancelled")
    assert client.call("daemon.ping") == {}


def test_kill_with_a_full_pipe_that_nobody_reads(fake: FakeDaemon, client: Client) -> None:
    handle = make(client)
    fake.peer().flood(started(fake), b"x" * (1 << 20))
    eventually(lambda: pipe_level(handle) >= PIPE, "the pipe is full")
    handle.kill()
    assert handle.wait(1) == 130
    assert len(read_all(handle)) == PIPE


def pipe_level(handle: CommandHandle) -> int:
    import fcntl
    import struct
    import termios

    answer = fcntl.ioctl(handle.stdout.fileno(), termios.FIONREAD, b"\0" * 4)
    return int(struct.unpack("i", answer)[0])


def test_a_full_pipe_holds_up_no_other_command(fake: FakeDaemon, client: Client) -> None:
    stuck = make(client)
    fake.peer().flood(started(fake), b"x" * (1 << 20))
    eventually(lambda: pipe_level(stuck) >= PIPE, "the pipe is full")
    other = make(client)
    exec_id = started(fake, 2)
    fake.peer().output(exec_id, b"fast")
    fake.peer().exit(exec_id)
    assert other.wait(5) == 0 and read_all(other) == b"fast"
    stuck.kill()
    assert stuck.wait(5) == 130


def test_a_kill_before_the_command_was_sent_stops_it_from_being_sent(fake: FakeDaemon, client: Client) -> None:
    may_begin, killed = threading.Event(), threading.Event()

    def slow() -> Exec:
        may_begin.set()
        killed.wait(5)
        return client.prepare(["x"])

    handle = CommandHandle(slow, limit=5, interrupted=lambda: False, quiet=False)
    may_begin.wait(5)
    handle.kill()
    killed.set()
    assert handle.wait(5) == 130
    client.call("daemon.ping")
    assert "exec.start" not in fake.methods()


def test_a_reader_that_went_away_neither_ends_nor_blocks_the_command(fake: FakeDaemon, client: Client) -> None:
    handle = make(client)
    exec_id = started(fake)
    handle.stdout.close()
    fake.peer().output(exec_id, b"x" * (4 << 20))
    fake.peer().exit(exec_id, 5)
    assert handle.wait(5) == 5
    assert "exec.cancel" not in fake.methods()


@pytest.mark.parametrize(
    ("reason", "started_as", "code", "text"),
    [
        ("lost", "yes", 125, b"was not run again"),
        ("lost", "unknown", 125, b"infrastructure error, not a command failure: why"),
        ("failed", "no", 125, b"nothing was run"),
        ("timed_out", "yes", 124, b"[Command timed out"),
        ("cancelled", "yes", 130, b"[Command cancelled: why]"),
        ("exited", "yes", 9, b""),
    ],
)
def test_how_each_end_reads(
    fake: FakeDaemon, client: Client, reason: str, started_as: str, code: int, text: bytes
) -> None:
    for quiet in (False, True):
        handle = make(client, quiet=quiet)
        exec_id = started(fake, 2 if quiet else 1)
        fake.peer().output(exec_id, b"some")
        fake.peer().exit(exec_id, code, reason, started=started_as, message="why")
        output = read_all(handle)
        assert handle.wait(5) == code
        if quiet or not text:
            assert output == b"some"
        else:
            assert output.startswith(b"some\n[") and text in output


def test_what_cannot_be_sent_ends_with_125_and_a_text(fake: FakeDaemon, client: Client) -> None:
    def not_running() -> Exec:
        raise DaemonNotRunning("not running", hint="start it")

    def impossible() -> Exec:
        return client.prepare(script="cat", input="\ud800")

    def broken() -> Exec:
        raise ZeroDivisionError("bug")

    for begin, text in (
        (not_running, "not running; nothing was run]\n[start it]"),
        (impossible, "surrogates not allowed; nothing was run"),
        (broken, "ZeroDivisionError"),
    ):
        handle = CommandHandle(begin, limit=5, interrupted=lambda: False, quiet=False)
        assert text in read_all(handle).decode()
        assert handle.wait(5) == 125
    assert "exec.start" not in fake.methods()


def test_a_refused_start_is_told_as_such(fake: FakeDaemon, client: Client) -> None:
    def refuse(peer: Peer, params: Message) -> Message:
        raise Refusal("cap_reached", "5 of 5 sandboxes", hint="stop one")

    fake.on["exec.start"] = refuse
    handle = make(client)
    output = read_all(handle).decode()
    assert "5 of 5 sandboxes; nothing was run" in output and "[stop one]" in output
    assert handle.wait(5) == 125


def test_only_the_thread_that_made_the_handle_waits_in_poll(fake: FakeDaemon, client: Client) -> None:
    handle = make(client)
    exec_id = started(fake)
    begun = time.monotonic()
    assert elsewhere(handle.poll) is None
    assert time.monotonic() - begun < 0.5  # a waiting poll takes its full second
    threading.Timer(0.1, lambda: fake.peer().exit(exec_id, 4)).start()
    assert handle.poll() == 4
    assert 0.05 < time.monotonic() - begun < 2


def test_the_wait_in_poll_ends_at_the_deadline_and_at_an_interrupt(fake: FakeDaemon, client: Client) -> None:
    begun = time.monotonic()
    handle = make(client, limit=0.1)
    assert handle.poll() is None
    assert 0.08 < time.monotonic() - begun < 0.5
    begun = time.monotonic()
    assert handle.poll() is None
    assert time.monotonic() - begun < 0.5  # past its deadline it waits no more
    asked = threading.Event()
    interrupted = make(client, interrupted=asked.is_set)
    threading.Timer(0.05, asked.set).start()
    begun = time.monotonic()
    assert interrupted.poll() is None
    assert time.monotonic() - begun < 0.8  # well before its second is over
    for each in (handle, interrupted):
        each.kill()
        each.wait(5)


def test_no_descriptor_is_left_behind(fake: FakeDaemon, client: Client) -> None:
    client.call("daemon.ping")
    before = descriptors()
    for number in range(20):
        handle = make(client)
        fake.peer().exit(started(fake, number + 1))
        handle.wait(5)
        handle.stdout.close()
    assert descriptors() - before == set()  # what other tests have left behind may go meanwhile
