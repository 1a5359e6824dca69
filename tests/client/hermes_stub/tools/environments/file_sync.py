"""Stub of hermes's file synchronisation: which files it wants in a sandbox, and when it asks for what.

The decisions are hermes's as the facts state them; the comparison is by size and time going out, and by hash
coming back. Failures are swallowed as hermes does, and written down here for the tests.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import shutil
import tarfile
import tempfile
import threading
import time
from pathlib import Path
from typing import Callable

from hermes_constants import get_hermes_home

Pairs = list[tuple[str, str]]
failures: list[str] = []
CACHES = ("documents", "images", "audio", "videos", "screenshots", "web", "delegation")
credentials: list[str] = []  # below the profile's home; the only files that are never taken back
max_bytes = 2 << 30
timeout = 30.0  # seconds
TRIES = 3
backoff = (2.0, 4.0)  # seconds between the tries, which `waited` counts instead of sleeping
waited: list[float] = []


def _sync_back_max_bytes() -> int:
    return max_bytes


def _sync_back_timeout() -> float:
    return timeout


def iter_sync_files(container_base: str = "/root/.hermes") -> Pairs:
    home = get_hermes_home()
    found = [home / name for name in credentials]
    for directory in ("skills", "external_skills/0", *(f"cache/{name}" for name in CACHES)):
        found += sorted(path for path in (home / directory).rglob("*") if path.is_file() and not path.is_symlink())
    return [(str(path), f"{container_base}/{path.relative_to(home)}") for path in found]


def _digest(path: str | Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


class FileSyncManager:
    def __init__(
        self,
        get_files_fn: Callable[[], Pairs],
        upload_fn: Callable[[str, str], None],
        delete_fn: Callable[[list[str]], None],
        sync_interval: float = 5.0,
        bulk_upload_fn: Callable[[Pairs], None] | None = None,
        bulk_download_fn: Callable[[Path], None] | None = None,
    ) -> None:
        self._get_files, self._delete, self._interval = get_files_fn, delete_fn, sync_interval
        self._upload = bulk_upload_fn or (lambda pairs: [upload_fn(*pair) for pair in pairs][:0] and None)
        self._download = bulk_download_fn
        self._known: dict[str, tuple[float, int]] = {}
        self._hashes: dict[str, str] = {}
        self._last = 0.0
        self._lock = threading.Lock()  # hermes does not renew it after a fork

    def sync(self, *, force: bool = False) -> None:
        with self._lock:
            self._sync(force)

    def _sync(self, force: bool) -> None:
        if not force and time.monotonic() - self._last < self._interval:
            return
        wanted = {remote: (host, os.stat(host)) for host, remote in self._get_files()}
        keys = {remote: (status.st_mtime, status.st_size) for remote, (_, status) in wanted.items()}
        changed = [(wanted[remote][0], remote) for remote in keys if self._known.get(remote) != keys[remote]]
        gone = [remote for remote in self._known if remote not in keys]
        try:
            with tempfile.TemporaryDirectory() as directory:  # what is sent are copies, called by their number
                staged = [(os.path.join(directory, str(number)), pair[1]) for number, pair in enumerate(changed)]
                for (host, _), (copy, _) in zip(changed, staged):
                    shutil.copy2(host, copy)
                hashes = {remote: _digest(copy) for copy, remote in staged}
                if changed:
                    self._upload(staged)
            if gone:
                self._delete(gone)
            self._hashes |= hashes
            self._known = keys
            self._last = time.monotonic()
        except Exception as error:
            failures.append(f"sync: {error}")

    def sync_back(self) -> None:
        with self._lock:
            self._sync_back()

    def _sync_back(self) -> None:
        if self._download is None or not self._known:
            return
        for attempt in range(TRIES):
            try:
                return self._take_back(self._download)
            except Exception as error:
                failures.append(f"sync_back: {error}")
                waited.extend(backoff[attempt : attempt + 1])

    def _take_back(self, download: Callable[[Path], None]) -> None:
        files = self._get_files()
        with tempfile.TemporaryDirectory() as directory:
            archive = Path(directory) / "archive.tar"
            archive.touch()
            download(archive)
            with tarfile.open(archive) as tar:
                for member in filter(tarfile.TarInfo.isfile, tar):
                    content = tar.extractfile(member)
                    self._apply(f"/{member.name}", b"" if content is None else content.read(), files)

    def _apply(self, remote: str, data: bytes, files: Pairs) -> None:
        """Skills and plugins are taken as well as all else, and a new file beside one that was sent."""
        if hashlib.sha256(data).hexdigest() == self._hashes.get(remote):
            return
        upload_only = {str(get_hermes_home() / name) for name in credentials}
        target = dict((there, here) for here, there in files).get(remote)
        for host, known in files:
            beside = posixpath.dirname(known) + "/"
            if target is None and host not in upload_only and remote.startswith(beside):
                target = str(Path(host).parent / remote[len(beside) :])
        if target is not None and target not in upload_only:
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            Path(target).write_bytes(data)
