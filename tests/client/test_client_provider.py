"""The provider's members, its diagnoses and the plugin's packaging."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable

import pytest
from fake_daemon import NO_ANSWER, ROOT, Message, Peer, Refusal, ShellDaemon, eventually

import deepinfra_sandboxd
from agent import secret_scope
from agent.terminal_env_provider import TerminalEnvironmentProvider
from deepinfra_sandboxd import DaemonNotRunning, daemon
from deepinfra_sandboxd import environment as environment_module
from deepinfra_sandboxd.environment import DeepInfraEnvironment, fingerprint
from deepinfra_sandboxd.environment import profile_home, profile_identity
from deepinfra_sandboxd.provider import KEY_HINT, DeepInfraProvider
from tools import interrupt
from tools.environments.base import EnvironmentConnectionError

PACKAGE = ROOT / "client-py" / "deepinfra_sandboxd"
REFUSED_KEY = {"code": "unauthorized", "severity": "error", "text": "The key was refused.", "hint": "make a new one"}


def refuse(name: str, text: str, hint: str = "") -> Any:
    def handler(peer: Peer, params: Message) -> Message:
        raise Refusal(name, text, hint=hint)

    return handler


class Context:
    """hermes's plugin context, as far as plugins may rely on it."""

    def __init__(self, **settings: Any) -> None:
        self.settings, self.hooks = settings, {}
        self.providers: list[TerminalEnvironmentProvider] = []

    def get_config(self, key: str, default: Any = None) -> Any:
        return self.settings.get(key, default)

    def register_terminal_environment_provider(self, provider: Any) -> None:
        assert isinstance(provider, TerminalEnvironmentProvider)
        self.providers.append(provider)

    def register_hook(self, name: str, callback: Any) -> None:
        self.hooks[name] = callback


def test_the_members_hermes_reads() -> None:
    context = Context()
    deepinfra_sandboxd.register(context)
    (provider,) = context.providers
    assert provider.name == "deepinfra"
    assert provider.is_remote and provider.is_container and provider.skip_container_guards
    assert provider.session_isolated_when_nonpersistent
    assert provider.cache_path_base == "/workspace/.hermes"
    assert provider.strip_env_keys == {"DEEPINFRA_API_KEY"}
    assert provider.display_name and provider.description and provider.env_description
    assert any("terminal.backend deepinfra" in line for line in provider.setup_instructions())
    assert list(context.hooks) == ["on_session_finalize"]
    forbidden = ("local", "ssh", "docker", "singularity", "modal", "daytona")
    assert not any(word in DeepInfraEnvironment.__name__.lower() for word in forbidden)


def test_settings_of_the_plugin_are_used(shell: ShellDaemon) -> None:
    context = Context(plan="xl", socket=str(shell.path))
    deepinfra_sandboxd.register(context)
    provider = context.providers[0]
    assert provider.is_available()
    environment = provider.create_environment(cwd="", timeout=5, surprise=1, image="x")
    assert shell.wait_for("sandbox.ensure")["plan"] == "xl"
    assert environment.cwd == str(shell.directory)


