"""The interface of LMCache's plugins for remote storages."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any


@dataclasses.dataclass
class ConnectorContext:
    url: str
    loop: Any
    local_cpu_backend: Any
    config: Any
    metadata: Any
    plugin_name: str | None = None


class ConnectorAdapter(abc.ABC):
    def __init__(self, schema: str = "") -> None:
        self.schema = schema

    def can_parse(self, url: str) -> bool:
        return self.schema != "" and url.startswith(self.schema)

    @abc.abstractmethod
    def create_connector(self, context: ConnectorContext) -> Any: ...
