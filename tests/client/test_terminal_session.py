"""The plugin and the client against the real daemon and the emulated cloud: what a user of hermes gets."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest
from fake_daemon import ROOT, eventually

sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from support.daemon import Daemon, find_binary  # noqa: E402
from support.emulator import Emulator  # noqa: E402

from deepinfra_sandboxd import Client, RpcError  # noqa: E402
from deepinfra_sandboxd import environment as environment_module  # noqa: E402
from deepinfra_sandboxd.environment import DeepInfraEnvironment, _ending, _known  # noqa: E402
from deepinfra_sandboxd.provider import DeepInfraProvider  # noqa: E402
from tools import interrupt  # noqa: E402
from tools.environments.base import EnvironmentConnectionError  # noqa: E402

KEY = "test-key"


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Emulator]:
    emulator = Emulator(tmp_path, boot_ms=5, start_ms=5, stop_ms=5)
    emulator.start()
    yield emulator
    emulator.stop()


@pytest.fixture
def daemon(tmp_path: Path, emulator: Emulator) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path, emulator.url, KEY)
    daemon.start()
    yield daemon
    daemon.stop()


@pytest.fixture
def hermes(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeepInfraProvider]:
    monkeypatch.setenv("DEEPINFRA_SANDBOXD_SOCKET", str(daemon.socket))
    provider = DeepInfraProvider()
    yield provider
    provider.client.close()


@pytest.fixture
def again(daemon: Daemon, hermes: DeepInfraProvider) -> Callable[..., None]:
    """Ends the daemon, by SIGKILL or as an upgrade does, and starts another one on its state a moment later."""

    def restart(*, kill: bool, pause: float = 0.2) -> None:
        (daemon.kill if kill else daemon.stop)()
        time.sleep(pause)  # for a while nobody listens
        daemon.start()

    return restart


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(str(daemon.socket)) as client:
        yield client


def make(provider: DeepInfraProvider, **options: Any) -> Any:
    return provider.create_environment(**{"cwd": "/root", "timeout": 30, "task_id": "default", **options})


def ok(environment: Any, command: str, **options: Any) -> str:
    result = environment.execute(command, **options)
    assert result["returncode"] == 0, result
    return str(result["output"]).strip()


def control(emulator: Emulator, what: str) -> None:
    request = urllib.request.Request(f"{emulator.url}/_control/{what}", data=b"", method="POST")
    urllib.request.urlopen(request, timeout=10).close()


def total_requests(emulator: Emulator) -> int:
    return int(emulator.stats()["total"])


def test_a_session_of_forty_turns(hermes: DeepInfraProvider) -> None:
    environment = make(hermes)
    assert environment.cwd == "/workspace"
    ok(environment, "mkdir -p project/src && cd project && git --version >/dev/null || true")
    ok(environment, "cd /workspace/project")
    ok(environment, "export COUNT=0; echo 'step() { export COUNT=$((COUNT+1)); echo step $COUNT; }' > functions.sh")
    for turn in range(1, 31):
        assert ok(environment, ". ./functions.sh; step") == f"step {turn}"
    assert ok(environment, "step") == "step 31"  # hermes keeps exports and functions
    content = "line\n" * 20_000 + "EOF\nno newline at the end"
    ok(environment, "cat > src/big.txt", stdin_data=content)
    digest = hashlib.sha256(content.encode()).hexdigest()
    assert ok(environment, "sha256sum < src/big.txt").split()[0] == digest
    ok(environment, "nohup bash -lc 'while :; do date +%s%N; sleep 0.1; done' > /tmp/bg.log 2>&1 &")
    first = ok(environment, "wc -l < /tmp/bg.log", cwd="/")
    eventually(lambda: int(ok(environment, "wc -l < /tmp/bg.log")) > int(first), "it goes on")
    ok(environment, "pwd", cwd="/workspace/project")  # as hermes does, for this session
    server = "cd src && exec python3 -u -m http.server --bind 127.0.0.1 8000"
    ok(
        environment,
        f"nohup bash -lc {shlex.quote(server)} > /tmp/server.log 2>&1 < /dev/null & echo $! > /tmp/server.pid",
    )
    eventually(lambda: "Serving HTTP" in ok(environment, "cat /tmp/server.log"), "it listens")
    assert ok(environment, f"python3 -c '{FETCH}' | sha256sum").split()[0] == digest  # a later turn talks to it
    assert [poll(environment), poll(environment)] == ["0\n", "0\n"]
    assert environment.execute("false")["returncode"] == 1
    assert environment.execute("exit 42")["returncode"] == 42
    assert "no such" in environment.execute("no-such; ls /nowhere")["output"].lower()
    assert ok(environment, "cd src; pwd") == "/workspace/project/src"
    assert ok(environment, "pwd; echo $COUNT").split() == ["/workspace/project/src", "31"]
    assert ok(environment, "head -c 3000000 /dev/zero | tr '\\0' x | wc -c") == "3000000"
    assert len(ok(environment, "head -c 3000000 /dev/zero | tr '\\0' x")) == 3000000
    assert poll(environment) == "0\n"
    ok(environment, "kill $(cat /tmp/server.pid)")
    eventually(lambda: poll(environment) == "1\n", "the server has ended, and its poller sees it")
    assert ok(environment, "pwd; echo $COUNT").split() == ["/workspace/project/src", "31"]  # polls move no session


FETCH = """
import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:8000/big.txt", timeout=10).read().decode(), end="")
"""


def poll(environment: Any) -> str:
    """What hermes's poller of a background process asks, on its own thread."""
    command, answers = 'kill -0 "$(cat /tmp/server.pid)" 2>/dev/null; echo $?', list[str]()
    poller = threading.Thread(
        target=lambda: answers.append(environment.execute(command, cwd="/", timeout=5)["output"]),
        name="proc-poller-1",
    )
    poller.start()
    poller.join(30)
    return answers[0]


def test_where_a_background_job_begins_and_where_home_is(hermes: DeepInfraProvider) -> None:
    environment = make(hermes)
    moved = environment.execute("mkdir p; cd p", cwd="/workspace")
    assert (environment.cwd, moved["cwd"]) == ("/workspace/p", "/workspace/p")
    assert environment.execute("true", cwd="/", timeout=15)["cwd"] == "/"  # execute_code's
    assert ok(environment, "nohup bash -lc pwd 2>&1") == "/workspace/p"
    at_home = environment.execute("cd ~", cwd=moved["cwd"])
    assert ok(environment, "pwd", cwd=at_home["cwd"]) == at_home["cwd"]


@pytest.mark.parametrize("size", [0, 1, 131_073, 5_000_000])
def test_a_file_of_any_size_is_written_through_stdin(hermes: DeepInfraProvider, size: int) -> None:
    environment = make(hermes)
    content = ("é\r\nEOF\n" * (size // 8 + 1))[: max(0, size - size // 8)]
    ok(environment, "cat > f.tmp; mv f.tmp f", stdin_data=content)
    digest = hashlib.sha256(content.encode()).hexdigest()
    assert ok(environment, "sha256sum < f").split()[0] == digest


def test_a_script_is_polled_while_it_runs(hermes: DeepInfraProvider) -> None:
    """As execute_code does: a poll of a directory of requests every 0.1 s, beside the script that makes them."""
    environment = make(hermes)
    script = "mkdir -p rpc; for i in 1 2 3; do echo $i > rpc/req$i; while [ ! -e rpc/res$i ]; do sleep 0.02; done; cat rpc/res$i; done"
    done: dict[str, Any] = {}
    worker = threading.Thread(target=lambda: done.update(environment.execute(script, cwd="/workspace")))
    worker.start()
    answered: set[str] = set()
    deadline = time.monotonic() + 60
    while worker.is_alive() and time.monotonic() < deadline:
        for name in environment.execute("ls rpc 2>/dev/null", cwd="/workspace")["output"].split():
            number = name.removeprefix("req")
            if name.startswith("req") and number not in answered:
                answered.add(number)
                ok(
                    environment,
                    f"cat > rpc/t; mv rpc/t rpc/res{number}",
                    cwd="/workspace",
                    stdin_data=f"answer {number}\n",
                )
        time.sleep(0.1)
    worker.join(5)
    assert done["output"] == "answer 1\nanswer 2\nanswer 3\n" and done["returncode"] == 0


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "upgraded"])
def test_a_daemon_that_is_replaced_in_the_middle_is_only_a_delay(
    hermes: DeepInfraProvider, daemon: Daemon, again: Callable[..., None], kill: bool
) -> None:
    environment = make(hermes)
    work = "echo run >> runs; for i in $(seq 40); do for j in $(seq 50); do echo line $i $j; done; sleep 0.05; done; exit 3"
    done: dict[str, Any] = {}
    worker = threading.Thread(target=lambda: done.update(environment.execute(work)))
    worker.start()
    time.sleep(0.5)
    for _ in range(2):
        again(kill=kill)
        time.sleep(0.3)
    worker.join(60)
    lines = [f"line {i} {j}" for i in range(1, 41) for j in range(1, 51)]
    assert done["output"].split("\n")[:-1] == lines
    assert done["returncode"] == 3
    assert ok(environment, "wc -l < runs") == "1"


def test_many_threads_and_daemons_that_come_and_go(hermes: DeepInfraProvider, again: Callable[..., None]) -> None:
    environment = make(hermes)
    wrong: list[Any] = []
    until = time.monotonic() + 4

    def work(number: int) -> None:
        turn = 0
        while time.monotonic() < until:
            turn += 1
            command = f"echo x >> ran_{number}_{turn}; seq {40 * turn}; sleep 0.1; echo end"
            result = environment.execute(command, cwd="/workspace")
            expected = "".join(f"{i}\n" for i in range(1, 40 * turn + 1)) + "end\n"
            if (result["output"], result["returncode"]) != (expected, 0):
                wrong.append(result)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for kill in (True, False, True):
        time.sleep(0.7)
        again(kill=kill)
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert ok(environment, "cat ran_* | wc -l; ls ran_* | wc -l", cwd="/workspace").split()[0] == ok(
        environment, "ls ran_* | wc -l", cwd="/workspace"
    )


def test_input_goes_on_with_the_next_daemon(
    client: Client, daemon: Daemon, hermes: DeepInfraProvider, again: Callable[..., None]
) -> None:
    data = os.urandom(20_000_000)
    result: list[Any] = []
    worker = threading.Thread(target=lambda: result.append(client.run(["sha256sum"], input=data)))
    worker.start()
    time.sleep(0.3)
    again(kill=True)
    worker.join(60)
    assert result[0].stdout.split()[0].decode() == hashlib.sha256(data).hexdigest(), result[0]


def test_a_script_of_any_size_runs(client: Client) -> None:
    done = client.run(script="# " + "x" * 3_000_000 + "\necho ran")
    assert (done.stdout, done.returncode) == (b"ran\n", 0)