def test_settings_come_from_the_variable_then_the_backends_own_then_the_plugins(
    shell: ShellDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = Context(plan="plugin", socket=str(shell.path), persistent=False, interrupt="term", idle_stop=90)
    deepinfra_sandboxd.register(context)
    (provider,) = context.providers
    assert isinstance(provider, DeepInfraProvider)
    environment = provider.create_environment(cwd="", timeout=5, task_id="s")
    ensured = shell.wait_for("sandbox.ensure")
    assert (ensured["plan"], ensured["persistent"]) == ("plugin", False) and environment._persistent is False
    assert ensured["idle_stop_s"] == 90
    threading.Timer(0.2, lambda: interrupt.set_interrupt(True, thread)).start()
    thread = threading.get_ident()
    try:
        assert environment.execute("sleep 60")["returncode"] == 130
    finally:
        interrupt.set_interrupt(False, thread)
    assert shell.wait_for("exec.cancel")["signal"] == "TERM"
    own = {"plan": "backend", "persistent": True}
    config = {"container_persistent": True}  # hermes's own, with which it agrees
    provider.create_environment(cwd="", timeout=5, backend_config=own, container_config=config)
    ensured = shell.wait_for("sandbox.ensure", shell.methods().count("sandbox.ensure"))
    assert (ensured["plan"], ensured["persistent"]) == ("backend", True)
    monkeypatch.setenv("DEEPINFRA_SANDBOX_PLAN", "variable")
    provider.create_environment(cwd="", timeout=5, backend_config=own)
    assert shell.wait_for("sandbox.ensure", shell.methods().count("sandbox.ensure"))["plan"] == "variable"
    provider.client.close()


@pytest.mark.parametrize(
    ("chosen", "seconds"),
    [(None, 0), ("", 0), (300, 300), ("600", 600), ("90s", 90), ("2h", 7200), ("7d", 604800), ("7", 30), (0, 0), ("1.5h", 5400), ("500ms", 30)]
    + [("soon", 0), ("-5", 0), ("99999d", 31536000)],
)
def test_an_idle_time_is_told_with_each_use_of_the_sandbox(
    shell: ShellDaemon, caplog: pytest.LogCaptureFixture, chosen: Any, seconds: int
) -> None:
    provider = DeepInfraProvider({"idle_stop": chosen, "socket": str(shell.path)}.get)
    provider.create_environment(cwd="", timeout=5).execute("true")
    # Where nothing was chosen that is said once: somebody else may choose later.
    told = [shell.wait_for("sandbox.ensure", number).get("idle_stop_s") for number in (1, 2)]
    assert told == [seconds, seconds or None]
    assert ("`idle_stop`" in caplog.text) == (chosen in ("soon", "-5"))
    provider.client.close()


def test_what_is_chosen_while_a_session_goes_on_counts_from_the_next_command(
    shell: ShellDaemon, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hermes keeps an environment as long as it is used, and its sandbox may have to be made again."""
    monkeypatch.setattr(environment_module, "SETTINGS_AGE", 0.0)
    context = Context(plan="small", socket=str(shell.path), idle_stop="5m")
    deepinfra_sandboxd.register(context)
    environment = context.providers[0].create_environment(cwd="", timeout=5)
    told: list[Any] = []
    for chosen in ({"plan": "large", "idle_stop": "1h"}, {"plan": None, "idle_stop": None}, {}, {"idle_stop": "eventually"}, {}):
        context.settings |= chosen
        environment.execute("true")
        ensured = shell.wait_for("sandbox.ensure", shell.methods().count("sandbox.ensure"))
        told.append((ensured.get("plan"), ensured.get("idle_stop_s")))
    assert told == [("large", 3600), (None, 0), (None, None), (None, None), (None, None)]
    assert caplog.text.count("'eventually'") == 1  # not with each command
    context.settings = None  # type: ignore[assignment]  # hermes's configuration cannot be read just now
    assert environment.execute("echo on")["output"] == "on\n"
    environment._client.close()


def test_hermes_is_not_asked_for_its_settings_with_each_command(
    shell: ShellDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_module, "SETTINGS_AGE", 1000.0)
    asked: list[str] = []
    monkeypatch.setenv("DEEPINFRA_SANDBOXD_SOCKET", str(shell.path))
    provider = DeepInfraProvider(lambda name, default: asked.append(name))
    environment = provider.create_environment(cwd="", timeout=5)
    before = list(asked)
    environment.execute("true")
    assert asked == before and "plan" in before
    provider.client.close()


def test_a_daemon_that_does_not_know_idle_times_is_told_none(shell: ShellDaemon, caplog: pytest.LogCaptureFixture) -> None:
    provider = DeepInfraProvider({"idle_stop": 300, "socket": str(shell.path)}.get)
    shell.capabilities.remove("idle_stop")
    provider.create_environment(cwd="", timeout=5).execute("true")
    assert all("idle_stop_s" not in shell.wait_for("sandbox.ensure", number) for number in (1, 2))
    assert caplog.text.count("too old for the setting `idle_stop`") == 1
    provider.client.close()


@pytest.mark.parametrize(
    ("chosen", "hermes", "ephemeral"),
    [(False, False, True), ("no", None, True), (None, False, True), ("true", True, False), (None, None, False)],
)
def test_persistence_is_what_hermes_and_the_plugin_agree_on(
    shell: ShellDaemon, provider: DeepInfraProvider, chosen: Any, hermes: Any, ephemeral: bool
) -> None:
    config = {"container_cpu": 1} | ({} if hermes is None else {"container_persistent": hermes})
    own = {} if chosen is None else {"persistent": chosen}
    options: dict[str, Any] = {"cwd": "", "timeout": 5, "task_id": "s"}
    environment = provider.create_environment(container_config=config, backend_config=own, **options)
    assert shell.wait_for("sandbox.ensure")["persistent"] is not ephemeral
    assert environment._persistent is not ephemeral and environment._session_scoped is ephemeral


@pytest.mark.parametrize("chosen", ["false", "true"])
def test_a_persistence_that_hermes_does_not_know_of_is_refused_with_what_to_set(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    """hermes would give the task no key of the session's own, or tell nobody of the session's end."""
    monkeypatch.setenv("DEEPINFRA_SANDBOX_PERSISTENT", chosen)
    config = {"container_persistent": chosen == "false"}
    with pytest.raises(EnvironmentConnectionError, match="persistence_mismatch") as caught:
        provider.create_environment(cwd="", timeout=5, container_config=config)
    assert f"set `terminal.container_persistent: {chosen}`" in str(caught.value)
    assert caught.value.retry_hint == f"hermes config set terminal.container_persistent {chosen}"
    assert "sandbox.ensure" not in shell.methods()


def test_the_schema_of_the_settings_is_one_that_hermes_takes() -> None:
    schema = DeepInfraProvider().get_config_schema()
    assert set(schema) == {"plan", "idle_stop", "persistent", "socket", "interrupt"}
    for name, entry in schema.items():
        assert re.fullmatch("[A-Za-z0-9_-]+", name) and json.loads(json.dumps(entry)) == entry
        assert entry["type"] in ("string", "boolean", "select") and entry["description"]
        assert entry["type"] != "select" or entry["default"] in entry["options"]


def test_being_available_is_looked_at_not_connected(shell: ShellDaemon, provider: DeepInfraProvider) -> None:
    assert provider.is_available()
    assert shell.peers == []
    shell.stop()
    assert not provider.is_available()


def test_the_prompt_probe_makes_nothing(shell: ShellDaemon, provider: DeepInfraProvider) -> None:
    probe = provider.create_environment(cwd="", timeout=180, task_id="prompt-backend-probe")
    probe._hermes_backend_name = "deepinfra"
    probe.env_type = "deepinfra"
    result = probe.execute("printf 'os=%s' \"$(uname -s)\"", timeout=4)
    facts = dict(line.split("=", 1) for line in result["output"].splitlines())
    assert result["returncode"] == 0 and facts["os"] == "Linux"
    assert facts["cwd"] == "/workspace" and facts["kernel"]
    probe.cleanup(force_remove=True)
    shell.stop()
    assert shell.messages == []


def test_requirements_hold_when_the_daemon_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    provider = DeepInfraProvider()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provider.check_requirements({}) is False
    assert "not installed" in caplog.text
    binary = tmp_path / "deepinfra-sandboxd"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    assert provider.check_requirements({}) is True


def test_a_service_with_a_bare_path_finds_the_daemon_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    provider, socket = DeepInfraProvider(), tmp_path / "own.sock"
    assert provider.check_requirements({}) is False and daemon.start(str(socket)) == ""
    usual = Path(daemon.USUAL_DIRECTORIES)
    usual.mkdir()
    (usual / "deepinfra-sandboxd").write_text(f"#!/bin/sh\necho $@ > {tmp_path}/started\n")
    (usual / "deepinfra-sandboxd").chmod(0o755)
    assert provider.check_requirements({}) is True
    assert daemon.start(str(socket)) == f"tail {daemon.log_file()}"
    eventually((tmp_path / "started").exists, "it has been spawned")


def test_what_the_backend_configures_counts_before_there_is_an_environment(
    shell: ShellDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As newer hermes passes it; the plugin's own setting names no daemon, and there is no program to start one."""
    monkeypatch.setenv("PATH", str(tmp_path))
    bare = DeepInfraProvider(lambda name, default=None: "/nowhere/plugin.sock" if name == "socket" else default)
    own = {"socket": str(shell.path)}
    assert bare.check_requirements({"backend_config": own, "env_type": "deepinfra"}) is True
    assert bare.check_requirements({"env_type": "deepinfra"}) is False
    assert bare.probe_with_config(own) == ("ready", "")
    assert bare.probe()[0] == "unavailable" and "/nowhere/plugin.sock" in bare.probe()[1]


def test_a_probe_never_raises(shell: ShellDaemon) -> None:
    def broken(name: str, default: Any = None) -> Any:
        raise ValueError("the configuration cannot be read")

    provider = DeepInfraProvider(broken)
    for probe in (provider.probe, lambda: provider.probe_with_config({"plan": "xl"})):
        assert probe() == ("unavailable", "ValueError: the configuration cannot be read")
    assert provider.doctor_checks()[-1][0] is False


def test_the_doctor_says_how_a_daemon_that_is_missing_is_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ok, label, text = DeepInfraProvider().doctor_checks()[-1]
    assert (ok, label) == (False, "deepinfra-sandboxd") and "install deepinfra-sandboxd" in text
    (tmp_path / "deepinfra-sandboxd").write_text("#!/bin/sh\n")
    (tmp_path / "deepinfra-sandboxd").chmod(0o755)
    ok, label, text = DeepInfraProvider().doctor_checks()[-1]
    assert (ok, label) == (False, "deepinfra-sandboxd") and "install" not in text
    assert "systemctl --user start deepinfra-sandboxd" in text


def test_the_doctor_tells_the_causes_apart(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    def last() -> tuple[bool, str, str]:
        return provider.doctor_checks()[-1]

    assert last() == (True, "DeepInfra API key", "(accepted)")
    capable, shell.capabilities = shell.capabilities, ["exec.attach"]
    assert last()[:2] == (False, "deepinfra-sandboxd version") and "lacks: exec.stdin, fs, generation" in last()[2]
    assert "systemctl --user restart deepinfra-sandboxd" in last()[2]
    assert provider.probe()[0] == "needs_setup"
    shell.capabilities = capable
    assert provider.probe() == ("ready", "")
    shell.account = {"configured": False, "fingerprint": None}
    assert last()[0] is False and "hermes config set DEEPINFRA_API_KEY" in last()[2]
    assert provider.probe()[0] == "needs_setup"
    shell.account = {"configured": True, "fingerprint": fingerprint("other")}
    monkeypatch.setenv("DEEPINFRA_API_KEY", "mine")
    assert last()[0] is False and "not the running daemon's key: hermes config set" in last()[2]
    assert "deepinfra-sandboxd serve" in last()[2]
    shell.on["hello"] = lambda peer, params: {"protocol": 7}
    assert last()[1] == "deepinfra-sandboxd version" and "protocol 7" in last()[2]
    assert "pip install" in last()[2] and "systemctl --user restart" in last()[2]
    shell.on["hello"] = lambda peer, params: NO_ANSWER
    begun = time.monotonic()
    status, detail = provider.probe()
    assert status == "needs_setup" and "did not answer" in detail
    assert time.monotonic() - begun < 2
    shell.stop()
    assert last()[0] is False and "not running" in last()[2] and "start" in last()[2]
    assert provider.probe()[0] == "unavailable"


def test_the_doctor_asks_whether_the_key_is_good_and_the_picker_only_what_is_known(
    shell: ShellDaemon, provider: DeepInfraProvider
) -> None:
    shell.on["plan.list"] = refuse("unauthorized", "the key was refused", hint="make a new one")
    fix = f"make a new one; {KEY_HINT}"
    assert KEY_HINT.startswith("hermes config set DEEPINFRA_API_KEY <key>")
    assert provider.doctor_checks()[-1] == (False, "unauthorized", f"the key was refused: {fix}")
    assert provider.probe() == ("ready", "")
    shell.on["daemon.health"] = lambda peer, params: {"health": [REFUSED_KEY]}
    assert provider.probe() == ("needs_setup", f"The key was refused. {fix}")


def test_a_refused_key_that_hermes_has_a_new_one_for_is_replaced_not_mourned(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("deepinfra_sandboxd.daemon.start", lambda *a, **how: "")
    monkeypatch.setenv("DEEPINFRA_API_KEY", "new")
    shell.account, shell.key_refused = {"configured": True, "fingerprint": fingerprint("old")}, True
    good = shell.on["plan.list"]
    shell.on["plan.list"] = refuse("unauthorized", "the key was refused")  # which the daemon learns only now
    for health in ([], [REFUSED_KEY]):
        shell.on["daemon.health"] = lambda peer, params, health=health: {"health": health if shell.key_refused else []}
        ok, label, text = provider.doctor_checks()[-1]
        assert (ok, label) == (True, "DeepInfra API key") and "is refused; not yet tried" in text
    assert "account.set" not in shell.methods()
    shell.on["plan.list"] = good
    provider.post_setup()
    assert shell.wait_for("account.set") == {"api_key": "new"}
    assert "ok DeepInfra API key: (accepted)" in capsys.readouterr().out


@pytest.mark.parametrize("method", ["hello", "daemon.health", "plan.list"])
def test_the_doctor_is_quick_whatever_does_not_answer(
    shell: ShellDaemon, provider: DeepInfraProvider, method: str
) -> None:
    """`hermes status` prints it, too."""
    shell.on[method] = lambda peer, params: NO_ANSWER
    begun = time.monotonic()
    ok, label, detail = provider.doctor_checks()[-1]
    assert time.monotonic() - begun < 2.5
    if method == "plan.list":  # the daemon is well: it waits for the cloud
        assert (ok, label) == (False, "DeepInfra API key") and "deepinfra-sandboxd doctor" in detail
    else:
        assert (ok, label) == (False, "deepinfra-sandboxd") and "systemctl --user restart" in detail


def test_setting_up_starts_the_daemon_hands_it_the_key_and_says_what_is_missing(
    shell: ShellDaemon,
    provider: DeepInfraProvider,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    started: list[dict[str, Any]] = []
    monkeypatch.setattr("deepinfra_sandboxd.daemon.start", lambda *a, **how: started.append(how) or True)
    shell.account = {"configured": False, "fingerprint": None}
    provider.post_setup()  # not on a terminal, so nobody is asked
    assert "!! DeepInfra API key: the daemon has none" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda prompt: " typed ")
    provider.post_setup()
    assert shell.wait_for("account.set") == {"api_key": "typed"}
    out = capsys.readouterr().out
    assert "ok DeepInfra API key" in out and "typed" not in out
    assert started == [{"enable": True}] * 2
    shell.stop()
    monkeypatch.setattr("deepinfra_sandboxd.daemon.start", lambda *a, **how: False)
    provider.post_setup()
    assert "!! deepinfra-sandboxd" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("chosen", "sent"),
    [("SIGTERM", "TERM"), ("sigint", "INT"), ("kill", "KILL"), ("", "KILL"), ("HUP", "KILL"), ("15", "KILL")],
)
def test_the_signal_of_an_interrupt_is_always_one_that_ends_the_command(
    provider: DeepInfraProvider,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    chosen: str,
    sent: str,
) -> None:
    monkeypatch.setenv("DEEPINFRA_SANDBOX_INTERRUPT", chosen)
    environment = provider.create_environment(cwd="", timeout=5)
    assert environment._signal == sent
    assert (f"'{chosen}'" in caplog.text) is (chosen in ("HUP", "15"))


def test_a_key_that_was_not_tried_or_is_refused_is_never_called_accepted(
    shell: ShellDaemon,
    provider: DeepInfraProvider,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        "deepinfra_sandboxd.daemon.start", lambda *a, **how: ""
    )  # one runs, of which we have no program
    monkeypatch.setenv("DEEPINFRA_API_KEY", "mine")
    shell.account = {"configured": False, "fingerprint": None}
    assert provider.doctor_checks()[-1][0] is True and "not yet tried" in provider.doctor_checks()[-1][2]
    assert "account.set" not in shell.methods()
    shell.on["account.set"] = refuse("unauthorized", "the key was refused", hint="make a new one")
    for typed in (False, True):
        if typed:
            monkeypatch.delenv("DEEPINFRA_API_KEY")
            monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
            monkeypatch.setattr("getpass.getpass", lambda prompt: "typed")
        provider.post_setup()
        out = capsys.readouterr().out
        assert "!! unauthorized: the key was refused: make a new one" in out
        assert "ok DeepInfra" not in out and "typed" not in out


def test_what_keeps_the_daemon_from_being_started_is_shown(
    provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise DaemonNotRunning("no space left", hint="make room")

    monkeypatch.setattr("deepinfra_sandboxd.daemon.start", fail)
    provider.post_setup()
    assert "!! deepinfra-sandboxd: no space left" in capsys.readouterr().out


def test_a_picker_waits_less_than_two_seconds_whatever_the_daemon_does(
    shell: ShellDaemon, provider: DeepInfraProvider
) -> None:
    def slow(peer: Peer, params: Message) -> Message:
        time.sleep(0.4)
        return shell.hello()

    def hang_up(peer: Peer, params: Message) -> Any:
        peer.close()
        return NO_ANSWER

    shell.on["hello"], shell.on["daemon.health"] = slow, hang_up
    begun = time.monotonic()
    status, detail = provider.probe()
    assert time.monotonic() - begun < 2
    assert status == "needs_setup" and "did not answer" in detail and "systemctl --user restart" in detail


def test_what_the_backend_configures_itself_is_used(shell: ShellDaemon) -> None:
    bare = DeepInfraProvider(lambda name, default=None: "/nowhere/plugin.sock" if name == "socket" else default)
    own = {"socket": str(shell.path), "idle_stop": "5m", "interrupt": "INT"}
    environment = bare.create_environment(cwd="", timeout=5, backend_config=own)
    assert environment.execute("echo here")["output"] == "here\n"
    assert shell.wait_for("sandbox.ensure")["idle_stop_s"] == 300 and environment._signal == "INT"
    assert bare.create_environment(cwd="", timeout=5, backend_config=own)._client is environment._client
    with pytest.raises(EnvironmentConnectionError, match="/nowhere/plugin.sock"):
        bare.create_environment(cwd="", timeout=5)
    environment._client.close()


def test_a_profile_is_the_real_path_of_its_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/profiles/x", "b/profiles/x"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a/profiles/x")

    def identity(home: Path) -> str:
        monkeypatch.setenv("HERMES_HOME", str(home))
        return profile_identity(profile_home())

    assert identity(tmp_path / "a/profiles/x") != identity(tmp_path / "b/profiles/x")
    assert identity(tmp_path / "link") == identity(tmp_path / "a/profiles/x")
    with pytest.raises(OSError):
        identity(tmp_path / "missing")
    # The native home has the name that the daemon's command line uses by default.
    native = tmp_path / "user"
    (native / ".hermes").mkdir(parents=True)
    monkeypatch.setattr("deepinfra_sandboxd.daemon.home_dir", lambda: str(native))
    assert identity(native / ".hermes") == "default"
    assert identity(tmp_path / "link") != "default"


def test_errors_of_identity_and_of_unscoped_secrets_propagate(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(secret_scope, "multiplex_active", True)
    with pytest.raises(secret_scope.UnscopedSecretError):
        provider.create_environment(cwd="", timeout=5)
    assert provider.doctor_checks()[-1][0] is False
    monkeypatch.setattr(secret_scope, "multiplex_active", False)
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "missing"))
    with pytest.raises(OSError):
        provider.create_environment(cwd="", timeout=5)
    assert "sandbox.ensure" not in shell.methods()


def test_an_ephemeral_sandbox_goes_with_its_session(shell: ShellDaemon, provider: DeepInfraProvider) -> None:
    config = {"container_persistent": False}
    environment = provider.create_environment(cwd="", timeout=5, task_id="s1", container_config=config)
    assert environment._persistent is False and environment._session_scoped is True
    assert shell.wait_for("sandbox.ensure")["persistent"] is False
    kept = provider.create_environment(cwd="", timeout=5, task_id="s2")
    assert kept._persistent is True and kept._session_scoped is False
    environment.cleanup()
    environment.cleanup(force_remove=False)
    provider.end_session(session_id="s2", platform="cli")
    provider.end_session(session_id=None)
    assert "sandbox.release" not in shell.methods()
    provider.end_session(session_id="s1", reason="done")
    assert shell.wait_for("sandbox.release")["mode"] == "terminate"
    provider.end_session(session_id="s1")
    environment.execute("true")  # a session that is taken up again
    provider.end_session(session_id="s1")
    assert shell.wait_for("sandbox.release", 2)["mode"] == "terminate"
    assert shell.methods().count("sandbox.release") == 2


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Brings another profile into scope: a directory below a hermes home, or that itself."""

    def enter(name: str) -> Path:
        home = tmp_path / "root" / name
        home.mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv("HERMES_HOME", str(home))
        return home

    return enter


def ephemeral(provider: DeepInfraProvider, task: str) -> Any:
    return provider.create_environment(
        cwd="", timeout=5, task_id=task, container_config={"container_persistent": False}
    )


def released(shell: ShellDaemon, count: int) -> list[str]:
    """The tasks of the first *count* removals."""
    return [shell.wait_for("sandbox.release", number)["key"]["task"] for number in range(1, count + 1)]


@pytest.mark.parametrize("where", ["profiles/x", "profiles/a:b", "."])
@pytest.mark.parametrize("kind", ["profile", "home"])
def test_a_session_is_known_by_its_bare_id_also_where_hermes_qualifies_it(
    shell: ShellDaemon, provider: DeepInfraProvider, profiles: Callable[[str], Path], where: str, kind: str
) -> None:
    home = profiles(where).resolve()
    prefix = f"home:{home}" if kind == "home" else f"profile:{'default' if where == '.' else home.name}"
    environment = ephemeral(provider, f"{prefix}:s:1")
    provider.end_session(session_id="1")
    provider.end_session(session_id="s:1")
    assert released(shell, 1) == [f"{prefix}:s:1"] == [environment.key[1]]
    provider.end_session(session_id="s:1")
    assert environment.execute("echo again")["output"] == "again\n"  # it is waited for
    assert shell.methods().count("sandbox.release") == 1


def test_two_profiles_with_a_session_of_one_id_release_each_its_own(
    shell: ShellDaemon, provider: DeepInfraProvider, profiles: Callable[[str], Path]
) -> None:
    homes = [profiles("profiles/x"), profiles("profiles/y")]
    for home in homes:
        profiles(f"profiles/{home.name}")
        ephemeral(provider, "s1")
    for number, home in enumerate(homes, 1):
        profiles(f"profiles/{home.name}")
        provider.end_session(session_id="s1")  # which does not wait for it
        assert shell.wait_for("sandbox.release", number)["key"]["profile"] == str(home.resolve())


def test_a_session_that_is_not_the_profiles_own_is_left_alone(
    shell: ShellDaemon, provider: DeepInfraProvider, profiles: Callable[[str], Path]
) -> None:
    home = profiles("profiles/x")
    environments = [ephemeral(provider, task) for task in ("s1", "profile:other:s2", "home:/srv/other:s3")]
    for session in ("s2", "s3", "other:s2", ""):  # a prefix that is another profile's is none
        provider.end_session(session_id=session)
    profiles("profiles/y")
    provider.end_session(session_id="s1")
    home.rename(home.with_name("gone"))
    profiles("profiles/x").rmdir()
    provider.end_session(session_id="s1")  # there is no saying whose it is
    home.with_name("gone").rename(home)
    for environment in environments:
        assert environment.execute("echo there")["output"] == "there\n"
    assert "sandbox.release" not in shell.methods()
    provider.end_session(session_id="s1")
    assert released(shell, 1) == ["s1"]


def test_of_two_environments_for_one_session_its_end_releases_the_one_by_its_very_name(
    shell: ShellDaemon, provider: DeepInfraProvider, profiles: Callable[[str], Path]
) -> None:
    profiles("profiles/x")
    raw, qualified = ephemeral(provider, "s1"), ephemeral(provider, "profile:x:s1")
    for environment in (raw, qualified, raw, qualified):
        environment.execute("true")
    provider.end_session(session_id="s1")
    assert released(shell, 1) == ["s1"]
    assert raw.execute("echo again")["output"] == "again\n"  # behind the removal
    assert shell.methods().count("sandbox.release") == 1


def test_what_was_removed_before_is_not_removed_at_the_end_of_the_session(
    shell: ShellDaemon, provider: DeepInfraProvider
) -> None:
    environment = ephemeral(provider, "s1")
    environment.cleanup(force_remove=True)
    provider.end_session(session_id="s1")
    ephemeral(provider, "s2")
    provider.end_session(session_id="s2")
    assert released(shell, 2) == ["s1", "s2"] and not provider._ephemeral


def test_the_end_of_a_session_holds_up_nobody_but_who_takes_it_up_again(
    shell: ShellDaemon, provider: DeepInfraProvider
) -> None:
    options: dict[str, Any] = {"cwd": "", "timeout": 5, "container_config": {"container_persistent": False}}
    environment = provider.create_environment(task_id="s1", **options)
    other = provider.create_environment(task_id="s2", **options)
    gone, release = threading.Event(), shell.on["sandbox.release"]

    def held(peer: Peer, params: Message) -> Any:
        def answer() -> None:
            gone.wait(20)
            peer.send({"id": request, "result": release(peer, params)})

        request = next(m["id"] for m in reversed(shell.messages) if m["method"] == "sandbox.release")
        threading.Thread(target=answer).start()
        return NO_ANSWER

    shell.on["sandbox.release"] = held
    begun = time.monotonic()
    provider.end_session(session_id="s1")
    assert time.monotonic() - begun < 0.2  # hermes may call it on its event loop
    shell.wait_for("sandbox.release")
    again: list[Any] = []
    threads = [
        threading.Thread(target=lambda: again.append(environment.execute("echo again")["output"])),
        threading.Thread(target=lambda: again.append(provider.create_environment(task_id="s1", **options).key[1])),
    ]
    ensured = shell.methods().count("sandbox.ensure")
    for thread in threads:
        thread.start()
    assert other.execute("echo other")["output"] == "other\n"
    assert shell.methods().count("sandbox.ensure") == ensured + 1 and again == []
    gone.set()
    for thread in threads:
        thread.join(20)
    assert sorted(again) == ["again\n", "s1"]


@pytest.mark.parametrize("when", ["while it runs", "at exit"])
def test_a_session_that_ends_with_the_interpreter_is_released(
    shell: ShellDaemon, provider: DeepInfraProvider, when: str
) -> None:
    program = """
import atexit, sys
from deepinfra_sandboxd.provider import DeepInfraProvider
provider = DeepInfraProvider()
provider.create_environment(cwd="", timeout=5, task_id="s1", container_config={"container_persistent": False})
if sys.argv[1] == "at exit":
    atexit.register(provider.end_session, session_id="s1")
else:
    provider.end_session(session_id="s1")
"""
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program, when], check=True, env=surroundings, timeout=30)
    assert shell.wait_for("sandbox.release")["mode"] == "terminate"


def test_a_session_ends_also_where_no_thread_can_be_had(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"container_persistent": False}
    environment = provider.create_environment(cwd="", timeout=5, task_id="s1", container_config=config)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("no threads")))
        provider.end_session(session_id="s1")
    assert shell.methods().count("sandbox.release") == 1
    assert environment.execute("echo again")["output"] == "again\n"


def test_paths_do_not_follow_a_pinned_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("DEEPINFRA_SANDBOXD_STATE_DIR", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert not daemon.state_dir().startswith(str(tmp_path))
    assert daemon.state_dir().endswith("/.local/state/deepinfra-sandboxd")
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert daemon.state_dir() == "/x/deepinfra-sandboxd"
    assert daemon.socket_candidates("/one") == ["/one"]


def run_python(code: str, *arguments: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    result = subprocess.run([sys.executable, *arguments, "-c", code], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_copied_directory_is_a_plugin(tmp_path: Path) -> None:
    directory = tmp_path / "plugins" / "deepinfra-sandbox"
    shutil.copytree(PACKAGE, directory, ignore=shutil.ignore_patterns("__pycache__"))
    assert (directory / "plugin.yaml").is_file()
    code = f"""
import importlib.util, sys, types
sys.modules["hermes_plugins"] = types.ModuleType("hermes_plugins")  # as hermes does it
sys.path.insert(0, {str(ROOT / "tests/client/hermes_stub")!r})
spec = importlib.util.spec_from_file_location("hermes_plugins.x", {str(directory / "__init__.py")!r},
                                              submodule_search_locations=[{str(directory)!r}])
module = importlib.util.module_from_spec(spec)
sys.modules["hermes_plugins.x"] = module
spec.loader.exec_module(module)
class Context:
    def register_terminal_environment_provider(self, provider): print(provider.name)
module.register(Context())
"""
    assert run_python(code) == "deepinfra\n"


def test_importing_needs_no_hermes() -> None:
    code = f"""
import sys
sys.path.insert(0, {str(ROOT / "client-py")!r})
from deepinfra_sandboxd import Client, __version__
print(__version__, any(name.split(".")[0] in ("agent", "tools") for name in sys.modules))
"""
    assert run_python(code) == f"{deepinfra_sandboxd.__version__} False\n"


SESSION = """
import asyncio
from deepinfra_sandboxd import AsyncClient, Client
from deepinfra_sandboxd.provider import DeepInfraProvider

async def twin():
    async with AsyncClient() as client:
        runs = [client.run(["echo", str(number)]) for number in range(3)]
        return [run.stdout.decode().strip() for run in await asyncio.gather(*runs)]

provider = DeepInfraProvider()
environment = provider.create_environment(cwd="", timeout=20)
environment.execute("export A=1; mkdir d; cd d")
print(environment.execute("cat; echo $A", stdin_data="in")["output"].strip())
with Client() as client, client.start(script="printf one; printf two >&2") as running:
    print(b"".join(chunk.data for chunk in running).decode())
print(asyncio.run(twin()))
environment.cleanup(force_remove=True)
provider.client.close()
"""


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_a_session_on_every_python_that_is_here(shell: ShellDaemon, provider: DeepInfraProvider, version: str) -> None:
    """All tests run on one; of the others this tells that nothing is missing there, and nothing deprecated is used."""
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True).returncode != 0:
        pytest.skip(f"there is no python{version} here")
    safe = "import sys, tarfile; sys.exit(not hasattr(tarfile, 'data_filter'))"
    told = "" if subprocess.run([python, "-c", safe]).returncode == 0 else "3.11.4 or later"
    paths = os.pathsep.join([str(ROOT / "client-py"), str(ROOT / "tests/client/hermes_stub")])
    result = subprocess.run(
        [python, "-W", "error", "-c", SESSION],
        env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout.split("\n") == ["in1", "onetwo", "['0', '1', '2']", ""]
    assert told in result.stderr and result.stderr.count("\n") == bool(told), result.stderr


def test_the_version_is_the_same_everywhere_and_the_manifest_is_complete() -> None:
    manifest = (PACKAGE / "plugin.yaml").read_text()
    fields = dict(re.findall(r"^(\w+): (.*)$", manifest, re.MULTILINE))
    assert fields["name"] == "deepinfra-sandbox"
    assert fields["version"] == deepinfra_sandboxd.__version__
    assert (fields["kind"], fields["requires_hermes"]) == ("backend", '">=0.21"')
    project = (ROOT / "client-py" / "pyproject.toml").read_text()
    assert 'deepinfra-sandbox = "deepinfra_sandboxd"' in project
    version = re.search(r"project\(deepinfra-sandboxd VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())
    assert version is not None and version.group(1) == deepinfra_sandboxd.__version__


@pytest.mark.skipif(importlib.util.find_spec("setuptools") is None, reason="setuptools is not installed")
def test_the_wheel_holds_what_an_installation_needs(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "client-py", source, ignore=shutil.ignore_patterns("__pycache__", "build"))
    code = "import os, sys, setuptools.build_meta as m; os.chdir(sys.argv[1]); print(m.build_wheel(sys.argv[2]))"
    subprocess.run([sys.executable, "-c", code, str(source), str(tmp_path)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("deepinfra_sandboxd-*.whl")
    target = tmp_path / "site"
    shutil.unpack_archive(wheel, target, "zip")
    files = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert {"deepinfra_sandboxd/py.typed", "deepinfra_sandboxd/plugin.yaml"} <= files
    (entry_points,) = target.glob("*.dist-info/entry_points.txt")
    assert "[hermes_agent.plugins]\ndeepinfra-sandbox = deepinfra_sandboxd" in entry_points.read_text()
    (metadata,) = target.glob("*.dist-info/METADATA")
    assert "Requires-Dist" not in metadata.read_text()
    assert f"\nVersion: {deepinfra_sandboxd.__version__}\n" in metadata.read_text()


def test_only_stable_names_are_taken_from_hermes() -> None:
    """hermes disables a plugin that takes certain other names from this module."""
    taken = set()
    for file in PACKAGE.glob("*.py"):
        for names in re.findall(r"from tools\.environments\.base import (.+)", file.read_text()):
            taken |= {name.strip() for name in names.split(",")}
    assert taken == {"BaseEnvironment", "EnvironmentConnectionError"}


@pytest.mark.skipif(shutil.which("mypy") is None, reason="mypy is not installed")
def test_the_types_hold() -> None:
    result = subprocess.run(
        [
            "mypy",
            "--config-file",
            "pyproject.toml",
            "--cache-dir",
            os.devnull,
            "deepinfra_sandboxd",
        ],
        cwd=ROOT / "client-py",
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout
