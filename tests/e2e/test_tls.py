"""The cloud over HTTPS: one request a warm command on one connection, and nothing said to a server that is not the right one."""

from __future__ import annotations

import hashlib
import pathlib
import time
from collections.abc import Callable, Iterator

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, make_certificates, wait_until
from support.rpc import Peer, RpcFailure

Certificates = dict[str, pathlib.Path]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def of_another_authority(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("another"))


@pytest.fixture(scope="module")
def for_another_host(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("elsewhere"), ("DNS:api.example.org", "DNS:*.local", "IP:127.0.0.2"))


@pytest.fixture
def cloud(tmp_path: pathlib.Path, certificates: Certificates) -> Iterator[Emulator]:
    with Emulator(tmp_path, tls=True, certificates=certificates, boot_ms=5, start_ms=5, stop_ms=5) as emulator:
        assert emulator.url.startswith("https://127.0.0.1:")
        yield emulator


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Iterator[Callable[..., Daemon]]:
    made: list[Daemon] = []

    def make(base_url: str, ca_file: pathlib.Path | None) -> Daemon:
        daemon = Daemon(tmp_path / f"{len(made)}", base_url, ca_file=ca_file)
        made.append(daemon)
        return daemon.start()

    yield make
    for daemon in made:
        print(f"--- log of the daemon in {daemon.directory}\n{daemon.log()}")
        assert daemon.stop() in (0, None)


def as_localhost(emulator: Emulator) -> str:
    return emulator.url.replace("127.0.0.1", "localhost")


def refusal(peer: Peer) -> RpcFailure:
    """What asking the cloud for anything ends with."""
    with pytest.raises(RpcFailure) as refused:
        peer.call("plan.list")
    return refused.value


def assert_nothing_was_said(emulator: Emulator) -> None:
    assert emulator.count() == 0 and emulator.requests() == []


# -- the right server


@pytest.mark.parametrize("address_of", [lambda emulator: emulator.url, as_localhost], ids=["address", "name"])
def test_a_command_goes_all_the_way(cloud: Emulator, certificates: Certificates, start: Callable[..., Daemon],
                                    address_of: Callable[[Emulator], str]) -> None:
    daemon = start(address_of(cloud), certificates["ca"])
    with daemon.peer() as peer:
        done = peer.sh("echo out; echo err >&2; exit 3")
        assert (done.stdout, done.stderr, done.returncode) == (b"out\n", b"err\n", 3)
        large = peer.sh("head -c 3000000 /dev/urandom >/workspace/random; base64 /workspace/random | sha256sum; base64 /workspace/random")
        digest, _, text = large.stdout.partition(b"\n")
        assert digest.split()[0].decode() == hashlib.sha256(text).hexdigest() and len(text) > 4_000_000
        sent = peer.run(script="sha256sum | cut -c1-64", stdin="x" * 500_000)
        assert sent.stdout.strip().decode() == hashlib.sha256(b"x" * 500_000).hexdigest()
        assert peer.call("daemon.health") == {"health": []}
    shown = daemon.cli("exec", "--", "echo", "by hand")
    assert (shown.returncode, shown.stdout) == (0, b"by hand\n")


def test_a_warm_command_is_one_request_on_a_warm_connection(cloud: Emulator, certificates: Certificates,
                                                             start: Callable[..., Daemon]) -> None:
    with start(cloud.url, certificates["ca"]).peer() as peer:
        for name in [peer.start("true") for _ in range(3)]:
            assert peer.finish(name).returncode == 0
        # A command ends with the shim's word, a moment before its connection is at rest: so there are a few.
        wait_until(lambda: all(one["outcome"] != "open" for one in cloud.requests()), "connections at rest")
        cloud.reset_stats()
        before = cloud.stats()
        for number in range(10):
            assert peer.run("echo", str(number)).stdout == f"{number}\n".encode()
        after = cloud.stats()
        assert after["total"] - before["total"] == 10
        assert after["requests"] == {"POST /v1/sandboxes/{id}/exec": 10}
        assert after["connections_accepted"] == before["connections_accepted"]
        assert len({request["connection"] for request in cloud.requests()}) <= 3


def test_output_comes_while_the_command_runs(cloud: Emulator, certificates: Certificates, start: Callable[..., Daemon]) -> None:
    with start(cloud.url, certificates["ca"]).peer() as peer:
        command = peer.start("sh", "-c", "echo first; while ! test -e /workspace/go; do sleep 0.01; done; echo second")
        assert peer.notification("exec.output", exec_id=command)["data"] == "first\n"
        assert peer.run("touch", "/workspace/go").returncode == 0  # beside it, on a connection of its own
        assert peer.finish(command, acknowledge=False).stdout == b"second\n"


def test_a_dropped_connection_costs_a_handshake_and_no_command(cloud: Emulator, certificates: Certificates,
                                                               start: Callable[..., Daemon]) -> None:
    with start(cloud.url, certificates["ca"]).peer() as peer:
        assert peer.sh("echo x >>/workspace/n").returncode == 0
        for how in ("fin", "rst"):
            # The command's end is known before that of the answer that tells it.
            wait_until(lambda how=how: cloud.drop_connections(how, idle_only=True) > 0, "its connection is idle")
            assert peer.sh("echo x >>/workspace/n").returncode == 0
        assert peer.sh("cat /workspace/n").stdout == b"x\n" * 3


