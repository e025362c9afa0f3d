"""The modules for engines of language models, without the engines."""

import subprocess
import sys

import nvlane.sglang
import pytest

IMPORTS = """
import sys
import nvlane.lmcache, nvlane.sglang, nvlane.transformers, nvlane.vllm
assert not {"lmcache", "sglang", "torch", "transformers", "vllm"} & set(sys.modules)
"""


def test_none_imports_an_engine_before_it_is_used() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", IMPORTS], check=True, timeout=60)


def test_a_class_needs_its_engine() -> None:
    for module, name in [("sglang", "HiCacheNvlane"), ("vllm", "NvlaneTier")]:
        program = f"from nvlane.{module} import {name}"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and f"No module named '{module}'" in done.stderr


def test_other_names_do_not_exist() -> None:
    with pytest.raises(AttributeError, match="no attribute 'HiCache'"):
        nvlane.sglang.HiCache  # noqa: B018
