#!/usr/bin/env python3
"""Power cuts at every write, from the log of a dm-log-writes device.

The device logs a write once a flush or its own FUA has made it durable, so each prefix of the log is what a power cut
leaves at least.

  load DISK OPS                 NVMe commands on an exported device, the device's log below; expectations go to OPS
  judge LOG OPS                 cuts after each logged write: whatever was answered as durable must be there
  judge-fio LOG                 the same for fio, whose verify headers say what was written: FIO_JOBS
  at-marks LOG IMAGE EVERY COMMAND...
                                cuts at each mark "acked-N" and after each EVERY-th write (0: at no other): IMAGE has what
                                was logged, COMMAND N judges a copy of it
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


# Writes of a job of fio between two of its flushes; 1 with O_DSYNC. Each job has a MiB of its own, writes its blocks one
# after another in an order of its own, ends with a flush, and does so several times.
FIO_JOBS = [1, 1, 4, 8]
JOB_BYTES = 1 << 20
# magic, type, length, seed, offset, seconds and nanoseconds when it was sent, thread, number of the write
FIO_HEADER = struct.Struct('<HHIQQIIHH')
FIO_MAGIC = 0xACCA


def fio_writes(log):
    """The writes of fio that a log has: the number of its entry, job, pass, number there, and when it was sent."""
    seen = [set() for _ in FIO_JOBS]
    passes = [0] * len(FIO_JOBS)
    for at_entry, (offset, flags, data, length) in enumerate(entries(log)):
        for at in range(0, 0 if flags & (MARK | DISCARD) else length, BLOCK):
            magic, _, bytes_, _, to, seconds, ns, _, number = FIO_HEADER.unpack_from(data, at)
            if magic != FIO_MAGIC:
                continue
            if (to, bytes_) != (offset + at, BLOCK):
                sys.exit(f'entry {at_entry}: what was written to {to} is at {offset + at}')
            job = to // JOB_BYTES
            if number in seen[job]:
                seen[job].clear()
                passes[job] += 1
            seen[job].add(number)
            yield at_entry, job, passes[job], number, seconds * 10 ** 9 + ns


def judge_fio(log):
    """A job of fio sends a write only after the flush of the writes before it was answered (FIO_JOBS), and each write says
    when it was sent. So writes that were durable at that time must precede it in the log."""
    writes = list(fio_writes(log))
    sent_ns = {(job, pass_, number): ns for _, job, pass_, number, ns in writes}
    pass_count, job_blocks = 2, JOB_BYTES // BLOCK
    everything = {(job, pass_, number) for job in range(len(FIO_JOBS)) for pass_ in range(pass_count)
                  for number in range(job_blocks)}
    if sent_ns.keys() != everything or len(writes) != len(everything):
        sys.exit(f'{len(writes)} writes of fio in the log, not {len(everything)}')
    # When the first write was sent that followed it and its flush.
    durable = []
    for job, pass_, number in everything:
        following = number - number % FIO_JOBS[job] + FIO_JOBS[job]
        key = (job, pass_, following) if following < job_blocks else (job, pass_ + 1, 0)
        if key in sent_ns:
            durable.append((sent_ns[key], job, pass_, number))
    durable.sort(reverse=True)
    logged = set()
    for at_entry, job, pass_, number, ns in writes:
        while durable and durable[-1][0] <= ns:
            _, *write = durable.pop()
            if tuple(write) not in logged:
                sys.exit(f'cut at entry {at_entry}: write {write[2]} of job {write[0]} was durable before, and is missing')
        logged.add((job, pass_, number))
    counts = dict(writes=len(writes), fua=0, flush=0)
    for _, flags, _, _ in entries(log):
        counts['fua'] += flags & FUA != 0
        counts['flush'] += flags & FLUSH != 0
    print(counts)
    assert counts['fua'] > job_blocks and counts['flush'] > job_blocks / 2, 'too few durable writes in the log'


def at_marks(log, image, every, command):
    count, number = 0, None
    with open(image, 'rb+', buffering=0) as file:
        for offset, flags, data, length in entries(log):
            is_cut = False
            if flags & MARK:
                word, _, text = data.rstrip(b'\0').decode().partition('-')
                if word == 'acked':
                    is_cut, number = True, text
            elif length:
                file.seek(offset)
                file.write(bytes(length) if flags & DISCARD else data)
                count += 1
                is_cut = number is not None and every > 0 and count % every == 0
            if is_cut and subprocess.run([*command, number]).returncode:
                sys.exit(f'cut after write {count}, mark {number}')
    print(count, 'writes')


if __name__ == '__main__':
    verb, *arguments = sys.argv[1:]
    if verb == 'at-marks':
        at_marks(arguments[0], arguments[1], int(arguments[2]), arguments[3:])
    else:
        {'load': load, 'judge': judge, 'judge-fio': judge_fio}[verb](*arguments)