def test_an_agent_that_is_gone_leaves_its_command_to_be_attached_to(client: Client, daemon: Daemon) -> None:
    with Client(str(daemon.socket)) as first:
        assert first.start(script="echo one; sleep 1; echo two; exit 5", exec_id="left").read(20) is not None
    done = client.attach("left").wait(20)
    assert (done.stdout, done.returncode) == (b"one\ntwo\n", 5)


def test_a_flood_is_ended_by_time_and_by_an_interrupt_with_what_it_printed(hermes: DeepInfraProvider) -> None:
    environment = make(hermes)
    begun = time.monotonic()
    result = environment.execute("echo first; yes", timeout=1)
    assert result["returncode"] == 124 and result["output"].startswith("first\ny\ny\n")
    assert time.monotonic() - begun < 6
    thread = threading.get_ident()
    threading.Timer(0.5, lambda: interrupt.set_interrupt(True, thread)).start()
    try:
        result = environment.execute("echo first; yes")
    finally:
        interrupt.set_interrupt(False, thread)
    assert result["returncode"] == 130 and result["output"].startswith("first\ny\ny\n")
    eventually(lambda: ok(environment, "pgrep -x yes || true") == "", "both are gone")


def test_a_background_job_is_found_by_the_next_agent_and_by_its_poller(hermes: DeepInfraProvider) -> None:
    job = "nohup bash -lc 'echo started; sleep 60; echo over' > /tmp/hermes_bg_1.log 2>&1 < /dev/null & echo $! > /tmp/hermes_bg_1.pid"
    first = agent(job)
    assert first.stdout is not None and first.stdout.readline() == "\n"
    first.kill()
    first.wait()
    environment = make(hermes)
    polls: list[str] = []

    def poll() -> None:
        polls.append(environment.execute("cat /tmp/hermes_bg_1.log", timeout=10)["output"])
        polls.append(
            environment.execute('kill -0 "$(cat /tmp/hermes_bg_1.pid)" 2>/dev/null; echo $?', timeout=5)["output"]
        )

    poller = threading.Thread(target=poll, name="proc-poller-1")
    poller.start()
    poller.join(30)
    assert polls == ["started\n", "0\n"]


