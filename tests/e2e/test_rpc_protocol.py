"""The protocol from outside: framing, order, limits, and what is refused, on a real daemon.

A connection that misbehaves gets the right error; the daemon, and every other connection, lives on.
"""

from __future__ import annotations

import json
import pathlib
import random
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer, RpcFailure
from support.scenes import workspace
from support.schema import LINE_LIMIT

KEY = DEFAULT_KEY
PING = {"jsonrpc": "2.0", "id": 1, "method": "daemon.ping", "params": {}}
HELLO = {"client": "tests/1", "protocol": 1}


def refusal(peer: Peer, request_id: Any) -> dict[str, Any]:
    """The error that answers `request_id`; the next message must be it."""
    answer = peer.read()
    assert "error" in answer, answer
    assert answer["id"] == request_id
    error: dict[str, Any] = answer["error"]
    return error


def announce(peer: Peer, message: dict[str, Any]) -> None:
    """Tells the validator of a right message that the test is going to send as bytes of its own."""
    assert peer._conversation is not None
    peer._conversation.sent(message)


def read_to_the_end(peer: Peer) -> bytes:
    """What is still to come. A daemon that closes with something unread in its hands resets the connection: an end as well."""
    rest = b""
    try:
        while line := peer.read_line():
            rest += line
    except ConnectionResetError:
        pass
    return rest


def assert_closed(peer: Peer) -> None:
    assert read_to_the_end(peer) == b""


def alive(peer: Peer) -> bool:
    return peer.call("daemon.ping") == {}


@pytest.fixture
def bystander(daemon: Daemon) -> Iterator[Peer]:
    """Another connection; at the end of the test it must have noticed nothing."""
    with daemon.peer() as peer:
        yield peer
        assert alive(peer)


@pytest.fixture
def untouched(emulator: Emulator) -> Iterator[Emulator]:
    """A cloud that must not be asked for anything."""
    yield emulator
    assert emulator.count() == 0, emulator.requests()


# -- hello


def test_hello_says_who_answers(daemon: Daemon) -> None:
    with daemon.peer(hello=False) as peer:
        told = peer.hello()
        status = peer.status()
        assert told["protocol"] == 1
        assert told["capabilities"] == ["exec.attach", "exec.stdin", "fs", "generation", "idle_stop", "pull_changed_only", "put_into_directory", "raw_output"]
        assert told["instance"] == status["daemon"]["instance"]
        assert told["version"] == status["daemon"]["version"]
        assert told["account"] == {"configured": True, "fingerprint": status["account"]["fingerprint"]}


def test_output_comes_behind_its_line_to_those_who_ask(daemon: Daemon) -> None:
    script = r"printf 'text\n'; printf '\203\377\000\n' >&2; yes 'a line' | head -c 3000000; sleep 0.1; printf '{}\n'"
    text = b"text\n" + (b"a line\n" * 428572)[:3000000] + b"{}\n"
    with daemon.peer(hello=False) as peer, daemon.peer() as other:
        peer.hello(raw_output=True)
        kinds = []
        for one in (peer, other):  # the second did not ask
            name = one.start("/bin/sh", "-c", script)
            first = one.notification("exec.output", exec_id=name)
            one._unclaimed.insert(0, {"method": "exec.output", "params": first})
            done = one.finish(name)
            assert (done.stdout, done.stderr) == (text, b"\203\377\0\n")
            kinds.append(first.keys() & {"raw", "data", "data_b64"})
        assert kinds[0] == {"raw"} and "raw" not in kinds[1]


