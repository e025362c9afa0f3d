"""Prometheus exporters of a memcached listener. Arguments: its address, the exporter of all fields, memcached_exporter."""

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

ADDRESS, EXPORTER, MEMCACHED_EXPORTER = sys.argv[1:]
# Pairs of a batch, and at most.
BATCH, MOST = 100_000, 1_000_000


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def scrape(expected):
    """Scrapes all fields, and returns them; with memcached_exporter as well."""
    run = subprocess.run([EXPORTER, ADDRESS], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    fields = dict(line.rsplit(" ", 1) for line in run.stdout.splitlines())
    assert fields["memcached_curr_items"] == str(expected), fields
    in_class = fields.get('memcached_slab_number{slab="1"}', "0")
    assert in_class == str(expected), fields
    scrape_over_http(expected)
    return fields


def scrape_over_http(expected):
    port = free_port()
    listen = ["--memcached.address", ADDRESS, "--web.listen-address", f"127.0.0.1:{port}"]
    exporter = subprocess.Popen([MEMCACHED_EXPORTER, *listen])
    try:
        for attempt in range(100):
            try:
                # Any status but 200 is an error.
                text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20).read().decode()
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
            except urllib.error.URLError as error:
                if not isinstance(error.reason, ConnectionRefusedError) or attempt == 99:
                    raise
                time.sleep(0.1)
        lines = text.splitlines()
        assert "memcached_up 1" in lines, text
        items = next(line for line in lines if line.startswith("memcached_current_items "))
        assert float(items.split(" ")[1]) == expected, items
    finally:
        exporter.kill()
        exporter.wait()


host, port = ADDRESS.rsplit(":", 1)
connection = socket.create_connection((host, int(port)), timeout=60)


def store(numbers):
    """Stores pairs, and waits until all of them are."""
    connection.sendall(b"".join(b"set k%07d 0 0 2 noreply\r\nvv\r\n" % number for number in numbers) + b"mn\r\n")
    answer = b""
    while not answer.endswith(b"MN\r\n"):
        answer += connection.recv(1 << 16)
        assert answer, "closed"


def held_count():
    connection.sendall(b"stats\r\n")
    answer = b""
    while not answer.endswith(b"END\r\n"):
        answer += connection.recv(1 << 16)
    return int(answer.split(b"STAT curr_items ")[1].split(b"\r\n")[0])


names = set(scrape(0))
store(range(1))
one = set(scrape(1))
assert names < one, names - one
count = 1
while count < MOST:
    store(range(count, count + BATCH))
    count += BATCH
    if held_count() < count:
        break
assert count >= 200_000, count
assert set(scrape(held_count())) == one
print(f"{count} pairs")
