"""Is the emulator as strict as what is known of the platform? Every row of the API, every limit, every fault.

As root each test runs twice, the second time with the emulator as an ordinary user, because its sandboxes are made differently then.
"""

import hashlib
import http.client
import json
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time

import pytest

from support.emulator import Emulator, find_binary, make_certificates, wait_until

NOBODY = 65534
NAP = f"9{os.getpid()}"  # seconds of a sleep that no other test run on this machine has
EXEC = "/v1/sandboxes/{id}/exec"
MIB = 1024 * 1024


@pytest.fixture(params=["root", "user"] if os.geteuid() == 0 else ["user"])
def start(request, tmp_path):
    """start(**config) -> a running Emulator, in both ways it can run."""
    started, directory = [], tmp_path
    options = {}
    if request.param == "user" and os.geteuid() == 0:
        directory = pathlib.Path(tempfile.mkdtemp(prefix="emulator-user-"))
        binary = shutil.copy(find_binary(), directory / "deep-sands-emulator")
        os.chown(directory, NOBODY, NOBODY)
        drop = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
        options = {"binary": pathlib.Path(binary), "command_prefix": drop}

    def make(tls=False, **config):
        place = directory / str(len(started))
        certificates = make_certificates(place / "tls") if tls else None
        quick = {"boot_ms": 0, "start_ms": 0, "stop_ms": 0}
        emulator = Emulator(place, tls=tls, certificates=certificates, **options, **{**quick, **config})
        emulator.directory.mkdir(parents=True)
        if options:
            for path in (place, *place.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
        started.append(emulator)
        return emulator.start()

    yield make
    for emulator in started:
        emulator.stop()
        print(emulator.log())
    if options:
        shutil.rmtree(directory)


@pytest.fixture
def emu(start):
    return start()


@pytest.fixture
def box(emu):
    """A running sandbox."""
    return emu.create_running()


def host_processes(needle):
    """Command lines on the host that contain `needle`."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if needle in line:
                found.append(line)
    return found


# -- the table, row by row


def test_create_answers_at_once_with_only_an_id(start):
    emu = start(boot_ms=300)
    answer = emu.request("POST", "/v1/sandboxes", {"image": "", "plan": "", "tags": {"a": "b"}, "timeout_seconds": 0})
    assert answer.status == 200 and list(answer.json) == ["sandbox_id"] and answer.json["sandbox_id"].startswith("sb_")
    assert answer.headers["content-type"] == "application/json" and "date" in answer.headers
    made = answer.json["sandbox_id"]
    shown = emu.request("GET", emu.path(made)).json
    assert set(shown) == {"sandbox_id", "plan", "image", "state", "tags", "created_at", "provider"}
    assert shown["state"] == "creating" and shown["plan"] == "medium" and shown["tags"] == {"a": "b"}
    assert abs(shown["created_at"] - time.time()) < 5 and isinstance(shown["created_at"], int)
    emu.wait_state(made, "running")


def test_create_accepts_an_empty_object_and_refuses_nonsense(emu):
    assert emu.request("POST", "/v1/sandboxes", {}).status == 200
    for body in (b"", b"[]", b"{", {"tags": []}, {"tags": {"a": 1}}, {"plan": 3}, {"timeout_seconds": "x"}, {"timeout_seconds": -1}):
        assert emu.request("POST", "/v1/sandboxes", body).status == 400, body
    emu.config(validation_status=422)
    assert emu.request("POST", "/v1/sandboxes", b"{").status == 422
    assert emu.stats()["sandboxes_created"] == 1


@pytest.mark.parametrize("status", ["400", "404", "422"])
def test_unknown_plan(start, status):
    assert start(unknown_plan=status).request("POST", "/v1/sandboxes", {"plan": "galactic"}).status == int(status)


def test_list_is_an_array_and_catalog_has_the_plans(emu):
    assert emu.request("GET", "/v1/sandboxes").json == []
    made = [emu.create(tags={"n": str(n)}) for n in range(3)]
    listed = emu.request("GET", "/v1/sandboxes").json
    assert [one["sandbox_id"] for one in listed] == made and [one["tags"]["n"] for one in listed] == ["0", "1", "2"]
    plans = emu.request("GET", "/v1/sandboxes/catalog").json
    assert all(set(plan) == {"id", "vcpu", "ram_gb", "disk_gb", "price_per_hour"} for plan in plans)
    assert next(plan for plan in plans if plan["id"] == "medium")["ram_gb"] == 4


def test_stop_and_start_are_asynchronous(start):
    emu = start(stop_ms=150, start_ms=150)
    box = emu.create_running()
    answer = emu.request("POST", emu.path(box, "/stop"))
    assert (answer.status, answer.json) == (200, {})
    assert emu.state(box) == "stopping"
    emu.wait_state(box, "stopped")
    answer = emu.request("POST", emu.path(box, "/start"))
    assert (answer.status, answer.json) == (200, {})
    assert emu.state(box) == "starting"
    emu.wait_state(box, "running")


def test_delete_is_final_and_stays_readable_for_a_while(start):
    emu = start(deleted_keep_s=0.3)
    box = emu.create_running()
    workspace = pathlib.Path(emu.sandbox(box)["workspace"])
    assert workspace.exists()
    answer = emu.request("DELETE", emu.path(box))
    assert (answer.status, answer.json) == (200, {})
    assert emu.state(box) == "deleted" and not workspace.exists()
    assert emu.request("GET", "/v1/sandboxes").json == []
    emu.config(list_deleted=True)
    assert [one["state"] for one in emu.request("GET", "/v1/sandboxes").json] == ["deleted"]
    for call in (emu.exec(box, "true"), emu.request("POST", emu.path(box, "/start")), emu.get(box, "/workspace/x")):
        assert call.status == 404
    emu.config(deleted_call_status="409")
    assert emu.exec(box, "true").status == 409
    assert emu.request("DELETE", emu.path(box)).status == 404
    wait_until(lambda: emu.request("GET", emu.path(box)).status == 404, "forgotten")


@pytest.mark.parametrize("status", ["404", "409", "200"])
def test_second_delete(start, status):
    emu = start(delete_when_deleted=status)
    box = emu.create()
    emu.request("DELETE", emu.path(box))
    assert emu.request("DELETE", emu.path(box)).status == int(status)


def test_exec_streams_lines_and_one_terminal_line(emu, box):
    answer = emu.exec(box, "bash", "-c", "echo out; sleep 0.05; echo err >&2; sleep 0.05; exit 3")
    assert answer.status == 200 and answer.headers["content-type"] == "application/x-ndjson"
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.lines == [{"stdout": "out\n"}, {"stderr": "err\n"}, {"returncode": 3}]


def test_output_comes_while_the_command_runs(emu, box):
    emu.put(box, "/workspace/gate", b"")
    with emu.open_exec(box, "bash", "-c", "echo first; while [ -e /workspace/gate ]; do sleep 0.01; done; echo last") as stream:
        assert stream.line() == {"stdout": "first\n"}
        assert emu.sh(box, "rm /workspace/gate").terminal == {"returncode": 0}
        assert list(stream) == [{"stdout": "last\n"}, {"returncode": 0}]


def test_argv_is_passed_without_a_shell(emu, box):
    words = ["$HOME", "a b", "", "*", "it's \"quoted\"", "\u20ac", "new\nline"]
    answer = emu.exec(box, "printf", "%s\\0", *words)
    assert answer.text() == "".join(word + "\0" for word in words)


def test_exec_refuses_nonsense_and_runs_nothing(emu, box):
    bodies = [{}, {"command": []}, {"command": "ls"}, {"command": [1]}, {"command": ["a\0b"]}, {"command": ["true"], "timeout_seconds": "1"}, b"x"]
    for body in bodies:
        assert emu.request("POST", emu.path(box, "/exec"), body).status == 400, body
    assert emu.commands() == []


def test_file_round_trip_and_parents(emu, box):
    content = os.urandom(300_000)
    answer = emu.put(box, "/workspace/a/b c/\u00e9+x", content)
    assert (answer.status, answer.json) == (200, {})
    back = emu.get(box, "/workspace/a/b c/\u00e9+x")
    assert back.status == 200 and back.body == content and back.headers["content-type"] == "application/octet-stream"
    assert emu.sh(box, "sha256sum < '/workspace/a/b c/\u00e9+x'").text().split()[0] == hashlib.sha256(content).hexdigest()
    assert emu.put(box, "/workspace/empty", b"").status == 200 and emu.get(box, "/workspace/empty").body == b""
    assert emu.put(box, "/workspace/a/b c/\u00e9+x", b"short").status == 200
    assert emu.get(box, "/workspace/a/b c/\u00e9+x").body == b"short"


def test_file_errors(emu, box):
    assert emu.get(box, "/workspace/none").status == 404
    assert emu.get(box, "/workspace/none/none").status == 404
    emu.sh(box, "mkdir /workspace/d; mkfifo /workspace/fifo")
    for path in ("/workspace/d", "/workspace/d/", "/workspace", "/workspace/fifo"):
        assert emu.get(box, path).status == 400, path
        assert emu.put(box, path, b"x").status == 400, path
    assert emu.request("GET", emu.path(box, "/fs/content")).status == 400


def test_chunked_upload(emu, box):
    connection = emu.connect()
    path = emu.path(box, "/fs/content?path=/workspace/chunked")
    connection.request("PUT", path, body=iter([b"one ", b"two"]), encode_chunked=True,
                       headers={"Authorization": "Bearer test-key", "Transfer-Encoding": "chunked"})
    assert connection.getresponse().read() == b"{}"
    connection.close()
    assert emu.get(box, "/workspace/chunked").body == b"one two"


def test_unknown_routes_and_methods(emu, box):
    for path in ("/", "/v1", "/v1/sandbox", "/v1/sandboxes/", "/v1/sandboxes/x/y", f"/v1/sandboxes/{box}/exec/more", "/v1/sandboxes/%zz"):
        assert emu.request("GET", path).status == 404, path
    assert emu.request("PATCH", emu.path(box)).status == 405
    assert emu.request("GET", emu.path(box, "/exec")).status == 405


# -- statuses and their bodies


def test_wrong_key_is_401_and_nothing_is_done(emu, box):
    calls = [("POST", "/v1/sandboxes", {}), ("GET", "/v1/sandboxes", None), ("GET", "/v1/sandboxes/catalog", None),
             ("POST", emu.path(box, "/exec"), {"command": ["true"]}), ("DELETE", emu.path(box), None)]
    for method, path, body in calls:
        assert emu.request(method, path, body, key="wrong").status == 401
        assert emu.request(method, path, body, headers={"Authorization": "Basic test-key"}).status == 401
    assert emu.commands() == [] and emu.stats()["sandboxes_created"] == 1 and emu.state(box) == "running"


def test_accounts_are_separate(start):
    emu = start(other_accounts="second,third", max_active=1)
    first = emu.create()
    answer = emu.request("POST", "/v1/sandboxes", {}, key="second")
    assert answer.status == 200
    assert emu.request("GET", emu.path(first), key="second").status == 404
    assert [one["sandbox_id"] for one in emu.request("GET", "/v1/sandboxes", key="second").json] == [answer.json["sandbox_id"]]
    assert emu.request("GET", "/v1/sandboxes", key="third").json == []


SHAPES = {
    "error": {"error": "Sandbox not found"},
    "error_message": {"error": {"message": "Sandbox not found"}},
    "detail": {"detail": "Sandbox not found"},
    "detail_error": {"detail": {"error": "Sandbox not found"}},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_error_shapes(start, shape):
    answer = start(error_shape=shape).request("GET", "/v1/sandboxes/sb_none")
    assert (answer.status, answer.json, answer.headers["content-type"]) == (404, SHAPES[shape], "application/json")


def test_html_errors(start):
    answer = start(error_shape="html").request("GET", "/v1/sandboxes/sb_none")
    assert answer.status == 404 and answer.headers["content-type"] == "text/html" and answer.body.startswith(b"<html>")


def test_exec_on_a_sandbox_that_does_not_run_is_409_and_did_not_start(start):
    emu = start(boot_ms=200, stop_ms=200)
    box = emu.create()
    assert emu.exec(box, "true").status == 409
    assert emu.put(box, "/workspace/x", b"").status == 409
    emu.wait_state(box, "running")
    emu.request("POST", emu.path(box, "/stop"))
    assert emu.state(box) == "stopping" and emu.exec(box, "true").status == 409
    emu.wait_state(box, "stopped")
    assert emu.exec(box, "true").status == 409
    assert emu.get(box, "/workspace/x").status == 409
    assert emu.commands() == []


def test_files_of_a_stopped_sandbox_by_switch(start):
    emu = start(fs_when_not_running="allow")
    box = emu.create_running()
    emu.put(box, "/workspace/x", b"1")
    emu.stop_sandbox(box)
    assert emu.get(box, "/workspace/x").body == b"1"


def test_start_and_stop_in_the_wrong_state(start):
    emu = start(boot_ms=300)
    box = emu.create()
    assert emu.request("POST", emu.path(box, "/stop")).status == 409
    assert emu.request("POST", emu.path(box, "/start")).status == 409
    emu.wait_state(box, "running")
    assert emu.request("POST", emu.path(box, "/start")).status == 409
    emu.config(start_when_running="200")
    assert emu.request("POST", emu.path(box, "/start")).status == 200
    emu.stop_sandbox(box)
    assert emu.request("POST", emu.path(box, "/stop")).status == 409
    emu.config(stop_when_stopped="200", stop_when_booting="200")
    assert emu.request("POST", emu.path(box, "/stop")).status == 200
    booting = emu.create()
    assert emu.request("POST", emu.path(booting, "/stop")).status == 200
    emu.wait_state(booting, "stopped")


def test_the_cap_has_its_exact_answer_and_counts_active_ones_only(start):
    emu = start(stop_ms=200)
    boxes = [emu.create_running() for _ in range(5)]
    answer = emu.request("POST", "/v1/sandboxes", {})
    assert answer.status == 429
    assert answer.body == b'{"detail":{"error":"You have reached the maximum of 5 active sandboxes"}}'
    assert "retry-after" not in answer.headers
    emu.request("POST", emu.path(boxes[0], "/stop"))
    assert emu.request("POST", "/v1/sandboxes", {}).status == 429  # stopping is active
    emu.wait_state(boxes[0], "stopped")
    emu.config(retry_after="2")
    emu.create()
    answer = emu.request("POST", emu.path(boxes[0], "/start"))
    assert answer.status == 429 and answer.headers["retry-after"] == "2"
    emu.request("DELETE", emu.path(boxes[1]))
    assert emu.request("POST", emu.path(boxes[0], "/start")).status == 200


def test_ids_must_be_percent_encoded(start):
    emu = start(id_style="odd")
    box = emu.create_running()
    assert {"/", " ", "%", "?", "#", "+"} <= set(box)
    assert emu.exec(box, "echo", "x").text() == "x\n"
    half_encoded = "/v1/sandboxes/" + box.replace(" ", "%20").replace("\u00e9", "%C3%A9")
    assert emu.request("GET", half_encoded).status == 404
    assert emu.count(f"POST {EXEC}") == 1


@pytest.mark.parametrize("style", ["link", "offset"])
def test_pagination(start, style):
    emu = start(pagination=style, page_size=2, max_active=9)
    made = [emu.create() for _ in range(5)]
    first = emu.request("GET", "/v1/sandboxes")
    assert [one["sandbox_id"] for one in first.json] == made[:2]
    if style == "link":
        assert first.headers["link"] == '</v1/sandboxes?cursor=2>; rel="next"'
        last = emu.request("GET", "/v1/sandboxes?cursor=4")
        assert [one["sandbox_id"] for one in last.json] == made[4:] and "link" not in last.headers
    else:
        assert [one["sandbox_id"] for one in emu.request("GET", "/v1/sandboxes?offset=2&limit=9").json] == made[2:4]


# -- files stay in /workspace


OUTSIDE = ["/etc/passwd", "/workspace/../etc/passwd", "/workspacex/a", "workspace/a", "a", "/", "//etc/x", "/workspace/a/../../etc/x",
           "/workspace/abs/passwd", "/workspace/rel/passwd", "/workspace/file", "/workspace/hop/passwd", "/proc/self/root/etc/passwd"]


@pytest.mark.parametrize("path", OUTSIDE)
def test_paths_outside_the_workspace(emu, box, path):
    emu.sh(box, "cd /workspace; mkdir a; ln -s /etc abs; ln -s ../etc rel; ln -s /etc/hostname file; ln -s abs hop")
    for answer in (emu.get(box, path), emu.put(box, path, b"x")):
        assert answer.status == 400 and "ERR_PATH_OUTSIDE_WORKSPACE" in answer.json["detail"], path


def test_links_inside_the_workspace_are_followed_as_the_sandbox_sees_them(emu, box):
    emu.sh(box, "cd /workspace; mkdir d; echo -n hi > d/f; ln -s /workspace/d abs; ln -s d rel; ln -s ../workspace/d/f up; ln -s loop loop; ln -s d/new dangling")
    for path in ("abs/f", "rel/f", "up", "d/../d/f", "../workspace/d/f"):
        assert emu.get(box, "/workspace/" + path).body == b"hi", path
    assert emu.get(box, "/workspace/loop").status == 400
    assert emu.put(box, "/workspace/dangling", b"made").status == 200
    assert emu.sh(box, "cat /workspace/d/new").text() == "made"


def test_a_link_swapped_in_during_uploads_never_leads_out(emu, box):
    """Races the walk against a sandbox that flips a directory into a link to /etc."""
    flip = "cd /workspace; mkdir real; while [ ! -e stop ]; do ln -sfn /etc x; ln -sfn real x; done"
    with emu.open_exec(box, "bash", "-c", flip) as stream:
        for _ in range(300):
            assert emu.put(box, "/workspace/x/planted", b"x").status in (200, 400, 404)
        emu.put(box, "/workspace/stop", b"")
        assert list(stream)[-1] == {"returncode": 0}
    assert not pathlib.Path("/etc/planted").exists()
    assert emu.sh(box, "test -e /etc/planted").terminal == {"returncode": 1}


# -- limits


def test_file_limit_of_100_mib_exactly(emu, box):
    limit = 100 * MIB
    content = b"x" * limit
    assert emu.put(box, "/workspace/big", content).status == 200
    assert emu.put(box, "/workspace/bigger", content + b"x").status == 413
    assert emu.get(box, "/workspace/big").body == content
    assert emu.sh(box, "ls /workspace; echo x >> /workspace/big").text() == "big\n"
    assert emu.get(box, "/workspace/big").status == 413


def test_too_large_without_a_declared_length(start):
    emu = start(file_limit_bytes=100_000)
    box = emu.create_running()
    connection = emu.connect()
    connection.request("PUT", emu.path(box, "/fs/content?path=/workspace/x"), body=iter([b"y" * 60_000] * 2), encode_chunked=True,
                       headers={"Authorization": "Bearer test-key", "Transfer-Encoding": "chunked"})
    assert connection.getresponse().status == 413
    connection.close()


def test_time_out_kills_the_group_and_ends_with_an_error_line(emu, box):
    began = time.monotonic()
    answer = emu.sh(box, "echo before; sleep 77 & sleep 78", timeout_seconds=1)
    assert answer.lines == [{"stdout": "before\n"}, {"error": "Command timed out after 1 seconds"}]
    assert 1 <= time.monotonic() - began < 3
    wait_until(lambda: not emu.processes(box), "all of the group is dead")
    assert emu.commands()[0]["ended"] == "timed_out"


def test_time_out_leaves_other_sessions_unless_it_kills_the_tree(emu, box):
    script = "setsid sleep 79 & sleep 80"
    emu.sh(box, script, timeout_seconds=1)
    wait_until(lambda: [one["cmdline"] for one in emu.processes(box)] == ["sleep 79 "], "the other session is left")
    emu.config(timeout_kill="tree")
    emu.sh(box, script.replace("79", "81"), timeout_seconds=1)
    wait_until(lambda: [one["cmdline"] for one in emu.processes(box)] == ["sleep 79 "], "nothing new is left")


@pytest.mark.parametrize("outcome, last", [("returncode", {"returncode": 124}), ("cut", None)])
def test_other_ends_of_a_time_out(start, outcome, last):
    emu = start(timeout_outcome=outcome)
    box = emu.create_running()
    with emu.open_exec(box, "sleep", "60", timeout_seconds=1) as stream:
        if last:
            assert list(stream) == [last]
        else:
            with pytest.raises((http.client.HTTPException, ConnectionError)):
                list(stream)


def test_zero_is_the_default_time_out_and_the_cap_beats_what_is_asked(start):
    emu = start(default_timeout_s=0.3, command_cap_s=0.6)
    box = emu.create_running()
    assert emu.exec(box, "sleep", "60").terminal == {"error": "Command timed out after 0.3 seconds"}
    assert emu.exec(box, "sleep", "60", timeout_seconds=5).terminal == {"error": "Command exceeded the maximum of 0.6 seconds"}
    emu.config(timeout_over_cap="reject")
    assert emu.exec(box, "sleep", "60", timeout_seconds=5).status == 400
    assert [one["ended"] for one in emu.commands()] == ["timed_out", "capped"]


def test_a_time_out_also_hits_a_command_whose_client_does_not_read(emu, box):
    with emu.open_exec(box, "yes", timeout_seconds=1):
        wait_until(lambda: emu.processes(box), "it runs")
        wait_until(lambda: not emu.processes(box), "it is dead", 4)


def test_output_limit(start):
    emu = start(output_limit_bytes=100_000)
    box = emu.create_running()
    answer = emu.exec(box, "yes")
    assert answer.terminal == {"error": "Command output exceeded the limit of 100000 bytes"} and len(answer.text()) >= 100_000
    wait_until(lambda: not emu.processes(box), "it is dead")
    assert emu.exec(box, "head", "-c", "99999", "/dev/zero").terminal == {"returncode": 0}


def test_idle_stop_counts_from_the_end_of_the_last_call(start):
    emu = start()
    box = emu.create_running(timeout_seconds=1)
    began = time.monotonic()
    assert emu.exec(box, "sleep", "0.7").terminal == {"returncode": 0}
    emu.wait_state(box, "stopped")
    assert 1.6 < time.monotonic() - began < 2.6
    long = emu.create_running(timeout_seconds=1)
    answer = emu.exec(long, "sleep", "60")  # a call in flight does not help
    assert answer.terminal == {"error": "Sandbox was stopped while the command was running"}
    emu.wait_state(long, "stopped")


def test_looking_does_not_keep_a_sandbox_awake_unless_switched(start):
    emu = start(default_idle_s=0.4)
    box = emu.create_running()
    wait_until(lambda: emu.state(box) == "stopped", "asleep though looked at", 3)
    emu.config(get_counts_as_call=True)
    other = emu.create_running()
    until = time.monotonic() + 1
    while time.monotonic() < until:
        assert emu.state(other) == "running"
    emu.wait_state(other, "stopped")


def test_idle_check_can_be_off_and_time_can_run_faster(start):
    emu = start(idle_check=False, time_scale=86400)  # a day in a second
    began = time.monotonic()
    box = emu.create_running(timeout_seconds=3600)
    emu.wait_state(box, "stopped", 5)  # by the 24 h cap
    assert 0.9 < time.monotonic() - began < 2
    emu.config(stopped_keep_s=86400)
    emu.wait_state(box, "deleted", 5)
    assert 1.9 < time.monotonic() - began < 4


def test_a_stopped_sandbox_is_deleted_after_its_time(start):
    emu = start(stopped_keep_s=0.2)
    box = emu.create_running()
    emu.request("POST", emu.path(box, "/stop"))
    emu.wait_state(box, "deleted")


def test_one_long_argument_is_refused_by_linux(emu, box):
    assert emu.exec(box, "bash", "-c", "echo ${#0}", "x" * 131_071).text() == "131071\n"
    answer = emu.exec(box, "bash", "-c", "echo ${#0}", "x" * 131_072)
    assert list(answer.terminal) == ["error"] and "too long" in answer.terminal["error"]
    emu.config(too_long_argv="1")
    assert emu.exec(box, "true", "x" * 131_072).terminal == {"returncode": 1}
    assert emu.exec(box, "true", *["x" * 100_000] * 15).terminal == {"returncode": 0}


@pytest.mark.parametrize("setting", ["127", "126", "1", "error"])
def test_missing_and_not_executable_programs(start, setting):
    emu = start(missing_argv0=setting, not_executable_argv0=setting)
    box = emu.create_running()
    for argv0 in ("no-such-program", "/no/such", "/etc/hostname", "/tmp"):
        answer = emu.exec(box, argv0)
        assert answer.status == 200
        assert list(answer.terminal) == ["error"] if setting == "error" else answer.terminal == {"returncode": int(setting)}


@pytest.mark.parametrize("style, code", [("shell", 137), ("negative", -9), ("minus_one", -1)])
def test_return_code_of_a_signal(start, style, code):
    emu = start(signal_returncode=style)
    assert emu.sh(emu.create_running(), "kill -9 $$").terminal == {"returncode": code}


# -- text of the stream


def test_bytes_that_are_not_utf8_are_replaced(emu, box):
    answer = emu.sh(box, r"printf 'a\203\377\342\202b\300\200\355\240\200'; exit 4")
    assert answer.text() == b"a\203\377\342\202b\300\200\355\240\200".decode(errors="replace") and answer.terminal == {"returncode": 4}
    emu.config(replacement="byte")
    assert emu.sh(box, r"printf 'a\342\202b'").text() == "a\ufffd\ufffdb"


def test_every_control_character_and_plane_survives_json(emu, box):
    text = "".join(map(chr, range(1, 0x80))) + "\u00e9\u20ac\U0001f600\u2028\uffff"
    emu.put(box, "/workspace/t", text.encode())
    assert emu.exec(box, "cat", "/workspace/t").text() == text


def test_split_characters_are_replaced_or_joined(start):
    emu = start(chunk_bytes=1)
    box = emu.create_running()
    assert emu.exec(box, "printf", "\u20ac\U0001f600").text() == "\ufffd" * 7
    emu.config(split_characters="join")
    answer = emu.exec(box, "printf", "a\u20ac\U0001f600b")
    assert answer.text() == "a\u20ac\U0001f600b" and len(answer.lines) == 5
    assert emu.exec(box, "printf", r"x\342\202").text() == "x\ufffd"


def test_heartbeats(start):
    emu = start(heartbeat_ms=50)
    lines = emu.sh(emu.create_running(), "sleep 0.4; echo x; sleep 0.2").lines
    assert lines[0] == {} and lines.count({}) >= 5 and lines[-1] == {"returncode": 0} and {"stdout": "x\n"} in lines


def test_children_that_hold_the_output(start):
    emu = start()
    box = emu.create_running()
    began = time.monotonic()
    assert emu.sh(box, "sleep 1 & echo ok").lines == [{"stdout": "ok\n"}, {"returncode": 0}]
    assert time.monotonic() - began < 0.9
    emu.config(waits_for_children=True)
    began = time.monotonic()
    assert emu.sh(box, "(sleep 1; echo late) & echo ok").lines == [{"stdout": "ok\n"}, {"stdout": "late\n"}, {"returncode": 0}]
    assert time.monotonic() - began >= 1


def test_an_endless_child_does_not_hold_up_the_end(emu, box):
    answer = emu.sh(box, "yes & sleep 0.1")
    assert answer.terminal == {"returncode": 0}
    wait_until(lambda: not emu.processes(box), "SIGPIPE ended it")
    emu.config(leftover_output="drain")
    assert emu.sh(box, "yes & sleep 0.1").terminal == {"returncode": 0}
    assert [one["cmdline"] for one in emu.processes(box)] == ["yes "]


# -- sandboxes are real


def test_environment_is_clean(emu, box):
    answer = emu.exec(box, "env")
    assert dict(line.split("=", 1) for line in answer.text().splitlines()) == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    script = "id -u; readlink /proc/self/fd/0; pwd; umask; trap; tr -d '\\0' < /proc/1/cmdline; echo; grep SigIgn /proc/self/status"
    assert emu.sh(box, script).text().split() == ["0", "/dev/null", "/root", "0022", "init", "SigIgn:", "0000000000000000"]
    assert emu.sh(box, "ls /proc/self/fd | wc -l").text().strip() == "4"  # 0, 1, 2 and ls's own
    emu.config(default_cwd="/workspace")
    assert emu.exec(box, "pwd").text() == "/workspace\n"


def test_standard_streams_can_be_reopened(emu, box):
    assert emu.sh(box, "echo out > /dev/stdout; echo err > /dev/stderr; echo x > /dev/null; head -c 1 /dev/zero | wc -c").lines[-1] == {"returncode": 0}


def test_the_host_is_hidden(emu, box, tmp_path):
    marker = tempfile.NamedTemporaryFile(dir="/tmp", prefix="host-marker-")
    script = f"ls -A /tmp /home /root /run /workspace; ls -d {marker.name} {emu.directory} /proc/{os.getpid()}; ps ax | wc -l"
    answer = emu.sh(box, script)
    assert os.path.basename(marker.name) not in answer.text() and answer.text("stderr").count("cannot access") == 3
    assert int(answer.text().split()[-1]) < 8


def test_pid_space_and_tmp_are_shared_by_the_execs_of_a_sandbox_only(emu, box):
    other = emu.create_running()
    pid = emu.sh(box, "echo $$ > /tmp/pid; (sleep 90 >/dev/null 2>&1 </dev/null & echo $!)").text().strip()
    assert emu.sh(box, f"kill -0 {pid} && cat /tmp/pid").terminal == {"returncode": 0}
    assert emu.sh(other, f"test -e /tmp/pid || kill -0 {pid}").terminal == {"returncode": 1}


def test_only_the_workspace_survives_a_stop(emu, box):
    emu.sh(box, f"NAP={NAP}; for d in /workspace /tmp /root /var/tmp /; do echo kept > $d/file; done; (setsid sleep $NAP >/dev/null 2>&1 </dev/null &)")
    for round_number in range(3):
        emu.request("POST", emu.path(box, "/stop"))
        emu.wait_state(box, "stopped")
        assert emu.processes(box) == [] and not host_processes(f"sleep {NAP}")
        emu.request("POST", emu.path(box, "/start"))
        emu.wait_state(box, "running")
        assert emu.sh(box, "ls /workspace/file /tmp/file /root/file /var/tmp/file /file 2>/dev/null; cat /workspace/file").text() == "/workspace/file\nkept\n"
    assert emu.sandbox(box)["boots"] == 4


def test_stop_kills_whatever_its_session(emu, box):
    hard = f"NAP={NAP}; trap '' TERM HUP INT; setsid bash -c \"trap '' TERM HUP; sleep $NAP; sleep $NAP\" & nohup sleep $NAP & disown -a; sleep $NAP"
    with emu.open_exec(box, "bash", "-c", hard) as stream:
        wait_until(lambda: len([one for one in emu.processes(box) if "sleep" in one["cmdline"]]) >= 3, "all are up")
        emu.request("POST", emu.path(box, "/stop"))
        assert list(stream)[-1] == {"error": "Sandbox was stopped while the command was running"}
    emu.wait_state(box, "stopped")
    assert not host_processes(f"sleep {NAP}")


@pytest.mark.parametrize("outcome", ["returncode", "cut"])
def test_other_ends_of_a_stream_whose_sandbox_stops(start, outcome):
    emu = start(stop_outcome_of_streams=outcome)
    box = emu.create_running()
    with emu.open_exec(box, "bash", "-c", "echo up; sleep 60") as stream:
        assert stream.line() == {"stdout": "up\n"}
        emu.stop_sandbox(box)
        if outcome == "cut":
            with pytest.raises((http.client.HTTPException, ConnectionError)):
                list(stream)
        else:
            assert list(stream) == [{"returncode": 137}]


def test_what_is_done_inside_stays_inside(emu, box):
    bystander = subprocess.Popen(["sleep", NAP])
    with tempfile.NamedTemporaryFile(dir="/tmp", prefix="host-marker-") as marker:
        try:
            emu.put(box, "/workspace/keep", b"")
            with emu.open_exec(box, "sleep", "96") as other:
                script = "rm -rf /tmp/* /etc/* /usr/local/* /workspace/* 2>/dev/null; kill -9 -1; echo survived"
                # -1 spares the killer itself and process 1
                assert emu.sh(box, script).lines == [{"stdout": "survived\n"}, {"returncode": 0}]
                assert list(other) == [{"returncode": 137}]
            assert emu.exec(box, "/usr/bin/ls", "/workspace").lines == [{"returncode": 0}]
            assert bystander.poll() is None and os.path.exists(marker.name) and os.path.exists("/etc/passwd")
        finally:
            bystander.kill()
            bystander.wait()


def test_no_power_over_the_host(emu, box):
    attempts = ["mount -t tmpfs x /mnt", "mount -o remount,rw /proc/sys", "echo x > /proc/sys/kernel/core_pattern", "mknod /tmp/d b 254 0 && cat /tmp/d",
                "date -s @0", "cat /proc/1/environ", "ls -l /proc/1/fd/ | grep socket", "chroot /proc/1/root ls /work"]
    for attempt in attempts:
        assert emu.sh(box, attempt + " 2>/dev/null").terminal != {"returncode": 0}, attempt


def test_loopback_works_and_is_its_own(emu, box):
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    script = f"""
import socket
own = socket.create_server(("127.0.0.1", {port}))
c = socket.create_connection(("127.0.0.1", {port}))
a = socket.socket(socket.AF_UNIX); a.bind("\\0name"); print("ok")
"""
    assert emu.exec(box, "python3", "-c", script).text() == "ok\n"
    server.close()


def test_orphans_are_reaped(emu, box):
    emu.sh(box, "for i in $(seq 50); do (setsid true &) ; done; sleep 0.3")
    assert emu.sh(box, "ps -e -o stat= | grep -c Z").text().strip() == "0"


def test_killing_the_emulator_kills_its_sandboxes(start):
    emu = start()
    boxes = [emu.create_running() for _ in range(2)]
    for box in boxes:
        emu.sh(box, f"setsid sleep {NAP} >/dev/null 2>&1 </dev/null &")
    stream = emu.open_exec(boxes[0], "sleep", NAP)
    wait_until(lambda: len(host_processes(f"sleep {NAP}")) == 3, "all run")
    emu.kill()
    wait_until(lambda: not host_processes(f"sleep {NAP}"), "all are dead", 5)
    stream.close()


def test_ending_the_emulator_leaves_nothing(start):
    emu = start()
    box = emu.create_running()
    emu.sh(box, f"mkdir -p /workspace/x/y; chmod 0 /workspace/x; sleep {NAP} >/dev/null 2>&1 &")
    data = emu.directory / "data"
    emu.stop()
    assert list(data.iterdir()) == [] and not host_processes(f"sleep {NAP}")
    assert str(data) not in pathlib.Path("/proc/self/mountinfo").read_text()


def test_init_killed_from_outside_is_a_failed_sandbox(emu, box):
    with emu.open_exec(box, "sleep", "60") as stream:
        inits = subprocess.run(["pgrep", "-P", subprocess.run(["pgrep", "-P", str(emu.pid)], capture_output=True, text=True).stdout.strip()],
                               capture_output=True, text=True).stdout.split()
        os.kill(int(inits[0]), 9)
        assert "error" in list(stream)[-1]
    emu.wait_state(box, "failed")


# -- many and much


def test_two_hundred_commands_at_once(emu, box):
    answers = []

    def one(number):
        answers.append((number, emu.sh(box, f"sleep 1; echo {number}").lines))

    began = time.monotonic()
    threads = [threading.Thread(target=one, args=(number,)) for number in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [(number, [{"stdout": f"{number}\n"}, {"returncode": 0}]) for number in range(200)]
    assert time.monotonic() - began < 10


def resident_kib(pid):
    return int(next(line for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")).split()[1])


def test_a_gibibyte_of_output_with_flat_memory(emu, box):
    emu.exec(box, "head", "-c", str(8 * MIB), "/dev/zero")
    before = resident_kib(emu.pid)
    connection = emu.connect()
    emu.send(connection, "POST", emu.path(box, "/exec"), {"command": ["bash", "-c", "yes | head -c 1G"]})
    answer = connection.getresponse()
    total, tail, buffer = 0, b"", bytearray(MIB)
    while got := answer.readinto(buffer):
        total += got
        tail = (tail + bytes(buffer[max(0, got - 200):got]))[-200:]
    connection.close()
    assert tail.endswith(b'{"returncode":0}\n') and total > 1024 * MIB
    assert resident_kib(emu.pid) - before < 8 * 1024
    assert emu.commands()[-1]["stdout_bytes"] == 1024 * MIB


def test_a_client_that_does_not_read_blocks_the_command(emu, box):
    script = "yes | head -c 200M; echo done >/workspace/done"
    with emu.open_exec(box, "bash", "-c", script):
        printed = []

        def stands_still():
            time.sleep(0.2)  # the point is that nothing happens meanwhile
            printed.append(emu.commands()[0]["stdout_bytes"])
            return len(printed) > 1 and printed[-1] == printed[-2] > 0

        wait_until(stands_still, "all buffers on the way are full")
        assert printed[-1] < 64 * MIB and emu.get(box, "/workspace/done").status == 404
        assert emu.exec(box, "echo", "others").text() == "others\n"


# -- connections


def test_keep_alive_and_pipelining(emu, box):
    address = emu.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1]))) as raw:
        head = "Host: x\r\nAuthorization: Bearer test-key\r\n"
        body = json.dumps({"command": ["bash", "-c", "sleep 0.2; echo first"]})
        post = f"POST {emu.path(box, '/exec')} HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n{body}"
        raw.sendall((post + f"GET /v1/sandboxes/catalog HTTP/1.1\r\n{head}Connection: close\r\n\r\n").encode())
        raw.settimeout(10)
        text = b""
        while part := raw.recv(65536):
            text += part
    assert text.count(b"HTTP/1.1 200 OK") == 2 and text.index(b"first") < text.index(b"price_per_hour")
    assert emu.stats()["connections_accepted"] == len({one["connection"] for one in emu.requests()})


def test_one_connection_serves_many_requests(emu, box):
    emu.reset_stats()
    connection = emu.connect()
    for _ in range(20):
        assert emu.exec(box, "true", connection=connection).terminal == {"returncode": 0}
        assert emu.request("GET", "/v1/sandboxes/none", connection=connection).status == 404
        assert emu.request("POST", "/v1/sandboxes/none/exec", {"command": ["x" * 1000]}, connection=connection).status == 404
    connection.close()
    assert emu.stats()["connections_accepted"] == 1 and emu.count() == 60


def test_connections_that_end_by_themselves(start):
    emu = start(keep_alive_requests=2, keep_alive_idle_ms=100)
    connection = emu.connect()
    assert "connection" not in emu.request("GET", "/v1/sandboxes", connection=connection).headers
    assert emu.request("GET", "/v1/sandboxes", connection=connection).headers["connection"] == "close"
    emu.request("GET", "/v1/sandboxes", connection=connection)  # http.client opens a new one
    wait_until(lambda: emu.stats()["connections_open"] == 0, "the idle one is closed")
    connection.close()


def test_not_http_is_answered_and_closed(emu):
    address = emu.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1]))) as raw:
        raw.sendall(b"\x16\x03\x01nonsense\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400")


def test_expect_continue(emu, box):
    address = emu.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1]))) as raw:
        raw.settimeout(10)
        head = f"PUT {emu.path(box, '/fs/content?path=/workspace/e')} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer test-key\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
        raw.sendall(head.encode())
        assert raw.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.sendall(b"hello")
        assert raw.recv(1000).endswith(b"{}")
    assert emu.get(box, "/workspace/e").body == b"hello"


def test_accept_modes(emu):
    emu.config(accept_mode="refuse")
    with pytest.raises(OSError):
        emu.request("GET", "/v1/sandboxes")
    emu.config(accept_mode="blackhole")
    connection = emu.connect(timeout=0.3)
    with pytest.raises(TimeoutError):
        emu.request("GET", "/v1/sandboxes", connection=connection)
    connection.close()
    emu.config(accept_mode="normal")
    assert emu.request("GET", "/v1/sandboxes").status == 200


def test_dropping_connections(emu, box):
    idle = emu.connect()
    emu.request("GET", "/v1/sandboxes", connection=idle)
    with emu.open_exec(box, "sleep", "60") as stream:
        assert emu.drop_connections(idle_only=True) == 1
        assert emu.drop_connections(how="fin") == 1
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            list(stream)
    idle.close()


def test_tls(start):
    emu = start(tls=True)
    assert emu.url.startswith("https://")
    box = emu.create_running()
    assert emu.exec(box, "echo", "over tls").text() == "over tls\n"
    assert len(emu.exec(box, "head", "-c", str(20 * MIB), "/dev/zero").text()) == 20 * MIB
    connection = emu.connect()
    for _ in range(5):
        assert emu.exec(box, "true", connection=connection).terminal == {"returncode": 0}
    connection.close()
    with pytest.raises(ssl.SSLCertVerificationError):
        address = emu.url.removeprefix("https://").split(":")
        http.client.HTTPSConnection(address[0], int(address[1]), context=ssl.create_default_context()).request("GET", "/")
    emu.fault_exec({"cut_after_bytes": 5})
    with pytest.raises((http.client.HTTPException, OSError)):
        list(emu.open_exec(box, "echo", "cut"))
    emu.config(keep_alive_requests=1)
    answer = emu.request("GET", "/v1/sandboxes")
    assert answer.status == 200 and answer.headers["connection"] == "close"
    wait_until(lambda: emu.stats()["connections_open"] == 0, "closed in order")


# -- a client that goes away


def wait_gone(emu, number=0):
    return wait_until(lambda: emu.commands()[number]["ended"].startswith("detached") and emu.commands()[number], "the command has ended")


def test_a_dropped_connection_keeps_the_command(emu, box):
    stream = emu.open_exec(box, "bash", "-c", "echo up; sleep 0.5; yes | head -c 10M; echo end > /workspace/end")
    assert stream.line() == {"stdout": "up\n"}
    stream.close()
    wait_until(lambda: emu.requests()[-1]["outcome"] == "client_gone", "noticed", 0.4)
    assert wait_gone(emu)["ended"] == "detached_exited"
    assert emu.get(box, "/workspace/end").body == b"end\n"


def test_a_dropped_connection_kills_the_group(start):
    emu = start(on_disconnect="kill_group")
    box = emu.create_running()
    stream = emu.open_exec(box, "bash", "-c", "setsid sleep 61 & sleep 62 & echo up; wait")
    assert stream.line() == {"stdout": "up\n"}
    sleeping = {"sleep 61 ", "sleep 62 "}
    wait_until(lambda: sleeping <= {one["cmdline"] for one in emu.processes(box)}, "both sleep")
    stream.close()
    wait_gone(emu)
    wait_until(lambda: [one["cmdline"] for one in emu.processes(box)] == ["sleep 61 "], "only the other session is left")


def test_a_dropped_connection_kills_the_tree(start):
    emu = start(on_disconnect="kill_tree")
    box = emu.create_running()
    with emu.open_exec(box, "bash", "-c", "sleep 63; echo undisturbed") as other:
        stream = emu.open_exec(box, "bash", "-c", "(env -i setsid setsid bash -c 'sleep 64; sleep 64' >/dev/null 2>&1 &) ; sleep 65 & echo up; wait")
        assert stream.line() == {"stdout": "up\n"}
        wait_until(lambda: len(emu.processes(box)) >= 6, "all run")
        stream.close()
        wait_gone(emu, 1)
        wait_until(lambda: sorted(one["cmdline"].split()[0] for one in emu.processes(box)) == ["bash", "sleep"], "only the other command is left")
        assert other.status == 200


@pytest.mark.parametrize("policy, ending", [("close", "detached_exited"), ("block", None)])
def test_output_of_a_kept_command(start, policy, ending):
    emu = start(on_disconnect_output=policy)
    box = emu.create_running()
    stream = emu.open_exec(box, "bash", "-c", "echo up; while [ ! -e /workspace/go ]; do sleep 0.01; done; yes")
    assert stream.line() == {"stdout": "up\n"}
    stream.close()
    wait_until(lambda: emu.requests()[-1]["outcome"] == "client_gone", "noticed")
    emu.put(box, "/workspace/go", b"")
    if ending:
        assert wait_gone(emu)["ended"] == ending
    else:
        wait_until(lambda: any(one["cmdline"] == "yes " for one in emu.processes(box)), "it writes")
        time.sleep(0.2)  # nothing to wait for: it must stay blocked
        assert emu.commands()[0]["ended"] == "running" and emu.commands()[0]["stdout_bytes"] == 3


def test_the_time_out_still_ends_a_kept_command(emu, box):
    stream = emu.open_exec(box, "bash", "-c", "echo up; sleep 66", timeout_seconds=1)
    stream.line()
    stream.close()
    assert wait_gone(emu)["ended"] == "detached_timed_out"
    wait_until(lambda: not emu.processes(box), "all of it is dead")


# -- boots that go wrong


def test_boot_outcomes(start):
    emu = start(boot_outcome="fail")
    emu.wait_state(emu.create(), "failed")
    emu.config(boot_outcome="hang")
    hanging = emu.create()
    assert emu.state(hanging) == "creating"
    assert emu.request("DELETE", emu.path(hanging)).status == 200 and emu.state(hanging) == "deleted"
    emu.config(boot_outcome="ok", boot_via_starting=True, start_ms=200, start_outcome="fail")
    box = emu.create()
    emu.wait_state(box, "starting")
    emu.wait_state(box, "running")
    emu.stop_sandbox(box)
    assert emu.request("POST", emu.path(box, "/start")).status == 200
    emu.wait_state(box, "failed")


def test_stop_hangs(start):
    emu = start(stop_outcome="hang")
    box = emu.create_running()
    emu.request("POST", emu.path(box, "/stop"))
    wait_until(lambda: emu.stats()["live_cells"] == 0, "killed all the same")
    assert emu.state(box) == "stopping"


def test_deleted_while_creating_never_runs(start):
    emu = start(boot_ms=100)
    box = emu.create()
    emu.request("DELETE", emu.path(box))
    other = emu.create_running()
    assert emu.state(box) == "deleted" and emu.state(other) == "running" and emu.stats()["boots"] == 1


def test_behind_the_clients_back(emu, box):
    assert emu.stop_sandbox(box)["state"] == "stopped" and emu.exec(box, "true").status == 409
    assert emu.fail_sandbox(box)["state"] == "failed"
    assert emu.delete_sandbox(box)["state"] == "deleted"


# -- faults


def test_status_faults_do_not_act_and_are_counted(emu, box):
    emu.fault({"status": 503, "body": "<html>busy</html>", "headers": {"Retry-After": "7"}}, method="POST", route=EXEC, times=2, skip=1)
    answers = [emu.exec(box, "true") for _ in range(4)]
    assert [one.status for one in answers] == [200, 503, 503, 200]
    assert answers[1].headers["content-type"] == "text/html" and answers[1].headers["retry-after"] == "7" and answers[1].body == b"<html>busy</html>"
    assert len(emu.commands()) == 2 and emu.count(f"POST {EXEC}") == 4
    assert emu.faults()[0]["used"] == 2


def test_faults_match_by_sandbox(emu, box):
    other = emu.create_running()
    emu.fault_exec({"status": 500, "body": {"error": "x"}}, sandbox_id=other, times=0)
    assert emu.exec(box, "true").status == 200
    assert [emu.exec(other, "true").status for _ in range(2)] == [500, 500]
    emu.clear_faults()
    assert emu.exec(other, "true").status == 200


def test_faults_match_by_what_the_body_contains(emu, box):
    emu.fault_exec({"status": 500, "body": {"error": "x"}}, body="one-of-them", times=0)
    assert emu.exec(box, "true").status == 200
    assert emu.exec(box, "/bin/echo", "one-of-them").status == 500
    answer = emu.exec(box, "/bin/echo", "one-of-the-others")
    assert answer.status == 200 and b"one-of-the-others" in answer.body


def test_a_create_that_acts_and_loses_its_answer(emu):
    emu.fault({"act_then_drop": True}, method="POST", route="/v1/sandboxes")
    with pytest.raises((http.client.HTTPException, OSError)):
        emu.request("POST", "/v1/sandboxes", {"tags": {"lost": "1"}})
    assert emu.request("GET", "/v1/sandboxes").json[0]["tags"] == {"lost": "1"}
    emu.fault({"act_then_status": {"status": 504, "body": "<html>", "headers": {"X-Proxy": "1"}}}, method="POST", route="/v1/sandboxes")
    answer = emu.request("POST", "/v1/sandboxes", {})
    assert answer.status == 504 and answer.headers["x-proxy"] == "1" and emu.stats()["sandboxes_created"] == 2


@pytest.mark.parametrize("when", ["started", "done"])
def test_an_exec_that_runs_and_loses_its_answer(emu, box, when):
    emu.fault_exec({"act_then_drop": when, "how": "rst"})
    with pytest.raises((http.client.HTTPException, OSError)):
        emu.sh(box, "sleep 0.2; echo x >> /workspace/n")
    if when == "done":
        assert emu.commands()[0]["ended"] == "exited"
    else:
        assert wait_gone(emu)["ended"] == "detached_exited"
    assert emu.get(box, "/workspace/n").body == b"x\n"
    emu.fault_exec({"act_then_status": 502})
    assert emu.sh(box, "echo x >> /workspace/n").status == 502
    wait_until(lambda: emu.get(box, "/workspace/n").body == b"x\nx\n", "it ran")


@pytest.mark.parametrize("how", ["fin", "rst"])
def test_a_stream_that_is_cut(emu, box, how):
    emu.fault_exec({"cut_after_bytes": 20, "how": how})
    stream = emu.open_exec(box, "bash", "-c", "echo one; sleep 0.1; echo two; sleep 60")
    assert stream.line() == {"stdout": "one\n"}
    with pytest.raises(ConnectionResetError if how == "rst" else http.client.IncompleteRead):
        stream.line()
    stream.close()
    assert emu.requests()[-1]["outcome"] == "fault"


def test_cut_at_every_byte_sends_exactly_so_much(emu, box):
    whole = emu.exec(box, "echo", "hello").body
    address = emu.url.removeprefix("http://").split(":")
    body = json.dumps({"command": ["echo", "hello"]})
    for size in range(len(whole) + 1):
        emu.fault_exec({"cut_after_bytes": size})
        with socket.create_connection((address[0], int(address[1]))) as raw:
            raw.sendall(f"POST {emu.path(box, '/exec')} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer test-key\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            text = b""
            while part := raw.recv(65536):
                text += part
        head, _, rest = text.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        got = b""
        while rest:
            length, _, rest = rest.partition(b"\r\n")
            assert int(length, 16) > 0, "the end of the body was sent"
            got += rest[:int(length, 16)]
            rest = rest[int(length, 16) + 2:]
        assert got == whole[:size]


def test_cut_after_lines_and_stalls(emu, box):
    emu.fault_exec({"cut_after_lines": 1})
    stream = emu.open_exec(box, "bash", "-c", "echo one; sleep 0.1; echo two")
    assert stream.line() == {"stdout": "one\n"}
    with pytest.raises((http.client.HTTPException, OSError)):
        stream.line()
    emu.fault_exec({"stall_after_bytes": 17, "stall_ms": 300})
    began = time.monotonic()
    assert emu.exec(box, "echo", "one").lines == [{"stdout": "one\n"}, {"returncode": 0}]
    assert time.monotonic() - began >= 0.3
    emu.fault_exec({"stall_after_bytes": 0})
    connection = emu.connect(timeout=0.3)
    emu.send(connection, "POST", emu.path(box, "/exec"), {"command": ["echo", "never"]})
    answer = connection.getresponse()
    with pytest.raises(TimeoutError):
        answer.read()
    connection.close()


def test_terminal_line_faults(emu, box):
    emu.fault_exec({"omit_terminal": True})
    assert emu.exec(box, "echo", "x").lines == [{"stdout": "x\n"}]
    emu.fault_exec({"terminal": {"error": "odd"}})
    assert emu.exec(box, "true").lines == [{"error": "odd"}]
    emu.fault_exec({"inject": '{"unknown":1}\n{}\n'})
    assert emu.exec(box, "true").lines == [{"unknown": 1}, {}, {"returncode": 0}]
    emu.fault_exec({"omit_end": True})
    connection = emu.connect(timeout=0.3)
    emu.send(connection, "POST", emu.path(box, "/exec"), {"command": ["true"]})
    answer = connection.getresponse()
    assert json.loads(answer.readline()) == {"returncode": 0}
    with pytest.raises(TimeoutError):
        answer.readline()
    connection.close()


def test_latency_pieces_and_silence(emu, box):
    emu.fault_exec({"piece_bytes": 1})
    assert emu.exec(box, "echo", "pieces").lines == [{"stdout": "pieces\n"}, {"returncode": 0}]
    for action in ({"latency_ms": 200}, {"latency_after_ms": 200}):
        emu.fault_exec(action)
        began = time.monotonic()
        assert emu.exec(box, "true").status == 200
        assert time.monotonic() - began >= 0.2
    emu.config(latency_ms=50)
    began = time.monotonic()
    emu.request("GET", "/v1/sandboxes")
    assert time.monotonic() - began >= 0.05
    emu.config(latency_ms=0, connect_latency_ms=100)
    began = time.monotonic()
    emu.request("GET", "/v1/sandboxes")
    assert time.monotonic() - began >= 0.1
    emu.config(connect_latency_ms=0)
    ran = len(emu.commands())
    emu.fault_exec({"drop_before": True})
    with pytest.raises((http.client.HTTPException, OSError)):
        emu.exec(box, "true")
    emu.fault_exec({"stall_before": True})
    connection = emu.connect(timeout=0.3)
    with pytest.raises(TimeoutError):
        emu.exec(box, "true", connection=connection)
    connection.close()
    assert len(emu.commands()) == ran


def test_a_file_that_is_cut(emu, box):
    emu.put(box, "/workspace/f", b"0123456789")
    emu.fault({"cut_after_bytes": 4}, method="GET", route="/v1/sandboxes/{id}/fs/content")
    with pytest.raises(http.client.IncompleteRead) as broken:
        emu.get(box, "/workspace/f")
    assert broken.value.partial == b"0123"


def test_an_upload_that_breaks_off(start):
    emu = start(put_replace="rename")
    box = emu.create_running()
    for rest, mode in (("truncate", "partial"), ("rename", "old")):
        emu.config(put_replace=rest)
        emu.put(box, "/workspace/f", b"old")
        address = emu.url.removeprefix("http://").split(":")
        with socket.create_connection((address[0], int(address[1]))) as raw:
            raw.sendall(f"PUT {emu.path(box, '/fs/content?path=/workspace/f')} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer test-key\r\n"
                        "Content-Length: 100\r\n\r\npartial".encode())
            wait_until(lambda: emu.requests()[-1]["body_bytes"] == 7, "it arrived")
        wait_until(lambda: emu.requests()[-1]["outcome"] == "client_gone", "noticed")
        assert emu.get(box, "/workspace/f").body == mode.encode()
        assert emu.sh(box, "ls -A /workspace").text() == "f\n"


def test_mode_of_an_uploaded_file(start):
    emu = start(put_mode="0755")
    box = emu.create_running()
    emu.put(box, "/workspace/run", b"#!/bin/sh\necho ran\n")
    assert emu.exec(box, "/workspace/run").text() == "ran\n"
    emu.config(put_mode="0644")
    emu.put(box, "/workspace/norun", b"#!/bin/sh\necho ran\n")
    assert emu.exec(box, "/workspace/norun").terminal == {"returncode": 126}
    assert emu.sh(box, "stat -c '%u %a' /workspace/norun").text() == "0 644\n"


def test_overwriting_a_running_program(start):
    emu = start(put_mode="0755")
    box = emu.create_running()
    emu.put(box, "/workspace/prog", pathlib.Path("/bin/sleep").read_bytes())
    with emu.open_exec(box, "/workspace/prog", "60"):
        assert emu.put(box, "/workspace/prog", b"x").status == 500  # ETXTBSY
        emu.config(put_replace="rename")
        assert emu.put(box, "/workspace/prog", b"x").status == 200


# -- control


def test_what_is_recorded(emu, box):
    emu.reset_stats()
    emu.request("POST", emu.path(box, "/exec"), {"command": ["echo", "canary"]}, headers={"X-Trace": "1"})
    emu.request("GET", "/v1/sandboxes", key="secret-canary")
    stats = emu.stats()
    assert stats["total"] == 2 and stats["requests"] == {f"POST {EXEC}": 1, "GET /v1/sandboxes": 1}
    assert stats["by_sandbox"] == {box: {f"POST {EXEC}": 1}} and stats["statuses"] == {"200": 1, "401": 1}
    assert stats["commands_started"] == 1 and stats["live_cells"] == 1 and stats["live_processes"] == 0
    first, second = emu.requests()
    assert first["method"] == "POST" and first["route"] == EXEC and first["target"] == emu.path(box, "/exec") and first["status"] == 200
    assert first["sandbox_id"] == box and first["headers"]["x-trace"] == "1" and first["authorized"] and "canary" in first["body_prefix"]
    assert not second["authorized"] and first["connection"] != second["connection"]
    assert "authorization" not in first["headers"] and "secret-canary" not in json.dumps(emu.requests())
    command, = emu.commands(box)
    assert command["argv"] == ["echo", "canary"] and command["returncode"] == 0 and command["ended"] == "exited" and command["stdout_bytes"] == 7


def test_settings_are_checked_and_all_or_nothing(emu):
    before = emu.config()
    for wrong in ({"no_such": 1}, {"boot_ms": "x"}, {"boot_ms": -1}, {"boot_outcome": "maybe"}, {"idle_check": 1}, {"stop_ms": 7, "chunk_bytes": 0}):
        with pytest.raises(AssertionError, match="400"):
            emu.config(**wrong)
    for wrong in ({"act_then_drop": "x"}, {"unknown": 1}, {"how": "gently"}):
        with pytest.raises(AssertionError, match="400"):
            emu.fault(wrong)
    assert emu.config() == before and emu.faults() == []