@pytest.mark.parametrize("method", ["daemon.ping", "daemon.status", "exec.start", "no.such.method"])
def test_hello_comes_first(daemon: Daemon, untouched: Emulator, method: str) -> None:
    params = {"exec_id": "early", "key": KEY, "argv": ["true"]} if method == "exec.start" else {}
    with daemon.peer(hello=False) as peer:
        peer.send_wrong({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
        assert refusal(peer, 7)["data"]["name"] == "hello_required"
        peer.hello()  # the connection can still be made good
        assert alive(peer)
        assert peer.call("exec.list") == {"execs": []}


def test_hello_and_more_in_one_write(daemon: Daemon) -> None:
    with daemon.peer(hello=False, validate=False) as peer:
        first = {"jsonrpc": "2.0", "id": 0, "method": "hello", "params": HELLO}
        peer.send_raw(b"".join(json.dumps(each).encode() + b"\n" for each in (first, PING)))
        assert [peer.read()["id"] for _ in range(2)] == [0, 1]


def test_hello_ignores_what_it_does_not_know(daemon: Daemon) -> None:
    with daemon.peer(hello=False) as peer:
        told = peer.call("hello", {"client": "later/9", "protocol": {"min": 1, "max": 9, "preferred": 4}, "locale": "de", "pid": 1,
                                   "nested": {"a": [1, None]}})
        assert told["protocol"] == 1
        assert alive(peer)


@pytest.mark.parametrize("protocol", [1, {"min": 1, "max": 1}, {"min": 1, "max": 2**53}])
def test_versions_that_fit(daemon: Daemon, protocol: Any) -> None:
    with daemon.peer(hello=False) as peer:
        assert peer.call("hello", {"client": "tests/1", "protocol": protocol})["protocol"] == 1


@pytest.mark.parametrize("protocol", [2, {"min": 2, "max": 3}])
def test_versions_that_do_not_fit(daemon: Daemon, protocol: Any) -> None:
    with daemon.peer(hello=False) as peer:
        with pytest.raises(RpcFailure) as refused:
            peer.call("hello", {"client": "future/3", "protocol": protocol})
        assert refused.value.name == "incompatible_protocol"
        assert "protocol 1" in refused.value.message and "future/3" in refused.value.message
        peer.send("daemon.ping")
        assert peer.read()["error"]["data"]["name"] == "hello_required"


@pytest.mark.parametrize("params, field", [
    ({"protocol": 1}, "client"),
    ({"client": "", "protocol": 1}, "client"),
    ({"client": "x" * 257, "protocol": 1}, "client"),
    ({"client": 5, "protocol": 1}, "client"),
    ({"client": "x"}, "protocol"),
    ({"client": "x", "protocol": 0}, "protocol"),
    ({"client": "x", "protocol": "1"}, "protocol"),
    ({"client": "x", "protocol": True}, "protocol"),
    ({"client": "x", "protocol": 1.5}, "protocol"),
    ({"client": "x", "protocol": None}, "protocol"),
    ({"client": "x", "protocol": {"min": 1}}, "protocol.max"),
    ({"client": "x", "protocol": {"min": 2, "max": 1}}, "protocol.max"),
    ({"client": "x", "protocol": {"min": 0, "max": 1}}, "protocol.min"),
    ({"client": "x", "protocol": 1, "raw_output": "yes"}, "raw_output"),
])
def test_hello_that_makes_no_sense(daemon: Daemon, params: dict[str, Any], field: str) -> None:
    with daemon.peer(hello=False) as peer:
        peer.send_wrong({"jsonrpc": "2.0", "id": "h", "method": "hello", "params": params})
        error = refusal(peer, "h")
        assert error["data"]["name"] == "invalid_params" and f"'{field}'" in error["message"]


# -- requests that are refused


def test_unknown_method(peer: Peer) -> None:
    peer.send_wrong({"jsonrpc": "2.0", "id": 5, "method": "sandbox.frobnicate", "params": {}})
    error = refusal(peer, 5)
    assert error["data"]["name"] == "method_not_found" and "sandbox.frobnicate" in error["message"]
    assert alive(peer)


EXEC = {"exec_id": "refused", "key": KEY, "argv": ["true"]}


@pytest.mark.parametrize("method, params, field", [
    ("daemon.ping", {"extra": 1}, "extra"),
    ("daemon.status", {"verbose": True}, "verbose"),
    ("daemon.health", {"extra": None}, "extra"),
    ("rpc.discover", {"extra": 1}, "extra"),
    ("plan.list", {"extra": 1}, "extra"),
    ("account.set", {"api_key": "k", "extra": 1}, "extra"),
    ("sandbox.ensure", {"key": KEY, "disk_gb": 5}, "disk_gb"),
    ("sandbox.ensure", {"key": {**KEY, "user": "me"}}, "key.user"),
    ("sandbox.release", {"key": KEY, "mode": "keep", "extra": 1}, "extra"),
    ("sandbox.list", {"extra": 1}, "extra"),
    ("sandbox.get", {"key": KEY, "extra": 1}, "extra"),
    ("sandbox.start", {"key": KEY, "extra": 1}, "extra"),
    ("sandbox.stop", {"key": KEY, "extra": 1}, "extra"),
    ("sandbox.terminate", {"key": KEY, "extra": 1}, "extra"),
    ("exec.start", {**EXEC, "pty": True}, "pty"),
    ("exec.ack", {"exec_id": "e", "offset": 0, "extra": 1}, "extra"),
    ("exec.cancel", {"exec_id": "e", "extra": 1}, "extra"),
    ("exec.list", {"extra": 1}, "extra"),
])
def test_a_field_nobody_knows_is_refused_before_any_effect(peer: Peer, untouched: Emulator, method: str, params: dict[str, Any],
                                                           field: str) -> None:
    peer.send_wrong({"jsonrpc": "2.0", "id": 1000, "method": method, "params": params})
    error = refusal(peer, 1000)
    assert error["data"]["name"] == "invalid_params" and f"'{field}'" in error["message"]
    assert "nothing was done" in error["message"]
    status = peer.status()
    assert status["sandboxes"] == [] and status["counters"]["execs"] == 0


@pytest.mark.parametrize("change, field", [
    ({"exec_id": ""}, "exec_id"),
    ({"exec_id": ".x"}, "exec_id"),
    ({"exec_id": "a/b"}, "exec_id"),
    ({"exec_id": "x\n"}, "exec_id"),
    ({"exec_id": "é"}, "exec_id"),
    ({"exec_id": "x" * 129}, "exec_id"),
    ({"exec_id": 5}, "exec_id"),
    ({"exec_id": None}, "exec_id"),
    ({"key": {"profile": "p"}}, "key.task"),
    ({"key": {"profile": "", "task": "t"}}, "key.profile"),
    ({"key": {"profile": "p", "task": "t" * 1025}}, "key.task"),
    ({"key": "default"}, "key"),
    ({"key": None}, "key"),
    ({"argv": []}, "argv"),
    ({"argv": "true"}, "argv"),
    ({"argv": [5]}, "argv[0]"),
    ({"argv": ["echo", None]}, "argv[1]"),
    ({"argv": [{"b64": "!"}]}, "argv[0].b64"),
    ({"argv": [{"b64": "QQ=="[:3]}]}, "argv[0].b64"),
    ({"argv": [{"b64": "QQ==", "x": 1}]}, "argv[0]"),
    ({"argv": ["a\0b"]}, "argv"),
    ({"argv": None}, "argv"),
    ({"script": "true"}, "script"),  # together with argv
    ({"login": True}, "login"),
    ({"cwd": 5}, "cwd"),
    ({"cwd": "/a\0b"}, "cwd"),
    ({"env": ["A=1"]}, "env"),
    ({"env": {"A": 1}}, "env.A"),
    ({"env": {"": "x"}}, ""),
    ({"env": {"A=B": "x"}}, "A=B"),
    ({"env": {"A\0B": "x"}}, "env"),
    ({"env": {"A": "x\0"}}, "env"),
    ({"stdin": 1}, "stdin"),
    ({"timeout_s": 0}, "timeout_s"),
    ({"timeout_s": -1}, "timeout_s"),
    ({"timeout_s": "5"}, "timeout_s"),
    ({"timeout_s": None}, "timeout_s"),
    ({"merge_output": 1}, "merge_output"),
    ({"window": 4095}, "window"),
    ({"window": 16777217}, "window"),
    ({"window": 1e300}, "window"),
    ({"persistent": "yes"}, "persistent"),
    ({"plan": ""}, "plan"),
    ({"plan": "x" * 129}, "plan"),
])
def test_a_command_that_makes_no_sense_is_refused_before_any_effect(peer: Peer, untouched: Emulator, change: dict[str, Any],
                                                                    field: str) -> None:
    peer.send_wrong({"jsonrpc": "2.0", "id": 1000, "method": "exec.start", "params": {**EXEC, **change}})
    error = refusal(peer, 1000)
    assert error["data"]["name"] == "invalid_params" and field in error["message"], error
    status = peer.status()
    assert status["sandboxes"] == [] and status["counters"]["execs"] == 0


@pytest.mark.parametrize("line", [
    b"[]",
    b"[1,2]",
    json.dumps([PING]).encode(),
    json.dumps([PING, {**PING, "id": 2}]).encode(),
])
def test_batches_are_refused_whole(peer: Peer, untouched: Emulator, line: bytes) -> None:
    peer.send_raw(line + b"\n")
    error = refusal(peer, None)
    assert error["data"]["name"] == "invalid_request" and "batch" in error["message"]
    assert alive(peer)


@pytest.mark.parametrize("line", [b"5", b'"ping"', b"null", b"true", b"1e5"])
def test_a_request_is_an_object(peer: Peer, line: bytes) -> None:
    peer.send_raw(line + b"\n")
    assert refusal(peer, None)["data"]["name"] == "invalid_request"
    assert alive(peer)


@pytest.mark.parametrize("change", [
    {"jsonrpc": "1.0"}, {"jsonrpc": 2.0}, {"jsonrpc": None}, {"jsonrpc": "2.0 "}, {"method": 5}, {"method": None}, {"params": []},
    {"params": [1]}, {"params": None}, {"params": "x"}, {"params": 5},
])
def test_a_request_of_another_shape(peer: Peer, change: dict[str, Any]) -> None:
    peer.send_wrong({**PING, "id": 77, **change})
    assert refusal(peer, 77)["data"]["name"] == "invalid_request"
    assert alive(peer)


@pytest.mark.parametrize("missing", ["jsonrpc", "method"])
def test_a_request_that_lacks_something(peer: Peer, missing: str) -> None:
    peer.send_wrong({name: value for name, value in {**PING, "id": 77}.items() if name != missing})
    assert refusal(peer, 77)["data"]["name"] == "invalid_request"
    assert alive(peer)


@pytest.mark.parametrize("bad", [None, True, 1.5, [], {}, [1], {"a": 1}, 10**30])
def test_ids_are_strings_or_integers(peer: Peer, bad: Any) -> None:
    peer.send_raw(json.dumps({**PING, "id": bad}).encode() + b"\n")
    assert refusal(peer, None)["data"]["name"] == "invalid_request"
    assert alive(peer)


@pytest.mark.parametrize("good", ["", "x", "é\n\"\\\u0001", "1", 0, -1, 2**63 - 1, -(2**63), 2**64 - 1, "\U0001f600", "x" * 100000])
def test_ids_come_back_as_they_were(peer: Peer, good: Any) -> None:
    peer.send_wrong({"jsonrpc": "2.0", "id": good, "method": "no.such", "params": {}})
    answer = peer.read()
    assert answer["id"] == good and type(answer["id"]) is type(good)
    assert alive(peer)


def test_a_request_without_id_is_carried_out_and_not_answered(peer: Peer, emulator: Emulator) -> None:
    before = peer.status()["counters"]["rpc_requests"]
    peer.send("daemon.ping", notification=True)
    peer.send_raw(b'{"jsonrpc":"2.0","method":"no.such"}\n')  # not even an error is answered
    peer.send("sandbox.ensure", {"key": KEY}, notification=True)
    peer.notification("sandbox.progress")
    while peer.call("sandbox.list")["sandboxes"][0]["state"] != "running":
        pass
    assert peer.status()["counters"]["rpc_requests"] > before + 3
    assert emulator.count("POST /v1/sandboxes") == 1


def test_params_may_be_left_out_where_none_is_needed(peer: Peer) -> None:
    peer.send_wrong({"jsonrpc": "2.0", "id": 9, "method": "exec.start"})  # needed here
    assert refusal(peer, 9)["data"]["name"] == "invalid_params"
    with_none = {"jsonrpc": "2.0", "id": 10, "method": "daemon.ping"}
    announce(peer, with_none)
    peer.send_raw(json.dumps(with_none).encode() + b"\n")
    assert peer.result(10) == {}


# -- framing


@pytest.mark.parametrize("line", [
    b"{",
    b'{"jsonrpc":"2.0","id":1,"method":"daemon.ping"',
    b"hello?",
    b"GET / HTTP/1.1\r",
    json.dumps(PING).encode() + b" x",
    json.dumps(PING).encode() + json.dumps(PING).encode(),
    b"{'id':1}",
    b'{"id":1,}',
    b'{"id":01}',
    b'{"id":NaN}',
    b'{"id":1}//',
    b'\xef\xbb\xbf{"id":1}',
    b'{"jsonrpc":"2.0","id":1,"method":"\x01"}',
    b"\x00",
    json.dumps(PING).encode() + b"\x00",
    b"\x00" * 1000,
    # not UTF-8: a lone byte, an overlong slash, a surrogate, beyond the last character, a cut one
    b'{"jsonrpc":"2.0","id":"\xff","method":"daemon.ping"}',
    b'{"jsonrpc":"2.0","id":"\xc0\xaf","method":"daemon.ping"}',
    b'{"jsonrpc":"2.0","id":"\xed\xa0\x80","method":"daemon.ping"}',
    b'{"jsonrpc":"2.0","id":"\xf4\x90\x80\x80","method":"daemon.ping"}',
    b'{"jsonrpc":"2.0","id":"\xe2\x82","method":"daemon.ping"}',
    b'{"jsonrpc":"2.0","id":"\\ud800","method":"daemon.ping"}',
    b'{"jsonrpc":"2.0","id":"\\udc00x","method":"daemon.ping"}',
    b'{"jsonrpc":"2.0","id":"\\u12","method":"daemon.ping"}',
], ids=lambda line: repr(line[:40]))
def test_what_is_not_json_is_answered_and_the_connection_closed(daemon: Daemon, peer: Peer, bystander: Peer, untouched: Emulator,
                                                                line: bytes) -> None:
    peer.send_raw(line + b"\n" + json.dumps(PING).encode() + b"\n")
    assert refusal(peer, None)["data"]["name"] == "parse_error"
    assert_closed(peer)  # and the ping behind it was not answered


def test_an_error_does_not_hide_the_answers_before_it(peer: Peer) -> None:
    asked = [peer.send("daemon.ping") for _ in range(20)]
    peer.send_raw(b"}\n")
    assert [peer.read()["id"] for _ in asked] == asked
    assert refusal(peer, None)["data"]["name"] == "parse_error"
    assert_closed(peer)


@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b"   \n", b"\t\n\n\n"])
def test_blank_lines_mean_nothing(peer: Peer, blank: bytes) -> None:
    peer.send_raw(blank)
    assert alive(peer)


