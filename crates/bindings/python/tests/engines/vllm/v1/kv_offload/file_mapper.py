"""What identifies the files of vLLM's own tier."""

from __future__ import annotations

from typing import Any


class FileMapper:
    def __init__(self, fields: dict[str, Any], rank: int) -> None:
        self._fields, self.rank = fields, rank

    @classmethod
    def from_offloading_spec(
        cls, root_dir: str, offloading_spec: Any, blocks_per_file: int = 1, parallel_agnostic: bool = False
    ) -> FileMapper:
        config = offloading_spec.config
        fields = {
            "model_name": config.model.name,
            "dtype": config.model.dtype,
            "tokens_per_hash": config.cache.tokens_per_hash,
            "blocks_per_file": blocks_per_file,
            "tp_size": config.parallel.tp_size,
        }
        return cls(fields, config.parallel.rank)

    def get_run_config(self) -> dict[str, Any]:
        return dict(self._fields)
