"""Targets for the tests: the program of $NVLANE, on free ports."""

import os
import pathlib
import signal
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

    # The targets of failed tests: a reference keeps them from failing later tests, and the session kills them.
    started: list["Target"] = []

    def __init__(self, *namespaces: str) -> None:
        Target.started.append(self)
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

    def pause(self) -> None:
        """Stop its threads until `resume`. Those of other cores may go on for a moment after kill(2) returned."""
        self.process.send_signal(signal.SIGSTOP)
        threads = pathlib.Path(f"/proc/{self.process.pid}/task")
        while not all(" T " in (thread / "stat").read_text() for thread in threads.iterdir()):
            time.sleep(0.001)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(30) == 0


def pytest_sessionfinish() -> None:
    for target in Target.started:
        target.kill()


@pytest.fixture(scope="session")
def target() -> Iterator[Target]:
    target = Target("ram:64M?lba=512", "ram:64M")
    yield target
    target.stop()


@pytest.fixture(scope="session")
def keys() -> Iterator[Target]:
    # Of its own: block namespaces limit what one command moves in their subsystem to 1 MiB.
    target = Target("kv:ram:256M")
    yield target
    target.stop()


@pytest.fixture(scope="session")
def keys_beside_blocks() -> Iterator[Target]:
    target = Target("ram:16M", "kv:ram:64M")
    yield target
    target.stop()


@pytest.fixture
def own_target() -> Iterator[Target]:
    target = Target("ram:16M")
    yield target
    target.kill()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))