@pytest.mark.parametrize("form", [b"%s\r\n", b"  %s  \n", b"\t%s\t\n"])
def test_blanks_around_a_message(peer: Peer, form: bytes) -> None:
    message = {**PING, "id": 500}
    announce(peer, message)
    peer.send_raw(form % json.dumps(message).encode())
    assert peer.result(500) == {}


def padded(length: int, request_id: int = 900) -> bytes:
    """A ping of exactly `length` bytes, the newline included."""
    message = json.dumps({**PING, "id": request_id}).encode()
    return message + b" " * (length - len(message) - 1) + b"\n"


def test_a_line_of_exactly_the_limit(peer: Peer) -> None:
    message = {**PING, "id": 900}
    announce(peer, message)
    peer.send_raw(padded(LINE_LIMIT))
    assert peer.result(900) == {}
    assert alive(peer)


def test_a_line_of_one_byte_more(peer: Peer, bystander: Peer) -> None:
    peer.send_raw(padded(LINE_LIMIT + 1))
    error = refusal(peer, None)
    assert error["data"]["name"] == "line_too_long" and str(LINE_LIMIT) in error["message"]
    assert_closed(peer)


def test_a_line_without_end_is_refused_at_the_limit(daemon: Daemon, peer: Peer, bystander: Peer) -> None:
    before = daemon.rss_kib()
    peer.send_raw(b'{"x":"' + b"y" * (LINE_LIMIT - 6))
    assert refusal(peer, None)["data"]["name"] == "line_too_long"
    assert_closed(peer)
    assert daemon.rss_kib() < before + 16 * 1024


