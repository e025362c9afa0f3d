"""Block namespaces from Python."""

import array
import os
import signal
import threading
import time

import nvlane
import numpy
import pytest
from conftest import Target, descriptors


def test_data_is_read_back_by_every_kind_of_buffer(target: Target) -> None:
    with nvlane.Blocks(target.address(1)) as disk:
        assert (disk.size, disk.block_size, disk.readonly, disk.closed) == (64 << 20, 512, False, False)
        data = os.urandom(4096)
        disk.write(1024, data)
        assert disk.read(1024, 4096) == data
        for buffer in (bytearray(4096), memoryview(bytearray(4096)), array.array("i", bytes(4096))):
            disk.read_into(1024, buffer)
            assert bytes(buffer) == data
        floats = numpy.random.default_rng(7).random((64, 16))
        disk.write(1 << 20, floats, durable=True)
        back = numpy.empty_like(floats)
        disk.read_into(1 << 20, back)
        assert (back == floats).all()
        disk.flush()
    assert disk.closed
    assert "closed" in repr(disk)


def test_a_transfer_larger_than_a_command_is_whole(target: Target) -> None:
    with nvlane.Blocks(target.address(2), lanes=2) as disk:
        data = numpy.frombuffer(os.urandom(33 << 20), numpy.uint8)
        disk.write(4096, data)
        back = numpy.zeros_like(data)
        disk.read_into(4096, back)
        assert (back == data).all()
        assert disk.read(4096, 4096) == data[:4096].tobytes()


def test_zeroes_discard_and_compare(target: Target) -> None:
    with nvlane.Blocks(target.address(2)) as disk:
        ones = b"\1" * 8192
        disk.write(0, ones)
        assert disk.compare(0, ones)
        disk.write_zeroes(0, 4096)
        assert not disk.compare(0, ones)
        assert disk.read(0, 8192) == bytes(4096) + ones[4096:]
        disk.discard(4096, 4096)
        assert disk.read(4096, 4096) == bytes(4096)
        assert disk.compare_and_write(0, bytes(4096), ones[:4096])
        assert not disk.compare_and_write(0, bytes(4096), ones[:4096])


def test_invalid_arguments_say_which_and_why(target: Target, keys: Target) -> None:
    address = target.address(2)
    with nvlane.Blocks(address) as disk:
        for call, kind, words in [
            (lambda: disk.read(1, 4096), ValueError, "4096"),
            (lambda: disk.read(0, 4095), ValueError, "4096"),
            (lambda: disk.read(disk.size, 4096), ValueError, str(disk.size)),
            (lambda: disk.read(0, 1 << 62), ValueError, None),
            (lambda: disk.read(-1, 4096), OverflowError, None),
            (lambda: disk.read_into(0, bytes(4096)), BufferError, "read-only"),
            (lambda: disk.read_into(0, numpy.zeros(8192, numpy.uint8)[::2]), BufferError, "contiguous"),
            (lambda: disk.write(0, "text"), TypeError, "data has to be bytes"),
            (lambda: disk.write(0, 17), TypeError, "not int"),
            (lambda: disk.compare_and_write(0, bytes(4096), bytes(512)), ValueError, "expected has 4096 bytes"),
        ]:
            with pytest.raises(kind, match=words):
                call()
    with pytest.raises(ValueError, match="this Blocks is closed"):
        disk.read(0, 4096)
    disk.close()
    for options, kind, words in [
        ({"lane": 1}, TypeError, "there is no argument lane"),
        ({"lanes": 0}, ValueError, "lanes=0"),
        ({"lanes": "two"}, TypeError, "lanes"),
        ({"depth": 1}, ValueError, "depth=1"),
        ({"timeout": -1}, ValueError, "timeout=-1"),
        ({"hostnqn": "me"}, ValueError, "hostnqn"),
        ({"dhchap_secret": "secret"}, ValueError, "dhchap_secret"),
        ({"tls_key": "key"}, ValueError, "tls_key"),
        ({"concat": True}, ValueError, "dhchap_secret"),
    ]:
        with pytest.raises(kind, match=words):
            nvlane.Blocks(address, **options)
    with pytest.raises(ValueError, match="address"):
        nvlane.Blocks("127.0.0.1:port/nqn")
    with pytest.raises(nvlane.ConnectionLost, match="no namespace 9"):
        nvlane.Blocks(target.address(9))
    with pytest.raises(nvlane.ConnectionLost, match="key-value|cannot be used"):
        nvlane.Blocks(keys.address(1))
    with pytest.raises(nvlane.ConnectionLost, match="nothing listens"):
        nvlane.Blocks("127.0.0.1:1/nqn.2026-01.io.nvlane:none")


def test_threads_share_a_client(target: Target) -> None:
    with nvlane.Blocks(target.address(2), lanes=2) as disk:

        def work(number: int) -> None:
            for turn in range(50):
                data = bytes([number, turn]) * 2048
                disk.write(number * 4096, data)
                assert disk.read(number * 4096, 4096) == data

        failed: list[BaseException] = []
        hook, threading.excepthook = threading.excepthook, lambda raised: failed.append(raised.exc_value)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        threading.excepthook = hook
        assert not failed


def test_buffers_stay_exported_until_the_command_ends(target: Target) -> None:
    with nvlane.Blocks(target.address(2)) as disk:
        completions = nvlane.Completions()
        buffer = bytearray(1 << 20)
        disk.read_into(0, buffer, completions=completions)
        with pytest.raises(BufferError):
            buffer.extend(b"more")
        while len(completions):
            completions.drain()
        buffer.extend(b"more")


def test_a_fork_is_refused(target: Target) -> None:
    with nvlane.Blocks(target.address(2)) as disk:
        child = os.fork()
        if child == 0:
            try:
                disk.read(0, 4096)
            except RuntimeError as error:
                os._exit(0 if "fork" in str(error) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(disk.read(0, 4096)) == 4096


def test_a_signal_ends_a_wait(own_target: Target) -> None:
    with nvlane.Blocks(own_target.address(1)) as disk:
        own_target.kill()

        def interrupt(*_: object) -> None:
            raise InterruptedError

        previous = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        start = time.monotonic()
        with pytest.raises(InterruptedError):
            disk.read(0, 4096)
        assert time.monotonic() - start < 5
        signal.signal(signal.SIGALRM, previous)


def test_a_lost_target_is_found_again(own_target: Target) -> None:
    with nvlane.Blocks(own_target.address(1)) as disk:
        disk.write(0, b"\7" * 4096)
        own_target.kill()
        own_target.start()
        # The RAM of the new target is another: the write that was not flushed is lost, and the flush says so.
        with pytest.raises(nvlane.Error):
            disk.flush()


def test_nothing_leaks(target: Target) -> None:
    with nvlane.Blocks(target.address(2)) as disk:
        buffer = bytearray(4096)
        disk.read_into(0, buffer)
        before = descriptors()
        for _ in range(2000):
            disk.read_into(0, buffer)
            with pytest.raises(ValueError):
                disk.read_into(1, buffer)
        assert descriptors() == before
    for _ in range(20):
        nvlane.Blocks(target.address(2)).close()
    buffer.extend(b"no export is left")
    assert descriptors() <= before
