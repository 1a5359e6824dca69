"""Stub of the provider interface, with the members that hermes reads and their defaults."""

from __future__ import annotations

import abc
from typing import Any, Mapping


class TerminalEnvironmentProvider(abc.ABC):
    is_remote: bool = True
    is_container: bool = True
    session_isolated_when_nonpersistent: bool = False

    @property
    @abc.abstractmethod
    def name(self) -> str:
        ...

    @property
    def display_name(self) -> str:
        return self.name

    @property
    def description(self) -> str:
        return ""

    @property
    def env_description(self) -> str:
        return ""

    @property
    def skip_container_guards(self) -> bool:
        return self.is_container

    @property
    def cache_path_base(self) -> str | None:
        return None

    @property
    def strip_env_keys(self) -> frozenset[str]:
        return frozenset()

    @abc.abstractmethod
    def is_available(self) -> bool:
        ...

    def check_requirements(self, config: dict[str, Any]) -> bool:
        return self.is_available()

    def probe(self) -> tuple[str, str]:
        return ("ready", "") if self.is_available() else ("needs_setup", "")

    def probe_with_config(self, config: Mapping[str, Any]) -> tuple[str, str]:
        return self.probe()

    def setup_instructions(self) -> list[str]:
        return []

    def post_setup(self) -> None:
        return None

    def doctor_checks(self) -> list[tuple[bool, str, str]]:
        return []

    @abc.abstractmethod
    def create_environment(
        self,
        *,
        cwd: str,
        timeout: int,
        task_id: str = "default",
        image: str | None = None,
        container_config: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        ...