def test_who_goes_on_writing_too_much_is_cut_off(daemon: Daemon, peer: Peer, bystander: Peer) -> None:
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        for _ in range(64):
            peer.send_raw(b"z" * LINE_LIMIT)
    assert refusal(peer, None)["data"]["name"] == "line_too_long"
    assert_closed(peer)


def test_almost_a_line_of_input_arrives_whole(peer: Peer) -> None:
    start = {"jsonrpc": "2.0", "id": 800, "method": "exec.start",
             "params": {"exec_id": "large", "key": KEY, "script": "wc -c; exit 7", "stdin": "€" * 340_000}}
    announce(peer, start)
    peer.send_raw(json.dumps(start, ensure_ascii=False).encode() + b"\n")
    assert peer.result(800)["accepted"] is True
    done = peer.finish("large")
    assert (done.stdout, done.returncode) == (b"1020000\n", 7)


def test_a_line_trickled_byte_by_byte(peer: Peer, bystander: Peer) -> None:
    line = json.dumps({**PING, "id": 321, "method": "daemon.health"}).encode() + b"\n"
    announce(peer, json.loads(line))
    for byte in line:
        peer.send_raw(bytes([byte]))
        if byte in b"{}":
            assert alive(bystander)
    assert peer.result(321) == {"health": []}


