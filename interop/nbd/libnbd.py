"""libnbd's own view of an export of `nvlane attach nbd`: each form of replies, each command, what is refused, ends in the middle.

Outside: the URI of an export of 64 MiB as the argument, its block size in BLOCK."""

import errno
import os
import random
import socket
import struct
import sys
import urllib.parse

import nbd

uri = sys.argv[1]
BLOCK = int(os.environ["BLOCK"])
SIZE = 64 << 20
FUA, NO_HOLE, DF, FAST_ZERO = nbd.CMD_FLAG_FUA, nbd.CMD_FLAG_NO_HOLE, nbd.CMD_FLAG_DF, nbd.CMD_FLAG_FAST_ZERO


def connect(structured=True, strict=False, context=True):
    handle = nbd.NBD()
    handle.set_request_structured_replies(structured)
    if structured and context:
        handle.add_meta_context("base:allocation")
    if not strict:
        handle.set_strict_mode(0)
    handle.connect_uri(uri)
    return handle


def fails(number, call, *arguments):
    try:
        call(*arguments)
    except nbd.Error as error:
        assert error.errnum == number, (error, call, arguments)
        return
    raise AssertionError(f"{call} {arguments} did not fail")


def pattern(seed, length):
    return random.Random(seed).randbytes(length)


def status(handle, length, offset, flags=0):
    """The extents of a range: their lengths and status."""
    found = []
    handle.block_status(length, offset, lambda name, at, entries, err: found.append((name, at, entries)), flags)
    assert len(found) == 1 and found[0][:2] == ("base:allocation", offset), found
    entries = found[0][2]
    return list(zip(entries[::2], entries[1::2]))


def is_near(found, expected):
    """Whether extents are the expected ones, or begin and end up to 2 MiB away: storage in RAM may have huge pages."""
    ends = lambda extents: [sum(length for length, _ in extents[: end + 1]) for end in range(len(extents))]
    same = [kind for _, kind in found] == [kind for _, kind in expected]
    return same and all(abs(a - b) <= 2 << 20 for a, b in zip(ends(found), ends(expected)))


def exercise(structured):
    handle = connect(structured)
    assert handle.get_structured_replies_negotiated() == structured
    assert handle.get_size() == SIZE
    assert handle.get_block_size(nbd.SIZE_MINIMUM) == BLOCK
    data = pattern(1, 3 << 20)
    handle.pwrite(data, 1 << 20)
    assert handle.pread(len(data), 1 << 20) == data
    handle.pwrite(data[:BLOCK], 0, FUA)
    handle.zero(BLOCK * 4, 1 << 20)
    assert handle.pread(BLOCK * 5, 1 << 20) == bytes(BLOCK * 4) + data[BLOCK * 4 : BLOCK * 5]
    handle.zero(BLOCK, 2 << 20, NO_HOLE | FUA)
    handle.zero(BLOCK, 2 << 20, FAST_ZERO)
    fails(errno.ENOTSUP, handle.zero, BLOCK, 2 << 20, FAST_ZERO | NO_HOLE)
    handle.trim(1 << 20, 3 << 20, FUA)
    assert handle.pread(1 << 20, 3 << 20) == bytes(1 << 20)
    handle.zero(SIZE, 0)
    handle.trim(SIZE, 0)
    handle.cache(SIZE, 0)
    handle.flush()
    # What is refused, and then goes on.
    fails(errno.EINVAL, handle.pread, BLOCK, SIZE)
    fails(errno.EINVAL, handle.pread, 2 * BLOCK, SIZE - BLOCK)
    fails(errno.ENOSPC, handle.pwrite, bytes(BLOCK), SIZE)
    fails(errno.ENOSPC, handle.pwrite, bytes(2 * BLOCK), SIZE - BLOCK)
    fails(errno.ENOSPC, handle.zero, 2 * BLOCK, SIZE - BLOCK)
    fails(errno.EINVAL, handle.trim, 2 * BLOCK, SIZE - BLOCK)
    fails(errno.EINVAL, handle.pread, 100, 0)
    fails(errno.EINVAL, handle.pwrite, bytes(100), BLOCK)
    fails(errno.EINVAL, handle.pwrite, bytes(BLOCK), 1)
    fails(errno.EINVAL, handle.pwrite, bytes((32 << 20) + BLOCK), 0)
    fails(errno.EINVAL, handle.pread, (32 << 20) + BLOCK, 0)
    if structured:
        large = pattern(2, 32 << 20)
        handle.pwrite(large, 0)
        assert handle.pread(len(large), 0) == large
        assert handle.pread(4 << 20, 0, DF) == large[: 4 << 20]
        fails(errno.EOVERFLOW, handle.pread, (4 << 20) + BLOCK, 0, DF)
        extents = []
        handle.block_status(8 << 20, 1 << 20, lambda name, offset, entries, err: extents.append((name, offset, entries)))
        assert extents == [("base:allocation", 1 << 20, [8 << 20, 0])], extents
        handle.zero(SIZE, 0)
        assert status(handle, SIZE, 0) == [(SIZE, 3)]
        for place in (8 << 20, 24 << 20, SIZE - (2 << 20)):
            handle.pwrite(large[: 2 << 20], place)
        parts = [(8 << 20, 3), (2 << 20, 0), (14 << 20, 3), (2 << 20, 0), (36 << 20, 3), (2 << 20, 0)]
        found = status(handle, SIZE, 0)
        assert is_near(found, parts), found
        assert status(handle, SIZE, 0, nbd.CMD_FLAG_REQ_ONE) == found[:1]
        assert status(handle, 1 << 20, 9 << 20) == [(1 << 20, 0)]
        if found == parts:
            assert status(handle, 2 * BLOCK, (10 << 20) - BLOCK) == [(BLOCK, 0), (BLOCK, 3)]
            assert status(handle, 2 * BLOCK, (10 << 20) - BLOCK, nbd.CMD_FLAG_REQ_ONE) == [(BLOCK, 0)]
        ignore = lambda *entries: 0
        fails(errno.EINVAL, handle.block_status, 2 * BLOCK, SIZE - BLOCK, ignore)
        fails(errno.EINVAL, handle.block_status, BLOCK, SIZE, ignore)
        fails(errno.EINVAL, handle.block_status, BLOCK, 1, ignore)
        fails(errno.EINVAL, handle.block_status, 0, 0, ignore)
        handle.trim(SIZE, 0)
        assert status(handle, SIZE, 0) == [(SIZE, 3)]
        other = connect(context=False)
        fails(errno.EINVAL, other.block_status, BLOCK, 0, ignore)
        other.shutdown()
    else:
        assert len(handle.pread(4 << 20, 0)) == 4 << 20
        fails(errno.EINVAL, handle.pread, (4 << 20) + BLOCK, 0)
    assert handle.pread(BLOCK, SIZE - BLOCK) == bytes(BLOCK)
    handle.shutdown()


