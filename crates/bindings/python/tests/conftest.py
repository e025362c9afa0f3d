"""Targets for the tests: the program of $NVLANE, on free ports."""

import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

# Classes of engines for language models, or an engine's own.
ENGINES = os.environ.get("NVLANE_ENGINES", str(pathlib.Path(__file__).parent / "engines"))
sys.path.insert(0, ENGINES)

NQN = "nqn.2026-01.io.nvlane:python"


class Target:
    """A running target, which can be killed and started again at its port."""

    def __init__(self, *namespaces: str) -> None:
        self.namespaces = namespaces
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port = server.getsockname()[1]
        self.start()

    def start(self) -> None:
        command = [os.environ["NVLANE"], "--log", "warn", "target", "--listen", f"127.0.0.1:{self.port}", "--nqn", NQN]
        for namespace in self.namespaces:
            command += ["--namespace", namespace]
        self.process = subprocess.Popen(command)
        deadline = time.monotonic() + 20
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                assert self.process.poll() is None and time.monotonic() < deadline, "no target"
                time.sleep(0.02)

    def address(self, nsid: int) -> str:
        return f"127.0.0.1:{self.port}/{NQN}?ns={nsid}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(30) == 0


@pytest.fixture(scope="session")
def target() -> Iterator[Target]:
    target = Target("ram:64M?lba=512", "ram:64M")
    yield target
    target.stop()


@pytest.fixture(scope="session")
def keys() -> Iterator[Target]:
    # Of its own: block namespaces limit the values of their subsystem to 1 MiB.
    target = Target("kv:ram:256M")
    yield target
    target.stop()


@pytest.fixture
def own_target() -> Iterator[Target]:
    target = Target("ram:16M")
    yield target
    target.kill()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))