def test_two_lines_cut_at_every_place(peer: Peer) -> None:
    both = b"".join(json.dumps({**PING, "id": number}).encode() + b"\n" for number in (1001, 1002))
    for cut in range(1, len(both), 7):
        for number in (1001, 1002):
            announce(peer, {**PING, "id": number})
        peer.send_raw(both[:cut])
        peer.send_raw(both[cut:])
        assert [peer.read()["id"] for _ in range(2)] == [1001, 1002]


def test_500_pings_at_once_are_answered_in_order(peer: Peer) -> None:
    ids = list(range(2000, 2500))
    for number in ids:
        announce(peer, {**PING, "id": number})
    peer.send_raw(b"".join(json.dumps({**PING, "id": number}).encode() + b"\n" for number in ids))
    assert [peer.read()["id"] for _ in ids] == ids


def test_requests_that_wait_hold_up_neither_commands_nor_what_is_answered_at_once(peer: Peer, emulator: Emulator) -> None:
    """Of one connection: what is too much is refused, and the rest gets through."""
    peer.sh("true")
    doomed = peer.start("sleep", "600")
    emulator.config(boot_ms=600_000)
    waiting = [peer.send("sandbox.ensure", {"key": {"profile": "other", "task": "t"}, "persistent": False}) for _ in range(257)]
    with pytest.raises(RpcFailure) as refused:
        peer.result(waiting[-1])
    assert (refused.value.name, refused.value.retryable) == ("too_many_requests", True)
    assert peer.call("daemon.ping") is not None
    with pytest.raises(RpcFailure) as refused:
        peer.start("true", exec_id="one-too-many")
    assert refused.value.name == "too_many_requests"
    listed = [one["exec_id"] for one in peer.call("exec.list")["execs"]]
    assert doomed in listed and "one-too-many" not in listed
    assert peer.call("exec.cancel", {"exec_id": doomed}) == {"confirmed": True}
    assert peer.finish(doomed).reason == "cancelled"


