"""Runs python-memcached's tests (the directory given) against the server given.

They name memcached's usual port, and a helper that is not part of the package.
"""

import contextlib
import importlib
import io
import sys
import types
import unittest
from pathlib import Path

import memcache

USUAL = "127.0.0.1:11211"


@contextlib.contextmanager
def captured_stderr():
    with contextlib.redirect_stderr(io.StringIO()) as captured:
        yield captured


def lead_to(server):
    connect = memcache.Client.__init__

    def connect_there(self, servers, *arguments, **options):
        servers = [server if name == USUAL else name for name in servers]
        connect(self, servers, *arguments, **options)

    memcache.Client.__init__ = connect_there


def tests_in(directory):
    package = types.ModuleType("tests")
    package.__path__ = [str(directory)]
    utils = types.ModuleType("tests.utils")
    utils.captured_stderr = captured_stderr
    sys.modules.update({"tests": package, "tests.utils": utils})
    for path in sorted(directory.glob("test_*.py")):
        yield unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(f"tests.{path.stem}"))


def main():
    server, directory = sys.argv[1], Path(sys.argv[2])
    lead_to(server)
    suite = unittest.TestSuite(tests_in(directory))
    if suite.countTestCases() < 26:
        sys.exit(f"only {suite.countTestCases()} tests in {directory}")
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
    sys.exit(not result.wasSuccessful())


main()