# -- the wrong server


@pytest.mark.parametrize("trusted", ["another authority", "what the system trusts", "an empty file", "a file that is not there"])
def test_an_unknown_authority_is_told_nothing(cloud: Emulator, of_another_authority: Certificates, start: Callable[..., Daemon],
                                              tmp_path: pathlib.Path, trusted: str) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    roots = {"another authority": of_another_authority["ca"], "what the system trusts": None, "an empty file": empty,
             "a file that is not there": tmp_path / "absent.pem"}[trusted]
    with start(cloud.url, roots).peer() as peer:
        failed = refusal(peer)
        assert failed.name == "cloud_unreachable"
        assert "certificate" in failed.message and cloud.url.removeprefix("https://") in failed.message
        health = {item["code"]: item for item in peer.call("daemon.health")["health"]}
        assert "certificate" in health["cloud_unreachable"]["text"]
    assert_nothing_was_said(cloud)


def test_a_command_for_a_server_that_is_not_trusted_does_not_run(cloud: Emulator, of_another_authority: Certificates,
                                                                 start: Callable[..., Daemon]) -> None:
    with start(cloud.url, of_another_authority["ca"]).peer() as peer:
        command = peer.start("true")
        refusal(peer)  # by now the command has met the same
        peer.call("exec.cancel", {"exec_id": command})
        done = peer.finish(command)
        assert (done.reason, done.started) == ("cancelled", "no")
    assert_nothing_was_said(cloud)


@pytest.mark.parametrize("address_of", [lambda emulator: emulator.url, as_localhost], ids=["address", "name"])
def test_a_certificate_for_another_host_is_refused(tmp_path: pathlib.Path, for_another_host: Certificates, start: Callable[..., Daemon],
                                                   address_of: Callable[[Emulator], str]) -> None:
    with Emulator(tmp_path, tls=True, certificates=for_another_host) as emulator:
        with start(address_of(emulator), for_another_host["ca"]).peer() as peer:
            failed = refusal(peer)
            assert failed.name == "cloud_unreachable"
            assert "mismatch" in failed.message, failed.message
        assert_nothing_was_said(emulator)


def test_a_key_is_not_handed_to_a_server_that_is_not_trusted(cloud: Emulator, of_another_authority: Certificates,
                                                             tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path, cloud.url, None, ca_file=of_another_authority["ca"]) as daemon, daemon.peer() as peer:
        with pytest.raises(RpcFailure) as refused:
            peer.call("account.set", {"api_key": "test-key"})
        assert refused.value.name == "cloud_unreachable"
        assert not (daemon.state_dir / "api-key").exists()
    assert_nothing_was_said(cloud)


def test_a_server_without_tls_is_refused(emulator: Emulator, certificates: Certificates, start: Callable[..., Daemon]) -> None:
    with start(emulator.url.replace("http://", "https://"), certificates["ca"]).peer() as peer:
        failed = refusal(peer)
        assert failed.name == "cloud_unreachable" and "TLS" in failed.message
    assert_nothing_was_said(emulator)


def test_a_tls_server_asked_without_tls(cloud: Emulator, start: Callable[..., Daemon]) -> None:
    began = time.monotonic()
    with start(cloud.url.replace("https://", "http://"), None).peer() as peer:
        assert refusal(peer).name in ("cloud_unreachable", "cloud_error")
    assert time.monotonic() - began < 10
    assert_nothing_was_said(cloud)


# -- http://


@pytest.mark.parametrize("url", [
    "http://api.deepinfra.com", "http://192.168.1.1:8080", "http://10.0.0.1", "http://0.0.0.0:1", "http://[::2]:80", "http://[fe80::1]",
    "http://127.0.0.1.example.com", "http://localhost.example.com", "http://localhost@example.com", "http://example.com/127.0.0.1",
    "http://2130706433", "http://example.com#@127.0.0.1", "HTTP://example.com", "ftp://127.0.0.1", "127.0.0.1:80", "//127.0.0.1", "https://",
    "https://user:word@api.deepinfra.com", "file:///etc/passwd",
])
@pytest.mark.parametrize("given", ["variable", "flag"])
def test_what_is_not_encrypted_or_not_here_is_refused_at_the_start(tmp_path: pathlib.Path, url: str, given: str) -> None:
    daemon = Daemon(tmp_path, url if given == "variable" else "https://127.0.0.1:1")
    if given == "flag":
        daemon.options["base-url"] = url
    process = daemon.spawn()
    assert process.wait(15) == 2
    daemon.kill()
    said = daemon.log()
    assert ("DEEPINFRA_BASE_URL" if given == "variable" else "--base-url") in said
    assert "word" not in said.replace("password", "")  # a password in a URL is not repeated
    assert not daemon.state_dir.exists() and not daemon.socket.exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_this_machine_may_be_asked_without_tls(emulator: Emulator, start: Callable[..., Daemon], host: str) -> None:
    with start(emulator.url.replace("127.0.0.1", host), None).peer() as peer:
        assert peer.call("plan.list")["default"] == "medium"