def test_a_command_is_acknowledged_past_requests_that_wait(peer: Peer, emulator: Emulator) -> None:
    peer.sh("true")
    exec_id = peer.start(script="until [ -e go ]; do sleep 0.01; done; head -c 2000000 /dev/zero; exit 7", window=65536)
    go = workspace(emulator) / "go"
    emulator.config(boot_ms=600_000)
    for _ in range(300):
        peer.send("sandbox.ensure", {"key": {"profile": "other", "task": "t"}, "persistent": False})
    go.touch()
    ended = peer.finish(exec_id)
    assert (ended.returncode, len(ended.stdout)) == (7, 2_000_000)


def test_a_half_closed_client_gets_what_it_asked_for(peer: Peer, emulator: Emulator) -> None:
    emulator.config(boot_ms=200)
    asked = peer.send("sandbox.ensure", {"key": KEY})
    command = peer.start("sh", "-c", "echo late; exit 3")
    peer.socket.shutdown(socket.SHUT_WR)
    assert peer.result(asked)["created"] is True
    done = peer.finish(command, acknowledge=False)
    assert (done.stdout, done.returncode) == (b"late\n", 3)
    assert_closed(peer)


def test_half_a_line_at_the_end_is_no_request(peer: Peer, bystander: Peer, untouched: Emulator) -> None:
    asked = peer.send("daemon.ping")
    peer.send_raw(json.dumps({**PING, "method": "plan.list"}).encode())  # no newline
    peer.socket.shutdown(socket.SHUT_WR)
    assert peer.result(asked) == {}
    assert_closed(peer)


# -- JSON at its edges


