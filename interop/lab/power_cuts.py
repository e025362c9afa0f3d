#!/usr/bin/env python3
"""Power cuts at every write, from the log of a dm-log-writes device.

The device logs a write once a flush or its own FUA has made it durable, so each prefix of the log is what a power cut
leaves at least.

  load DISK OPS                 NVMe commands on an exported device, the device's log below; expectations go to OPS
  judge LOG OPS                 cuts after each logged write: whatever was answered as durable must be there
  at-marks LOG IMAGE COMMAND... cuts at each mark "acked-N": IMAGE has what was logged, COMMAND N judges a copy of it
"""
import ctypes, fcntl, json, random, struct, subprocess, sys, threading

BLOCK = 4096
SECTOR = 512
THREADS = 4
BLOCKS = 64  # of each thread
OPERATIONS = 250  # of each thread
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8
STAMP = struct.Struct('<8sII' + 'I' * THREADS)
MAGIC = b'powercut'


class Command(ctypes.Structure):
    """struct nvme_passthru_cmd"""
    _fields_ = [('opcode', ctypes.c_uint8), ('flags', ctypes.c_uint8), ('rsvd1', ctypes.c_uint16)]
    _fields_ += [(name, ctypes.c_uint32) for name in ('nsid', 'cdw2', 'cdw3')]
    _fields_ += [(name, ctypes.c_uint64) for name in ('metadata', 'addr')]
    _fields_ += [(name, ctypes.c_uint32) for name in ('metadata_len', 'data_len')]
    _fields_ += [('cdw%d' % n, ctypes.c_uint32) for n in range(10, 16)]
    _fields_ += [('timeout_ms', ctypes.c_uint32), ('result', ctypes.c_uint32)]


def run(disk, opcode, block=0, data=b'', fua=False):
    """A command on one block; of a Flush on none."""
    buffer = ctypes.create_string_buffer(data, len(data)) if data else None
    command = Command(opcode=opcode, nsid=1, data_len=len(data), cdw10=block * BLOCK // SECTOR)
    command.addr = ctypes.addressof(buffer) if data else 0
    command.cdw12 = (BLOCK // SECTOR - 1 if opcode else 0) | fua << 30
    status = fcntl.ioctl(disk, 0xC0484E43, command)
    assert status == 0, f'command {opcode:#x}: status {status:#x}'


def load(path, ops_path):
    acked = [0] * THREADS
    ops = [[None] for _ in range(THREADS)]
    failures = []

    def thread(number):
        choice = random.Random(number)
        with open(path, 'rb+', buffering=0) as disk:
            for sequence in range(1, OPERATIONS + 1):
                # What is known to be durable now goes into the data: the log itself says when an answer was there.
                data = STAMP.pack(MAGIC, number, sequence, *acked).ljust(BLOCK, b'\xa5')
                block = number * BLOCKS + choice.randrange(BLOCKS)
                kind = choice.choice(['fua', 'fua', 'flush', 'zero'])
                expected = [[block, sequence]]
                if kind == 'fua':
                    run(disk, 0x01, block, data, fua=True)
                elif kind == 'zero':
                    run(disk, 0x08, block, fua=True)
                    expected = [[block, 0]]
                else:
                    other = number * BLOCKS + choice.randrange(BLOCKS)
                    for at in {block, other}:
                        run(disk, 0x01, at, data)
                    run(disk, 0x00)
                    expected = [[at, sequence] for at in {block, other}]
                ops[number].append(expected)
                acked[number] = sequence

    def guarded(number):
        try:
            thread(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(THREADS)]
    [thread.start() for thread in threads]
    # A mark is in the log at once; a write that nothing made durable comes behind it.
    while any(thread.is_alive() for thread in threads):
        mark = 'known-' + '-'.join(map(str, acked))
        subprocess.run(['dmsetup', 'message', 'logged', '0', 'mark', mark], check=True)
    [thread.join() for thread in threads]
    if failures:
        raise failures[0]
    with open(ops_path, 'w') as file:
        json.dump(ops, file)


def entries(path):
    """Sector, flags and data of each entry of a log."""
    with open(path, 'rb') as log:
        magic, version, count, sector_bytes = struct.unpack('<QQQI', log.read(28))
        assert magic == 0x6A736677736872 and version == 1, 'no log of dm-log-writes'
        log.seek(sector_bytes)
        for _ in range(count):
            head = log.read(sector_bytes)
            sector, length, flags, data_bytes = struct.unpack('<QQQQ', head[:32])
            data = head[32:32 + data_bytes] if flags & MARK else b''
            if length and not flags & DISCARD:
                data = log.read(length * sector_bytes)
            yield sector * sector_bytes, flags, data, length * sector_bytes


def judge(log, ops_path):
    with open(ops_path) as file:
        ops = json.load(file)
    # Per block, the (sequence, stamp) of each operation on it.
    history, least, on_disk = {}, {}, {}
    for of_thread in ops:
        for sequence, expected in enumerate(of_thread):
            for block, stamp in expected or []:
                history.setdefault(block, []).append((sequence, stamp))
    acked = [0] * THREADS
    counts = dict(cuts=0, fua=0, flush=0, marks=0)

    def check(block):
        since = least.get(block, 0)
        found = on_disk.get(block, 0)
        right = [stamp for sequence, stamp in history[block] if sequence >= since]
        if since and found not in right:
            sys.exit(f'cut {counts["cuts"]}: block {block} has {found}, which is older than {since}, a durable one')

    for offset, flags, data, length in entries(log):
        counts['cuts'] += 1
        counts['fua'] += flags & FUA != 0
        counts['flush'] += flags & FLUSH != 0
        touched, known = set(), list(acked)
        if flags & MARK and data.startswith(b'known-'):
            counts['marks'] += 1
            known = [int(word) for word in data.rstrip(b'\0').decode().split('-')[1:]]
        for at in range(0, 0 if flags & MARK else length, BLOCK):
            block, stamp = (offset + at) // BLOCK, 0
            part = data[at:at + STAMP.size]
            if part.startswith(MAGIC):
                _, _, stamp, *known_then = STAMP.unpack(part)
                known = list(map(max, known, known_then))
            on_disk[block] = stamp
            touched.add(block)
        for number in range(THREADS):
            for expected in ops[number][acked[number] + 1:max(known[number], acked[number]) + 1]:
                acked[number] += 1
                for block, _ in expected:
                    least[block] = acked[number]
                    touched.add(block)
        for block in touched & history.keys():
            check(block)
    for number, of_thread in enumerate(ops):
        for sequence, expected in enumerate(of_thread):
            for block, _ in expected or []:
                least[block] = sequence
    for block in history:
        check(block)
    print(counts)
    # The load asks for both; without them in the log it would prove nothing.
    assert counts['fua'] > OPERATIONS and counts['flush'] > OPERATIONS / 2, 'too few durable writes in the log'
    assert counts['marks'] > 10, 'too few marks in the log'


def at_marks(log, image, command):
    with open(image, 'rb+', buffering=0) as file:
        for offset, flags, data, length in entries(log):
            if flags & MARK:
                word, _, number = data.rstrip(b'\0').decode().partition('-')
                if word == 'acked' and subprocess.run([*command, number]).returncode:
                    sys.exit(f'cut at mark {number}')
            elif length:
                file.seek(offset)
                file.write(bytes(length) if flags & DISCARD else data)


if __name__ == '__main__':
    verb, *arguments = sys.argv[1:]
    if verb == 'at-marks':
        at_marks(arguments[0], arguments[1], arguments[2:])
    else:
        {'load': load, 'judge': judge}[verb](*arguments)
