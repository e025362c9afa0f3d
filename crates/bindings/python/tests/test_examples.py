"""Every example runs as it stands, in a process of its own."""

import os
import pathlib
import subprocess
import sys

import pytest
from conftest import Target

EXAMPLES = sorted(pathlib.Path(os.environ["NVLANE_EXAMPLES"]).glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example: pathlib.Path, target: Target, keys: Target) -> None:
    address = keys.address(1) if "key_value" in example.stem else target.address(2)
    subprocess.run([sys.executable, "-W", "error", example, address], check=True, timeout=60)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3