def test_deep_nesting_is_refused_or_ignored_but_never_followed(daemon: Daemon, bystander: Peer, untouched: Emulator) -> None:
    for depth in (10, 100, 10_000, 250_000):
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            core = opening * depth + ("1" if opening != "[" else "") + closing * depth
            if len(core) > LINE_LIMIT - 200:
                continue
            with daemon.peer() as peer:
                peer.send_raw(f'{{"jsonrpc":"2.0","id":null,"method":"daemon.ping","params":{{"x":{core}}}}}\n'.encode())
                assert refusal(peer, None)["data"]["name"] in ("invalid_request", "parse_error")
            with daemon.peer() as peer:
                peer.send_raw((opening * (LINE_LIMIT // len(opening) - 1) + "\n").encode())
                assert refusal(peer, None)["data"]["name"] == "parse_error"


@pytest.mark.parametrize("number", [
    "1e999", "-1e999", "1e-999", "123456789012345678901234567890", "0." + "1" * 1000, "9" * 5000, "18446744073709551616", "1e15",
])
def test_huge_numbers(peer: Peer, untouched: Emulator, number: str) -> None:
    """Refused by the field that cannot hold it; a line that is not understood at all closes the connection, and nothing more."""
    assert peer._conversation is not None
    peer._conversation.sent_wrong(77)
    peer.send_raw(f'{{"jsonrpc":"2.0","id":77,"method":"exec.ack","params":{{"exec_id":"e","offset":{number}}}}}\n'.encode())
    answer = peer.read()
    if answer["id"] is None:
        assert answer["error"]["data"]["name"] == "parse_error"
        assert_closed(peer)
    else:
        # To JSON Schema 1e15 is an integer, and no double is closer to 1e-999 than 0.
        wanted = "exec_not_found" if number in ("1e15", "1e-999") else "invalid_params"
        assert answer["error"]["data"]["name"] == wanted
        assert alive(peer)


@pytest.mark.parametrize("timeout", ["1e308", "1e18", "0.0000001"])
def test_extreme_timeouts(peer: Peer, timeout: str) -> None:
    start = {"jsonrpc": "2.0", "id": 77, "method": "exec.start",
             "params": {"exec_id": "extreme", "key": KEY, "argv": ["sh", "-c", "echo x; sleep 1"], "timeout_s": float(timeout)}}
    announce(peer, start)
    peer.send_raw(json.dumps(start).encode() + b"\n")
    assert peer.result(77)["accepted"] is True
    done = peer.finish("extreme")
    assert (done.reason, done.returncode) == (("timed_out", 124) if float(timeout) < 1 else ("exited", 0))


def test_of_what_is_said_twice_the_last_counts(peer: Peer, bystander: Peer, untouched: Emulator) -> None:
    """JSON leaves it open (RFC 8259, section 4); here it is always the last one, as in most readers."""
    for number, line in [
        (2, '{"jsonrpc":"2.0","id":1,"id":2,"method":"daemon.ping"}'),
        (3, '{"jsonrpc":"2.0","id":3,"method":"plan.list","method":"daemon.ping"}'),
        (4, '{"jsonrpc":"2.0","id":4,"method":"daemon.ping","params":{"x":1},"params":{}}'),
    ]:
        announce(peer, {**PING, "id": number})
        peer.send_raw(line.encode() + b"\n")
        assert peer.result(number) == {}
    twice = {"jsonrpc": "2.0", "id": 5, "method": "sandbox.get", "params": {"key": {"profile": "a", "task": "last"}}}
    announce(peer, twice)
    peer.send_raw(json.dumps(twice).replace('"task"', '"task": "first", "task"').encode() + b"\n")
    assert "a/last" in peer.answer(5)["error"]["message"]


def test_nul_characters_in_names_are_just_characters(peer: Peer) -> None:
    key = {"profile": "a\0b", "task": "\0"}
    done = peer.run("echo", "fine", key=key)
    assert done.stdout == b"fine\n"
    assert [each["key"] for each in peer.call("sandbox.list")["sandboxes"]] == [key]


def test_a_name_of_the_greatest_length_in_characters(peer: Peer) -> None:
    key = {"profile": "é" * 1024, "task": "\U0001f600" * 1024}
    assert peer.run("true", key=key).returncode == 0
    assert peer.call("sandbox.get", {"key": key})["sandbox"]["key"] == key


# -- connections that come and go


def test_many_connections_come_and_go(daemon: Daemon, bystander: Peer) -> None:
    descriptors = pathlib.Path(f"/proc/{daemon.pid}/fd")
    before = len(list(descriptors.iterdir()))
    for number in range(200):
        peer = daemon.peer(hello=number % 2 == 0, validate=False)
        if number % 3 == 0:
            peer.send_raw(b'{"half":')
        peer.close()
    assert alive(bystander)
    wait_until(lambda: len(list(descriptors.iterdir())) <= before, "every connection is closed")


def mutations(seed: int, count: int) -> Iterator[bytes]:
    """Right messages with something broken about each. The same for the same seed."""
    chance = random.Random(seed)
    rights: list[dict[str, Any]] = [
        PING,
        {"jsonrpc": "2.0", "id": 2, "method": "hello", "params": HELLO},
        {"jsonrpc": "2.0", "id": "s", "method": "daemon.status", "params": {}},
        {"jsonrpc": "2.0", "id": 4, "method": "sandbox.get", "params": {"key": KEY}},
        {"jsonrpc": "2.0", "id": 5, "method": "sandbox.stop", "params": {"id": "sb_1", "force": True}},
        {"jsonrpc": "2.0", "id": 6, "method": "exec.ack", "params": {"exec_id": "e1", "offset": 10}},
        {"jsonrpc": "2.0", "id": 7, "method": "exec.cancel", "params": {"exec_id": "e1", "signal": "TERM"}},
        {"jsonrpc": "2.0", "id": 8, "method": "exec.list", "params": {"key": KEY}},
    ]
    values: list[Any] = [None, True, -1, 0, 1e308, 2**64, "", "x" * 3000, [], {}, [[]], {"b64": "?"}, "\0", "\ud83d\ude00"]

    def replaced(value: Any) -> Any:
        if isinstance(value, dict) and value and chance.random() < 0.7:
            name = chance.choice(list(value))
            return {**value, name: replaced(value[name])}
        return chance.choice(values)

    for _ in range(count):
        right = chance.choice(rights)
        how = chance.randrange(6)
        line = bytearray(json.dumps(replaced(right) if how == 0 else right).encode())
        if how == 1:  # flipped bits
            for _ in range(chance.randrange(1, 4)):
                line[chance.randrange(len(line))] ^= 1 << chance.randrange(8)
        elif how == 2:  # cut short
            del line[chance.randrange(len(line)):]
        elif how == 3:  # something inserted
            at = chance.randrange(len(line))
            line[at:at] = chance.choice([b"\x00", b"\xff", b'"', b"{", b"]", b",", b"\\", b"\n", b"9" * 400, b"\\u0000", b"[" * 2000])
        elif how == 4:  # something said again
            at = chance.randrange(len(line))
            line[at:at] = line[chance.randrange(len(line)):]
        yield bytes(line) + b"\n"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_broken_messages_disturb_nobody(daemon: Daemon, bystander: Peer, seed: int) -> None:
    """Every line is answered or ends its connection, and another connection does not notice."""
    raw: Peer | None = None
    for number, line in enumerate(mutations(seed, 300)):
        if raw is None:
            raw = daemon.peer()
            raw._conversation = None  # ids are broken too: what comes back is only held to be JSON
        try:
            raw.send_raw(line + b'{"jsonrpc":"2.0","id":"mark","method":"daemon.ping"}\n')
            while (answered := raw.read_line()) and json.loads(answered)["id"] != "mark":
                pass
        except (BrokenPipeError, ConnectionResetError):
            answered = b""
        if not answered:
            raw.close()
            raw = None
        if number % 10 == 0:
            assert alive(bystander)
    if raw is not None:
        raw.close()
    assert daemon.alive()


# -- errors: each name is one that its schema has, whatever the platform says; every answer above and below is held against it


ASKED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "plan.list": ("GET", "/v1/sandboxes/catalog", {}),
    "sandbox.ensure": ("POST", "/v1/sandboxes", {"key": {"profile": "p", "task": "new"}}),
    "sandbox.start": ("POST", "/v1/sandboxes", {"key": {"profile": "p", "task": "new"}}),
    "sandbox.stop": ("POST", "/v1/sandboxes/{id}/stop", {"key": KEY}),
    "sandbox.release": ("POST", "/v1/sandboxes/{id}/stop", {"key": KEY, "mode": "stop"}),
    "sandbox.terminate": ("DELETE", "/v1/sandboxes/{id}", {"key": KEY}),
}


@pytest.mark.parametrize("method", ASKED)
def test_what_the_platform_refuses_has_a_name_that_fits(peer: Peer, emulator: Emulator, method: str) -> None:
    verb, route, params = ASKED[method]
    peer.call("sandbox.ensure", {"key": KEY})
    for status, name in [(400, "cloud_error"), (401, "unauthorized"), (403, "unauthorized"), (404, "cloud_error"), (413, "cloud_error"),
                         (418, "cloud_error"), (422, "cloud_error")]:
        if status == 404 and "{id}" in route:
            continue  # there it is about the sandbox
        emulator.fault({"status": status, "body": json.dumps({"error": "the platform's words"})}, method=verb, route=route)
        with pytest.raises(RpcFailure) as failed:
            peer.call(method, params)
        assert failed.value.name == name, status
        assert f"answered {status}: the platform's words" in failed.value.message
    assert [each["id"] for each in peer.status()["sandboxes"]] == [emulator.sandboxes()[0]["sandbox_id"]]


@pytest.mark.parametrize("method", ["sandbox.ensure", "sandbox.start"])
def test_a_plan_that_is_not_offered(make_daemon: Callable[..., Daemon], method: str) -> None:
    with make_daemon(plan="colossal").start().peer() as peer:
        with pytest.raises(RpcFailure) as failed:
            peer.call(method, {"key": KEY})
        assert failed.value.name == "unknown_plan" and "colossal" in failed.value.message
        assert peer.status()["sandboxes"] == []
