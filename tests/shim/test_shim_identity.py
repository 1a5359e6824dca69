"""Who may have an id, and how many at once: one runner each, whoever asks and however often."""

from __future__ import annotations

import concurrent.futures

import pytest
from shim_box import HOME, PATH, Box
from shim_frames import parse


def test_another_digest_is_refused(box: Box) -> None:
    box.run("echo", "one", id="x", options=("--digest", "aa"))
    for words in (("run", "x", "--digest", "bb", "--", "touch", "/workspace/ran"), ("follow", "x", "0", "--digest", "bb"), ("kill", "x", "--digest", "bb")):
        last = box.call(*words).last
        assert (last.name, last["name"]) == ("error", "id_in_use")
    assert box.run("echo", "one", id="x", options=("--digest", "aa")).hello["state"] == "attached"
    box.plain("pkill -9 -x deepinfrad")
    last = box.call("run", "x", "--digest", "bb", "--", "touch", "/workspace/ran").last
    assert (last.name, last["name"]) == ("error", "id_in_use")
    assert box.plain("ls /workspace") == ""


def test_one_id_many_times_at_once_runs_once(box: Box) -> None:
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: box.emulator.exec(box.id, PATH, "run", "x", "--", "sh", "-c", "echo x >>/workspace/n; sleep 0.3; exit 6"), range(12)))
    assert box.plain("cat /workspace/n") == "x\n"
    lasts = [parse(answer.text()).last for answer in answers]
    assert {frame.name for frame in lasts} <= {"exit", "more"} and any(frame.name == "exit" for frame in lasts)
    assert all(frame.fields.get("code", "6") == "6" for frame in lasts)


def test_200_at_once(box: Box) -> None:
    with concurrent.futures.ThreadPoolExecutor(200) as pool:
        made = list(pool.map(lambda number: box.run("sh", "-c", f"echo {number}; sleep 0.2; echo end; exit {number % 250}", id=f"many-{number}"), range(200)))
    for number, one in enumerate(made):
        assert one.out == b"%d\nend\n" % number and one.exit.number("code") == number % 250
    options = [word for number in range(200) for word in ("--ack", f"many-{number}")]
    box.run("true", id="last", options=tuple(options))
    assert box.ps().keys() == {"last"}


def test_an_unwritable_workspace_is_told_by_its_first_errno(box: Box) -> None:
    box.plain(f"chmod 755 {HOME}/claims")
    answer = box.emulator.exec(box.id, "setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups", PATH, "run", "x", "--", "true")
    last = parse(answer.text()).last
    assert (last["name"], last["errno"], last["started"]) == ("claim_failed", "13", "no")


def test_several_users_in_one_sandbox(box: Box) -> None:
    answer = box.emulator.exec(box.id, "setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups", PATH, "run", "x", "--", "id", "-u")
    assert parse(answer.text()).out == b"1234\n"
    for words in (("follow", "x", "0"), ("kill", "x")):  # a socket that another user may have made is not trusted, not by root either
        last = box.call(*words).last
        assert (last.name, last["name"]) == ("error", "socket_foreign")
    box.run("echo", "secret", id="y")
    answer = box.emulator.exec(box.id, "setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups", PATH, "follow", "y", "0")
    last = parse(answer.text()).last
    assert (last.name, last["name"]) == ("error", "socket_foreign")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_no_process_to_be_had(box: Box, processes: str) -> None:
    words = ("setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups", "--inh-caps=-all", "prlimit", "--nproc=" + processes, PATH, "run", "x", "--", "touch", "/tmp/ran")
    last = parse(box.emulator.exec(box.id, *words).text()).last
    assert (last.name, last["name"], last["errno"], last["started"]) == ("error", "spawn_failed", "11", "no")
    assert box.plain("ls /tmp") == "" and box.ps() == {}