def finish(started):
    """Waits for commands, which all succeed."""
    for handle, cookie in started:
        while not handle.aio_command_completed(cookie):
            assert handle.poll(10000) > 0, "a command hangs"


def many_at_once():
    """128 reads and writes of different sizes in flight on each of four connections."""
    handles = [connect() for _ in range(4)]
    rounds = random.Random(3)
    expected, started = {}, []
    for index, handle in enumerate(handles):
        for number in range(128):
            length = BLOCK * rounds.randint(1, 64)
            offset = (index * 128 + number) * (128 << 10)
            length = min(length, 128 << 10)
            data = pattern((index, number).__hash__(), length)
            expected[offset] = data
            started.append((handle, handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), offset)))
    finish(started)
    # The flush of one connection covers the writes of all; each reads what another wrote.
    handles[0].flush()
    buffers, started = {}, []
    for position, (offset, data) in enumerate(expected.items()):
        handle = handles[(position + 1) % 4]
        buffer = nbd.Buffer(len(data))
        started.append((handle, handle.aio_pread(buffer, offset)))
        buffers[offset] = buffer
    finish(started)
    for offset, data in expected.items():
        assert buffers[offset].to_bytearray() == data, offset
    for handle in handles:
        handle.shutdown()


def raw():
    parts = urllib.parse.urlparse(uri)
    path = urllib.parse.parse_qs(parts.query)["socket"][0]
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(10)
    client.connect(path)
    assert receive(client, 18) == b"NBDMAGICIHAVEOPT\0\3"
    return client, parts.path[1:].encode()