def test_the_idle_reaper_leaves_a_background_job_alone(
    tmp_path: Path, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Daemon(tmp_path, emulator.url, KEY, idle_stop=0.3) as daemon:
        monkeypatch.setenv("DEEPINFRA_SANDBOXD_SOCKET", str(daemon.socket))
        environment = make(DeepInfraProvider())
        ok(environment, "nohup sleep 2 > /dev/null 2>&1 < /dev/null & echo $! > /tmp/pid")
        environment.cleanup()  # hermes's own reaper lets go
        time.sleep(1)
        assert ok(environment, "kill -0 $(cat /tmp/pid); echo $?") == "0"
        environment.cleanup()
        eventually(lambda: [one["state"] for one in emulator.sandboxes()] == ["stopped"], "idle when the job has ended")


def test_the_plugins_idle_time_counts_for_a_daemon_that_runs_already(
    hermes: DeepInfraProvider, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sandbox() -> dict[str, Any]:
        (found,) = client.call("sandbox.list")["sandboxes"]
        return dict(found)

    monkeypatch.setenv("DEEPINFRA_SANDBOXD_IDLE_STOP", "1h")
    ok(make(hermes), "true")
    eventually(lambda: re.search("stops in 3(600|59.) s", sandbox()["awake_because"] or "") is not None, "it counts")
    assert sandbox()["idle_stop_s"] == 3600
    monkeypatch.delenv("DEEPINFRA_SANDBOXD_IDLE_STOP")
    ok(make(hermes), "true")
    assert "idle_stop_s" not in sandbox()


def test_a_plan_that_was_chosen_since_counts_for_the_next_sandbox(
    hermes: DeepInfraProvider, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_module, "SETTINGS_AGE", 0.0)
    monkeypatch.setenv("DEEPINFRA_SANDBOX_PLAN", "medium")
    environment = make(hermes)
    monkeypatch.setenv("DEEPINFRA_SANDBOX_PLAN", "large")
    ok(environment, "true")
    assert [one["plan"] for one in emulator.sandboxes()] == ["medium"]  # one that is there stays what it is
    hermes.client.call("sandbox.terminate", {"key": dict(zip(("profile", "task"), environment.key))})
    ok(environment, "true")
    assert [one["plan"] for one in emulator.sandboxes() if one["state"] == "running"] == ["large"]


def test_files_go_there_and_what_changed_comes_back(hermes: DeepInfraProvider, tmp_path: Path) -> None:
    home = Path(os.environ["HERMES_HOME"])
    skill, cached = home / "skills" / "s" / "SKILL.md", home / "cache" / "images" / "i.png"
    for path, content in ((skill, b"---\nname: s\n---\n"), (cached, bytes(range(256)))):
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    environment = make(hermes)
    listed = ok(environment, "cd .hermes && find . -type f -name '[!.]*' | sort", cwd="/workspace").split("\n")
    assert listed == ["./cache/images/i.png", "./skills/s/SKILL.md"]
    planted = """
        cd .hermes; mkdir -p plugins/p project_skills/p external_skills/0 cache/unknown
        echo changed > cache/images/i.png; echo new > cache/images/new.png; ln -s /etc/passwd cache/images/link
        for name in skills/s/SKILL.md skills/s/run.sh skills/SKILL.md plugins/p/__init__.py project_skills/p/SKILL.md \\
            external_skills/0/SKILL.md config.yaml cache/x cache/unknown/x ../x; do echo evil > $name; done
        ln -s ../../skills cache/images/skills; ln -s ../../../x cache/images/x"""
    ok(environment, planted, cwd="/workspace")
    environment.cleanup()
    if not hasattr(tarfile, "data_filter"):  # Python before 3.11.4
        assert sorted(path.name for path in (home / "cache").rglob("*")) == ["i.png", "images"]
        return
    assert cached.read_bytes() == b"changed\n" and cached.with_name("new.png").read_bytes() == b"new\n"
    found = [path for path in home.rglob("*") if path.is_symlink() or path.is_file()]
    assert [path for path in found if path.is_symlink() or b"evil" in path.read_bytes()] == []
    assert sorted(path.name for path in (home / "cache").rglob("*")) == ["i.png", "images", "new.png"]


@pytest.mark.parametrize("what", ["deleted", "saved"])
def test_what_became_of_a_file_here_is_not_undone_by_what_was_pushed(
    hermes: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    images = Path(os.environ["HERMES_HOME"]) / "cache" / "images"
    images.mkdir(parents=True)
    for name in ("one.png", "two.png"):
        (images / name).write_text("first half")
    push = DeepInfraEnvironment._push

    def pushed_and_saved(self: DeepInfraEnvironment, files: list[tuple[str, str]]) -> None:
        push(self, files)
        (images / "one.png").write_text("first half, second half")  # before hermes looks at it again

    with monkeypatch.context() as patched:
        if what == "saved":
            patched.setattr(DeepInfraEnvironment, "_push", pushed_and_saved)
        environment = make(hermes)
    ok(environment, "true")
    if what == "deleted":
        environment.cleanup()
        (images / "one.png").unlink()
        environment = make(hermes)  # with a manager that knows of nothing
    ok(environment, "echo there > .hermes/cache/images/two.png", cwd="/workspace")
    environment.cleanup(force_remove=False)
    left = {"one.png": "first half, second half"} if what == "saved" else {}
    came = "there\n" if hasattr(tarfile, "data_filter") else "first half"  # Python before 3.11.4: nothing comes back
    assert {path.name: path.read_text() for path in images.iterdir()} == {"two.png": came} | left


def test_a_file_is_fetched_whatever_it_holds(hermes: DeepInfraProvider, tmp_path: Path) -> None:
    environment = make(hermes)
    ok(environment, "head -c 3000000 /dev/urandom > /tmp/blob; ln -s /tmp/blob link", cwd="/workspace")
    path = environment.fetch_realpath("/workspace/link")
    assert path == "/tmp/blob"
    environment.fetch_file(path, tmp_path / "blob", max_bytes=3_000_000)
    assert (
        hashlib.sha256((tmp_path / "blob").read_bytes()).hexdigest()
        == ok(environment, "sha256sum < /tmp/blob").split()[0]
    )
    for wrong, limit in ((path, 1000), ("/nowhere", 1000), ("/workspace", 1000)):
        with pytest.raises(RuntimeError):
            environment.fetch_file(wrong, tmp_path / "other", max_bytes=limit)
    assert not (tmp_path / "other").exists()


def test_a_file_is_fetched_though_the_directory_of_the_session_went_with_a_stop(
    hermes: DeepInfraProvider, emulator: Emulator, tmp_path: Path
) -> None:
    environment = make(hermes)
    ok(environment, "echo here > /workspace/f; mkdir /tmp/gone; cd /tmp/gone")
    assert environment.cwd == "/tmp/gone"
    control(emulator, f"sandboxes/{emulator.sandboxes()[0]['sandbox_id']}/stop")
    eventually(lambda: emulator.sandboxes()[0]["state"] == "stopped", "it is stopped")
    environment.fetch_file("/workspace/f", tmp_path / "f", max_bytes=100)
    assert (tmp_path / "f").read_text() == "here\n" and environment.fetch_realpath("f") == "/workspace/f"
    result = environment.execute("pwd")
    assert (result["output"], result["environment_recreated"]) == ("/workspace\n", True)


def test_the_daemon_is_started_by_the_first_call(
    tmp_path: Path, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten agents at once on a machine without systemd: one daemon, which outlives them."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "deepinfra-sandboxd").symlink_to(find_binary())
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DEEPINFRA_BASE_URL", emulator.url)
    monkeypatch.setenv("DEEPINFRA_API_KEY", KEY)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    agents = [agent("echo $HOSTNAME > /workspace/f; echo ran") for _ in range(10)]
    assert [each.communicate("", timeout=60)[0] for each in agents] == ["ran\n"] * 10
    with Client(start=False) as client:
        pid = client.call("daemon.status")["daemon"]["pid"]
        try:
            assert len(emulator.sandboxes()) == 1
        finally:
            os.kill(pid, signal.SIGTERM)
            eventually(lambda: not Path(f"/proc/{pid}").exists(), "it has ended")


def test_output_arrives_while_the_command_runs(client: Client) -> None:
    execution = client.start(script="echo one; sleep 60; echo two")
    chunk = execution.read(20)
    assert chunk is not None and chunk.data == b"one\n" and execution.end is None
    execution.kill()
    assert execution.wait(20).returncode == 130


def test_what_a_program_gets_from_the_client(client: Client) -> None:
    result = client.run(["python3", "-c", "print(1)"])
    assert (result.returncode, result.stdout, result.reason) == (0, b"1\n", "exited")
    result = client.run(script="echo out; echo err >&2; exit 3", cwd="/workspace", env={"A": "1"})
    assert (result.returncode, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
    result = client.run(["cat"], input=b"some\0bytes")
    assert result.stdout == b"some\0bytes"
    result = client.run(script="echo before; sleep 60", timeout=1)
    assert (result.returncode, result.reason, result.stdout) == (124, "timed_out", b"before\n")
    with pytest.raises(RpcError) as caught:
        client.call("sandbox.get", {"id": "sb_none"})
    assert caught.value.name == "sandbox_not_found"


def test_one_request_to_the_cloud_for_a_warm_command(hermes: DeepInfraProvider, emulator: Emulator) -> None:
    environment = make(hermes)
    ok(environment, "true")
    before = total_requests(emulator)
    ok(environment, "echo warm")
    assert total_requests(emulator) - before == 1


def test_building_the_prompt_costs_nothing(hermes: DeepInfraProvider, emulator: Emulator) -> None:
    probe = make(hermes, task_id="prompt-backend-probe")
    assert probe.execute("uname", timeout=4)["returncode"] == 0
    probe.cleanup(force_remove=True)
    assert emulator.sandboxes() == []


AGENT = """
import os, sys
from deepinfra_sandboxd.provider import DeepInfraProvider
environment = DeepInfraProvider().create_environment(cwd="", timeout=30)
for command in sys.argv[1:]:
    print(environment.execute(command)["output"].strip(), flush=True)
sys.stdin.read()
"""


def agent(*commands: str) -> subprocess.Popen[str]:
    """Another agent process of the same profile; it lives until its stdin is closed."""
    paths = [ROOT / "client-py", Path(interrupt.__file__).parent.parent]  # the hermes that we have ourselves
    return subprocess.Popen(
        [sys.executable, "-c", AGENT, *commands],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_an_agent_that_was_killed_leaves_its_sandbox_to_the_next_one(
    hermes: DeepInfraProvider, emulator: Emulator
) -> None:
    first = agent("echo kept > /workspace/f; echo written")
    assert first.stdout is not None and first.stdout.readline() == "written\n"
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = agent("cat /workspace/f")
    assert second.communicate("", timeout=30)[0] == "kept\n"
    assert ok(make(hermes), "cat /workspace/f") == "kept"
    assert len(emulator.sandboxes()) == 1


def test_a_new_agent_neither_sends_again_what_is_there_nor_undoes_what_was_changed_there(
    hermes: DeepInfraProvider, emulator: Emulator
) -> None:
    """hermes asks a new process for a full upload of what the host has."""
    images = Path(os.environ["HERMES_HOME"]) / "cache" / "images"
    images.mkdir(parents=True)
    for number in range(20):
        (images / f"{number}.png").write_bytes(os.urandom(1000))
    ok(make(hermes), "echo changed > .hermes/cache/images/7.png", cwd="/workspace")
    before = total_requests(emulator)
    assert agent("cat /workspace/.hermes/cache/images/7.png").communicate("", timeout=30)[0] == "changed\n"
    assert total_requests(emulator) - before == 2  # the session and the command, for files none


def test_an_explicit_removal_spares_what_another_agent_holds(hermes: DeepInfraProvider, emulator: Emulator) -> None:
    def left() -> int:
        return sum(one["state"] != "deleted" for one in emulator.sandboxes())

    environment = make(hermes)
    other = agent("echo ready")
    assert other.stdout is not None and other.stdout.readline() == "ready\n"
    environment.cleanup(force_remove=True)
    assert left() == 1
    other.communicate("", timeout=30)
    ok(environment, "true")
    eventually(lambda: [environment.cleanup(force_remove=True), left() == 0][1], "nobody else holds it")


def test_an_ephemeral_sandbox_ends_with_its_session(hermes: DeepInfraProvider, emulator: Emulator) -> None:
    environment = make(hermes, task_id="s1", container_config={"container_persistent": False})
    ok(environment, "true")
    environment.cleanup()
    ok(environment, "true")
    assert [one["state"] for one in emulator.sandboxes()] == ["running"]
    hermes.end_session(session_id="s1", platform="cli", reason="done")
    eventually(lambda: all(one["state"] == "deleted" for one in emulator.sandboxes()), "it is gone")


@pytest.mark.parametrize("begun_by", ["creation", "command"])
def test_a_session_that_ends_while_its_sandbox_is_being_made_leaves_none(
    hermes: DeepInfraProvider, client: Client, emulator: Emulator, begun_by: str
) -> None:
    def states() -> list[str]:
        return [one["state"] for one in emulator.sandboxes()]

    def begin() -> Any:
        return make(hermes, task_id="s1", container_config={"container_persistent": False})

    made: list[Any] = []
    if begun_by != "creation":
        made.append(begin())
        client.call("sandbox.terminate", {"key": dict(zip(("profile", "task"), made[0].key))})
    answers: list[Any] = []

    def use() -> None:
        try:
            answers.append((made or [begin()])[0].execute("echo x > /workspace/ran", bounded_capture=True))
        except EnvironmentConnectionError as error:
            answers.append({"returncode": 125, "output": str(error)})

    emulator.config(boot_ms=700)
    thread = threading.Thread(target=use)
    thread.start()
    eventually(lambda: "creating" in states(), "it is being made")
    hermes.end_session(session_id="s1")
    thread.join(30)
    assert answers[0]["returncode"] == 125 and "session has ended" in answers[0]["output"]
    eventually(lambda: not _ending, "all is ended that was to be")
    assert set(states()) == {"deleted"} and not hermes._ephemeral
    ended = made or [begin()]
    assert ok(ended[0], "ls /workspace") == ""  # it can be taken up again
    hermes.end_session(session_id="s1")
    eventually(lambda: set(states()) == {"deleted"}, "and ends again")


def test_what_an_ephemeral_sandbox_changed_comes_back_though_the_daemon_was_restarted(
    hermes: DeepInfraProvider, emulator: Emulator, again: Callable[..., None]
) -> None:
    cached = Path(os.environ["HERMES_HOME"]) / "cache" / "web" / "x"
    cached.parent.mkdir(parents=True)
    cached.write_text("x")
    environment = make(hermes, task_id="s1", container_config={"container_persistent": False})
    ok(environment, "echo changed > .hermes/cache/web/x", cwd="/workspace")
    again(kill=False)
    hermes.end_session(session_id="s1")
    eventually(lambda: all(one["state"] == "deleted" for one in emulator.sandboxes()), "it is gone")
    came = "changed\n" if hasattr(tarfile, "data_filter") else "x"  # Python before 3.11.4: nothing comes back
    assert cached.read_text() == came


KILLS = (
    "pkill -TERM -P 99 2>/dev/null; kill 99 2>/dev/null; true",
    "kill 99 2>/dev/null",
    "rm -rf /tmp/hermes_rkernel_0",
)


def test_hermes_ending_its_own_processes_starts_no_sandbox(hermes: DeepInfraProvider, emulator: Emulator) -> None:
    environment = make(hermes)
    ok(environment, "true")
    (sandbox,) = emulator.sandboxes()
    control(emulator, f"sandboxes/{sandbox['sandbox_id']}/stop")
    for command in KILLS:
        assert ok(environment, command, cwd="/", timeout=15) == ""
        assert [one["state"] for one in emulator.sandboxes()] == ["stopped"]
    assert environment.execute("true")["environment_recreated"] is True  # it is told to a command of the model's


def test_an_ephemeral_sandbox_that_is_used_after_its_session_ends_with_the_next(
    hermes: DeepInfraProvider, emulator: Emulator
) -> None:
    def left() -> int:
        return sum(one["state"] != "deleted" for one in emulator.sandboxes())

    environment = make(hermes, task_id="s1", container_config={"container_persistent": False})
    hermes.end_session(session_id="s1")
    eventually(lambda: left() == 0, "it is gone")
    for command in KILLS:
        assert ok(environment, command, cwd="/", timeout=15) == ""
    assert left() == 0
    ok(environment, "true")  # the session was taken up again
    assert left() == 1
    hermes.end_session(session_id="s1")
    eventually(lambda: left() == 0, "it is gone again")


def test_profiles_and_tasks_have_sandboxes_of_their_own(
    hermes: DeepInfraProvider, emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok(make(hermes), "echo mine > f")
    other_task = make(hermes, task_id="session:2")
    assert other_task.execute("cat f")["returncode"] == 1
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "other"))
    assert make(hermes).execute("cat f")["returncode"] == 1
    assert len(emulator.sandboxes()) == 3
    other_task.cleanup(force_remove=True)
    eventually(lambda: len(hermes.client.call("sandbox.list")["sandboxes"]) == 2, "gone")


def test_a_stop_behind_our_back_is_survived_and_said(hermes: DeepInfraProvider, emulator: Emulator) -> None:
    environment = make(hermes)
    ok(environment, "echo kept > f; export LOST=1; mkdir -p /tmp/d; cd /tmp/d")
    assert environment.cwd == "/tmp/d"
    (sandbox,) = emulator.sandboxes()
    control(emulator, f"sandboxes/{sandbox['sandbox_id']}/stop")
    command = "cat /workspace/f; echo lost=$LOST; mkdir /tmp/new; cd /tmp/new"
    result = environment.execute(command, cwd="/tmp/d", bounded_capture=True)
    assert result["environment_recreated"] is True and result["output"].split() == ["kept", "lost="]
    assert ok(environment, "pwd", cwd="/tmp/new") == "/tmp/new"
    after = environment.execute("pwd; cat /workspace/f; echo lost=$LOST", cwd="/tmp/d")
    assert after["output"].split() == ["/workspace", "kept", "lost="]
    assert "environment_recreated" not in after


def test_a_removal_behind_our_back_takes_the_sessions_directory_with_it(hermes: DeepInfraProvider, emulator: Emulator) -> None:
    """All of /workspace is gone, and no command can begin in what was a directory of it."""
    environment = make(hermes)
    ok(environment, "mkdir -p proj other; cd proj")
    assert environment.cwd == "/workspace/proj"
    ok(environment, "pwd", cwd="/workspace/other")
    emulator.delete_sandbox(emulator.sandboxes()[0]["sandbox_id"])
    result = environment.execute("pwd; ls", bounded_capture=True)
    assert (result["output"], result["returncode"], result["environment_recreated"]) == ("/workspace\n", 0, True)
    assert ok(environment, "pwd", cwd="/workspace/other") == "/workspace"  # another session's


@pytest.mark.parametrize("why", ["fresh", "removed", "removed before the agent was started", "no session"])
def test_the_directory_that_was_asked_for_is_there_in_a_new_sandbox(
    hermes: DeepInfraProvider, emulator: Emulator, why: str
) -> None:
    """hermes sends each session's first command to terminal.cwd, and could not even make it there."""
    wanted = "/workspace/some 'project'/src"
    if why == "no session":
        ok(make(hermes), "echo exit 3 > ~/.bash_profile")  # then no session can be made
    environment = make(hermes, cwd=wanted)
    if why.startswith("removed"):
        ok(environment, "touch f; cd ..", cwd=wanted)
        emulator.delete_sandbox(emulator.sandboxes()[0]["sandbox_id"])
    if why == "removed before the agent was started":
        _known.clear()
        environment = make(hermes, cwd=wanted)
    result = environment.execute("pwd; ls", cwd=wanted, bounded_capture=True)
    assert (result["output"], result["returncode"]) == (f"{wanted}\n", 0)
    assert ok(environment, "pwd") == wanted
    before = total_requests(emulator)
    ok(environment, "pwd", cwd=wanted)
    assert why == "no session" or total_requests(emulator) - before == 1


def test_what_is_asked_for_in_vain_as_a_directory_is_told_by_the_command(hermes: DeepInfraProvider) -> None:
    ok(make(hermes), "touch file", cwd="/workspace")
    for cwd in ("/workspace/file/x", "/opt/x"):  # what is not below /workspace is nobody's to make
        environment = make(hermes, cwd=cwd)
        result = environment.execute("true", cwd=cwd, bounded_capture=True)
        assert result["returncode"] == 126 and cwd in result["output"]
    assert environment.execute("test -e /opt/x", cwd="/")["returncode"] == 1


def test_a_sandbox_stopped_behind_our_back_is_started_by_no_poller_and_no_cleanup(
    hermes: DeepInfraProvider, emulator: Emulator
) -> None:
    cached = Path(os.environ["HERMES_HOME"]) / "cache" / "web" / "x"
    cached.parent.mkdir(parents=True)
    cached.write_text("x")
    environment = make(hermes)
    ok(environment, "nohup sleep 600 > /dev/null 2>&1 < /dev/null & echo $! > /tmp/pid")
    ok(environment, "echo changed > .hermes/cache/web/x", cwd="/workspace")
    polls: list[Any] = []

    def poll() -> None:
        polls.append(environment.execute('kill -0 "$(cat /tmp/pid)" 2>/dev/null; echo $?', timeout=5, cwd="/"))

    def on_poller() -> str:
        poller = threading.Thread(target=poll, name="proc-poller-1")
        poller.start()
        poller.join(30)
        return str(polls[-1]["output"])

    assert on_poller() == "0\n"
    (sandbox,) = emulator.sandboxes()
    for meet_it in (on_poller, lambda: environment.cleanup(force_remove=False)):
        control(emulator, f"sandboxes/{sandbox['sandbox_id']}/stop")
        begun = time.monotonic()
        assert meet_it() in ("", None) and time.monotonic() - begun < 1.5  # hermes would sleep before it tries again
        eventually(lambda: on_poller() == "1\n", "the daemon has looked, and the process is known to be gone")
        assert [one["state"] for one in emulator.sandboxes()] == ["stopped"]
        ok(environment, "true")
    assert ok(environment, "cat .hermes/cache/web/x", cwd="/workspace") == "changed"


def test_from_nothing_to_a_first_command(
    tmp_path: Path, emulator: Emulator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No daemon, no systemd, a key that is typed in: what `hermes setup` does, and then a command."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "deepinfra-sandboxd").symlink_to(find_binary())
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DEEPINFRA_BASE_URL", emulator.url)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    provider = DeepInfraProvider()
    assert not provider.is_available() and provider.check_requirements({})
    assert provider.probe()[0] == "needs_setup" and not provider.is_available()  # looking starts nothing
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    pid = 0
    try:
        for typed, shown in (("wrong", "!! unauthorized"), (KEY, "ok DeepInfra API key: (accepted)")):
            monkeypatch.setattr("getpass.getpass", lambda prompt, typed=typed: typed)
            provider.post_setup()
            pid = pid or provider.client.call("daemon.status")["daemon"]["pid"]
            out = capsys.readouterr().out
            assert "ok deepinfra-sandboxd: (version" in out and shown in out and out.count("!!") == (typed == "wrong")
        assert provider.is_available() and provider.probe() == ("ready", "")
        assert ok(make(provider), "echo first") == "first"
    finally:
        provider.client.close()
        if pid:
            os.kill(pid, signal.SIGTERM)
            eventually(lambda: not Path(f"/proc/{pid}").exists(), "it has ended")


def test_an_interrupt_ends_one_command_and_nothing_else(hermes: DeepInfraProvider) -> None:
    environment = make(hermes)
    ok(environment, "(while :; do echo x >> ticks; sleep 0.05; done) > /dev/null 2>&1 &")
    thread = threading.get_ident()
    timer = threading.Timer(0.5, lambda: interrupt.set_interrupt(True, thread))
    timer.start()
    try:
        result = environment.execute("echo before; sleep 100")
    finally:
        interrupt.set_interrupt(False, thread)
    assert result["returncode"] == 130 and "before" in result["output"]
    count = int(ok(environment, "wc -l < ticks"))
    eventually(lambda: int(ok(environment, "wc -l < ticks")) > count, "the loop goes on")


def test_time_up_is_punctual_and_keeps_the_output(hermes: DeepInfraProvider) -> None:
    environment = make(hermes)
    begun = time.monotonic()
    result = environment.execute("echo before; sleep 100", timeout=2)
    assert result["returncode"] == 124 and "before" in result["output"]
    assert 2 <= time.monotonic() - begun < 3


def test_a_daemon_that_was_restarted_is_found_again(hermes: DeepInfraProvider, daemon: Daemon) -> None:
    environment = make(hermes)
    ok(environment, "echo kept > f; export KEPT=1")
    daemon.stop()
    hermes.client.patience = 0.3
    result = environment.execute("touch /workspace/ran", bounded_capture=True)
    assert result["returncode"] == 125 and "infrastructure error" in result["output"]
    with pytest.raises(EnvironmentConnectionError, match="infrastructure error.*nothing was run"):
        environment.execute("touch /workspace/ran")
    assert not Path("/workspace/ran").exists()
    daemon.start()
    assert ok(environment, "cat f; echo $KEPT; ls ran 2>/dev/null; true").split() == ["kept", "1"]


def test_without_a_daemon_nothing_is_made(hermes: DeepInfraProvider, daemon: Daemon) -> None:
    daemon.stop()
    with pytest.raises(EnvironmentConnectionError, match="not running"):
        make(hermes)
    assert hermes.check_requirements({}) in (True, False)
    assert hermes.probe()[0] == "unavailable"


def test_the_agents_key_reaches_a_daemon_that_has_none(
    tmp_path: Path, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(tmp_path, emulator.url, None)
    daemon.start()
    try:
        monkeypatch.setenv("DEEPINFRA_SANDBOXD_SOCKET", str(daemon.socket))
        provider = DeepInfraProvider()
        with pytest.raises(EnvironmentConnectionError):
            make(provider)
        monkeypatch.setenv("DEEPINFRA_API_KEY", "wrong")
        with pytest.raises(EnvironmentConnectionError):
            make(provider)
        monkeypatch.setenv("DEEPINFRA_API_KEY", KEY)
        assert ok(make(provider), "echo hi") == "hi"
        monkeypatch.setenv("DEEPINFRA_API_KEY", "another")
        with pytest.raises(EnvironmentConnectionError, match="account_mismatch"):
            make(provider)
        assert provider.doctor_checks()[-1][0] is False
    finally:
        daemon.stop()


def test_a_key_that_is_refused_gives_way_to_the_one_that_hermes_has_now(
    tmp_path: Path, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Daemon(tmp_path, emulator.url, "revoked") as daemon:
        monkeypatch.setenv("DEEPINFRA_SANDBOXD_SOCKET", str(daemon.socket))
        provider = DeepInfraProvider()
        monkeypatch.setenv("DEEPINFRA_API_KEY", "revoked")
        with pytest.raises(EnvironmentConnectionError, match="answered 401"):
            make(provider)
        ok_, name, text = provider.doctor_checks()[-1]
        assert (ok_, name) == (False, "unauthorized") and "hermes config set DEEPINFRA_API_KEY" in text
        monkeypatch.setenv("DEEPINFRA_API_KEY", KEY)
        assert "is refused; not yet tried" in provider.doctor_checks()[-1][2]
        assert ok(make(provider), "echo hi") == "hi"
        assert provider.doctor_checks()[-1] == (True, "DeepInfra API key", "(accepted)")
        provider.client.close()


def test_so_does_one_of_which_the_daemon_has_not_heard_yet(
    tmp_path: Path, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was withdrawn while nothing went on."""
    with Daemon(tmp_path, emulator.url, "revoked") as daemon:
        monkeypatch.setenv("DEEPINFRA_SANDBOXD_SOCKET", str(daemon.socket))
        monkeypatch.setenv("DEEPINFRA_API_KEY", KEY)
        provider = DeepInfraProvider()
        assert ok(make(provider), "echo hi") == "hi"
        provider.client.close()


@pytest.mark.parametrize("asked_for", ["command", "sandbox"])
def test_a_key_that_is_replaced_reaches_the_sessions_that_go_on(
    tmp_path: Path, emulator: Emulator, monkeypatch: pytest.MonkeyPatch, asked_for: str
) -> None:
    emulator.config(more_keys="old-key")
    with Daemon(tmp_path, emulator.url, "old-key") as daemon:
        monkeypatch.setenv("DEEPINFRA_SANDBOXD_SOCKET", str(daemon.socket))
        monkeypatch.setenv("DEEPINFRA_API_KEY", "old-key")
        provider = DeepInfraProvider()
        environment = make(provider)
        ok(environment, "echo kept > f")
        monkeypatch.setenv("DEEPINFRA_API_KEY", KEY)
        ok(environment, "echo >> f")  # the old one is good as yet, and none is mixed with another
        if asked_for == "sandbox":
            provider.client.call("sandbox.stop", {"key": dict(zip(("profile", "task"), environment.key))})
        revoked = {"status": 401, "body": '{"detail": "revoked"}'}
        emulator.fault(revoked, method="POST")
        emulator.fault(revoked, method="GET", route="/v1/sandboxes")  # by which the daemon makes sure
        assert ok(environment, "cat /workspace/f; echo x >> /workspace/ran", bounded_capture=True) == "kept"
        assert ok(environment, "cat ran", cwd="/workspace") == "x"
        assert provider.doctor_checks()[-1] == (True, "DeepInfra API key", "(accepted)")
        provider.client.close()


def test_one_reader_that_stops_delays_no_other_command(client: Client) -> None:
    stuck = client.start(script="yes", window=65536)
    first = stuck.read(20)
    assert first is not None
    begun = time.monotonic()
    assert client.run(["echo", "quick"]).stdout == b"quick\n"
    assert time.monotonic() - begun < 5
    assert stuck.cancel() in (True, False)
    result = stuck.wait(20)
    # What the command had written by then arrives in order.
    assert result.reason == "cancelled" and first.data + result.stdout == b"y\n" * (result.output_bytes // 2)
    assert result.dropped_bytes == 0
