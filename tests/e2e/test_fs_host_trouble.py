"""What this machine's file systems do to transfers: directories that cannot be read to their end, mounts that hang, devices."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from support.daemon import Daemon
from support.kill_points import build_preload
from support.rpc import DEFAULT_KEY, Peer, RpcFailure

TORN = "unreadable-from-here-on"


@pytest.fixture(scope="module")
def host_disk(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return build_preload(tmp_path_factory.mktemp("preload"), "host_disk")


def call(peer: Peer, method: str, **params: Any) -> dict[str, Any]:
    return peer.call(f"fs.{method}", {"key": DEFAULT_KEY, **params})


def push(peer: Peer, host: pathlib.Path, remote: str) -> dict[str, Any]:
    return call(peer, "push", files=[{"host": str(host), "remote": remote}])


def test_a_directory_that_cannot_be_read_to_its_end(make_daemon: Callable[..., Daemon], host_disk: pathlib.Path, tmp_path: pathlib.Path) -> None:
    daemon = make_daemon(environment={"LD_PRELOAD": str(host_disk), "HOST_DISK_TORN": TORN}).start()
    tree, back = tmp_path / "tree", tmp_path / "back"
    for directory in (tree, back / "sub"):
        directory.mkdir(parents=True)
    (tree / TORN).write_text("torn")
    (back / "sub" / "mine").write_text("so that it is merged")
    with daemon.peer() as peer:
        skipped = push(peer, tree, "t")["skipped"]
        assert [(each["host"], each["reason"]) for each in skipped] == [(str(tree), "unreadable")]
        peer.sh(f"mkdir -p back/sub; echo x > back/sub/{TORN}")
        fetched = call(peer, "get", remote="back", host=str(back))
        assert [(each["host"], each["reason"]) for each in fetched["skipped"]] == [(str(back / "sub"), "in_the_way")]


@pytest.mark.parametrize("method", ["get", "pull"])
def test_what_is_no_file_is_not_replaced_by_one(peer: Peer, tmp_path: pathlib.Path, method: str) -> None:
    peer.sh("mkdir d; echo hi > d/fifo; echo hi > d/f")
    fifo = tmp_path / "d" / "fifo"
    fifo.parent.mkdir()
    os.mkfifo(fifo)
    with pytest.raises(RpcFailure) as refused:
        call(peer, method, remote="d/fifo", host=str(fifo))
    assert refused.value.name == "in_the_way"
    if method == "get":
        fetched = call(peer, "get", remote="d", host=str(fifo.parent))
        assert [(each["host"], each["reason"]) for each in fetched["skipped"]] == [(str(fifo), "in_the_way")]
        assert (fetched["files"], (fifo.parent / "f").read_text()) == (1, "hi\n")
    assert fifo.is_fifo()
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    with pytest.raises(RpcFailure):
        call(peer, method, remote="d/f", host=str(link))
    assert link.is_symlink()


@pytest.mark.parametrize("method", ["get", "pull", "push"])
def test_no_mount_that_hangs_delays_the_daemon(make_daemon: Callable[..., Daemon], host_disk: pathlib.Path, tmp_path: pathlib.Path, method: str) -> None:
    mount, log = tmp_path / "may-hang", tmp_path / "log"
    mount.mkdir()
    (mount / "f").write_text("f")
    (mount / "d").mkdir()
    watching = {"LD_PRELOAD": str(host_disk), "HOST_DISK_WATCHED": mount.name, "HOST_DISK_LOG": str(log)}
    daemon = make_daemon(environment=watching).start()
    with daemon.peer() as peer:
        peer.sh("mkdir d; echo hi > d/f")
        if method == "push":
            push(peer, mount, "d")
        else:
            for there in ("f", "d/f", "d", "nowhere/f"):
                try:
                    call(peer, method, remote="d" if there == "d" and method == "get" else "d/f", host=str(mount / there))
                except RpcFailure as refused:
                    assert refused.name in ("host_file", "in_the_way")
    assert not log.exists(), log.read_text()