def receive(client, length):
    data = b""
    while len(data) < length:
        part = client.recv(length - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def option(number, data=b""):
    return b"IHAVEOPT" + struct.pack(">II", number, len(data)) + data


def reply(client):
    magic, number, kind, length = struct.unpack(">QIII", receive(client, 20))
    assert magic == 0x3E889045565A9, magic
    return kind, receive(client, length)


def go(client, name):
    client.sendall(option(7, struct.pack(">I", len(name)) + name + b"\0\0"))
    while (answer := reply(client))[0] != 1:
        assert answer[0] == 3, answer


def request(command, offset, length, cookie=1, flags=0):
    return struct.pack(">IHHQQI", 0x25609513, flags, command, cookie, offset, length)


def old_client():
    """EXPORT_NAME without structured replies, and the 124 zeroes of old."""
    client, name = raw()
    client.sendall(struct.pack(">I", 1) + option(1, name))
    size, flags = struct.unpack(">QH", receive(client, 10))
    assert size == SIZE and flags & 1 and not flags & 128, (size, flags)
    assert receive(client, 124) == bytes(124)
    client.sendall(request(0, 0, BLOCK, 7))
    assert struct.unpack(">IIQ", receive(client, 16)) == (0x67446698, 0, 7)
    assert len(receive(client, BLOCK)) == BLOCK
    client.close()


def extended_client():
    """Extended headers, which libnbd 1.14 does not know."""
    client, name = raw()
    client.sendall(struct.pack(">I", 3) + option(11))
    assert reply(client) == (1, b"")
    query = b"base:allocation"
    data = struct.pack(">I", len(name)) + name + struct.pack(">II", 1, len(query)) + query
    client.sendall(option(10, data))
    assert reply(client) == (4, b"\0\0\0\1" + query) and reply(client) == (1, b"")
    go(client, name)
    data = pattern(4, 4096)
    head = struct.Struct(">IHHQQQ")
    client.sendall(head.pack(0x21E41C71, 32, 1, 5, 8192, 4096) + data)
    assert head.unpack(receive(client, 32)) == (0x6E8A278C, 1, 0, 5, 8192, 0)
    client.sendall(head.pack(0x21E41C71, 0, 0, 6, 8192, 4096))
    assert head.unpack(receive(client, 32)) == (0x6E8A278C, 1, 1, 6, 8192, 4104)
    assert receive(client, 4104) == struct.pack(">Q", 8192) + data
    client.sendall(head.pack(0x21E41C71, 0, 6, 7, 0, SIZE))
    assert head.unpack(receive(client, 32)) == (0x6E8A278C, 1, 0, 7, 0, 0)
    client.sendall(head.pack(0x21E41C71, 0, 7, 8, 0, SIZE))
    assert head.unpack(receive(client, 32)) == (0x6E8A278C, 1, 6, 8, 0, 24)
    assert struct.unpack(">IIQQ", receive(client, 24)) == (1, 1, SIZE, 3)
    client.sendall(head.pack(0x21E41C71, 32, 1, 9, 4 << 20, 2 << 20) + pattern(5, 2 << 20))
    assert head.unpack(receive(client, 32)) == (0x6E8A278C, 1, 0, 9, 4 << 20, 0)
    client.sendall(head.pack(0x21E41C71, 0, 7, 10, 0, SIZE))
    assert head.unpack(receive(client, 32)) == (0x6E8A278C, 1, 6, 10, 0, 8 + 3 * 16)
    context, count, *parts = struct.unpack(">II6Q", receive(client, 56))
    assert (context, count) == (1, 3)
    found = list(zip(parts[::2], parts[1::2]))
    assert is_near(found, [(4 << 20, 3), (2 << 20, 0), (SIZE - (6 << 20), 3)]), found
    # Whatever it is that does not fit: an error in a chunk, and the connection goes on.
    for cookie, flags, offset, length in [(11, 0, 0, 0), (12, 0, SIZE, BLOCK), (13, 0, BLOCK, 1 << 63), (14, 4, 0, BLOCK)]:
        client.sendall(head.pack(0x21E41C71, flags, 7, cookie, offset, length))
        magic, last, kind, of, at, bytes_left = head.unpack(receive(client, 32))
        assert (magic, last, kind, of, at) == (0x6E8A278C, 1, 0x8001, cookie, offset)
        assert struct.unpack(">I", receive(client, bytes_left)[:4]) == (errno.EINVAL,)
    client.sendall(head.pack(0x21E41C71, 8, 7, 15, 0, SIZE))
    assert head.unpack(receive(client, 32)) == (0x6E8A278C, 1, 6, 15, 0, 24)
    assert struct.unpack(">IIQQ", receive(client, 24)) == (1, 1, *found[0])
    client.close()


def strangers():
    """Ends in the middle, and what is no NBD: others are served as before."""
    for after in [b"", struct.pack(">I", 3), struct.pack(">I", 3) + option(3)[:9]]:
        client, _ = raw()
        client.sendall(after)
        client.close()
    for bad in [b"GET / HTTP/1.1\r\n\r\n", struct.pack(">I", 1 << 9), struct.pack(">I", 3) + b"x" * 16]:
        client, _ = raw()
        client.sendall(bad)
        try:
            assert client.recv(1) == b""
        except ConnectionResetError:
            pass
        client.close()
    for tail in [request(0, 0, 1 << 20), request(1, 0, 1 << 20) + bytes(1000), request(1, 0, 4096)[:13]]:
        client, name = raw()
        client.sendall(struct.pack(">I", 3) + option(8))
        assert reply(client)[0] == 1
        go(client, name)
        client.sendall(tail)
        client.close()
    # A client that asks for much and reads nothing holds up nobody else.
    client, name = raw()
    client.sendall(struct.pack(">I", 3) + option(8))
    assert reply(client)[0] == 1
    go(client, name)
    client.setblocking(False)
    try:
        while True:
            client.send(request(0, 0, 1 << 20) * 100)
    except BlockingIOError:
        pass
    other = connect()
    assert len(other.pread(1 << 20, 0)) == 1 << 20
    other.shutdown()
    client.close()
    client, name = raw()
    client.sendall(struct.pack(">I", 3))
    go(client, name)
    client.sendall(b"no request at all, as long as one")
    try:
        assert client.recv(1) == b""
    except ConnectionResetError:
        pass
    client.close()


exercise(structured=True)
exercise(structured=False)
many_at_once()
old_client()
extended_client()
strangers()
last = connect()
last.flush()
last.shutdown()
