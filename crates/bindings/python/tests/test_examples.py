"""Every example runs as it stands, in a process of its own."""

import os
import pathlib
import subprocess
import sys

import pytest
from conftest import ENGINES, Target

EXAMPLES = sorted(pathlib.Path(os.environ["NVLANE_EXAMPLES"]).glob("*.py"))


BLOCKS = ("blocks", "many_reads")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example: pathlib.Path, target: Target, keys: Target) -> None:
    address = target.address(2) if example.stem in BLOCKS else keys.address(1)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([ENGINES, os.environ.get("PYTHONPATH", "")])}
    subprocess.run([sys.executable, "-W", "error", example, address], check=True, timeout=60, env=environment)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 6
