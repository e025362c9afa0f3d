"""NBD clients with TLS on `nvlane attach nbd`: libnbd's tools, libnbd from Python, and qemu's, with certificates on both sides;
those that are refused; a man in the middle.

Outside: NVLANE, the program; an empty working directory."""

import os
import shutil
import socket
import struct
import subprocess
import sys

import nbd
from chain import CORES, start, stop, target_command

NVLANE = os.environ["NVLANE"]
MIB = 1 << 20
HERE = os.path.dirname(os.path.abspath(__file__))

subprocess.run([f"{HERE}/../memcached/certificates"], check=True)
for name in "client", "stranger":
    os.mkdir(name)
    shutil.copy("authority.pem", f"{name}/ca-cert.pem")
    shutil.copy(f"{name}.pem", f"{name}/client-cert.pem")
    shutil.copy(f"{name}.key", f"{name}/client-key.pem")
# A client that trusts another authority.
shutil.copytree("client", "other-trust")
shutil.copy("stranger.pem", "other-trust/ca-cert.pem")
OPTIONS = ["--nbd-tls-certificate", "target.pem", "--nbd-tls-key", "target.key"]


class Bridge:
    def __init__(self, *options):
        run = f'exec "$NVLANE" --log error attach nbd "$NVLANE_ADDR" {" ".join([*OPTIONS, *options])}'
        self.process = start([*target_command("ram:64M", CORES), "--run", run], stdout=subprocess.PIPE, text=True)
        self.uri = self.process.stdout.readline().strip()

    def stop(self):
        stop(self.process)


def run(*command, succeeds=True):
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if (ended.returncode == 0) != succeeds:
        sys.exit(f"{command}: {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return ended.stdout + ended.stderr


def with_certificates(uri, directory):
    separator = "&" if "?" in uri else "?"
    return f"{uri}{separator}tls-certificates={os.path.abspath(directory)}"


# Certificates on both sides.
bridge = Bridge("--listen", "127.0.0.1:0", "--nbd-tls-client-ca", "authority.pem")
assert bridge.uri.startswith("nbds://127.0.0.1:"), bridge.uri
uri = with_certificates(bridge.uri, "client")
port = bridge.uri.split(":")[2].strip("/")
told = run("nbdinfo", uri)
assert "with TLS" in told and "export-size: 67108864" in told, told
with open("image", "wb") as image:
    image.write(os.urandom(64 * MIB))
run("nbdcopy", "image", uri)
run("nbdcopy", uri, "copy")
run("cmp", "image", "copy")
qemu = ["--object", "tls-creds-x509,id=tls0,endpoint=client,dir=client"]
disk = f"driver=nbd,host=127.0.0.1,port={port},tls-creds=tls0"
run("qemu-img", "compare", *qemu, "--image-opts", "driver=raw,file.driver=file,file.filename=image", disk)
commands = ["write -P 7 1M 3M", "read -P 7 1M 3M", "write -z 2M 64k", "read -P 0 2M 64k", "discard 0 1M", "flush"]
told = run("qemu-io", *qemu, "--image-opts", disk, *(part for command in commands for part in ("-c", command)))
assert "failed" not in told and "error" not in told.lower(), told

# Requests of all lengths, many at once, in records that have nothing to do with them.
handle = nbd.NBD()
handle.set_uri_allow_local_file(True)
handle.connect_uri(uri)
assert handle.get_tls_negotiated() and handle.get_structured_replies_negotiated()
started = []
for number in range(64):
    length = 4096 * (1 + number * 7 % 64)
    data = bytes([number]) * length
    started.append((data, handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), number * MIB)))
for _, cookie in started:
    while not handle.aio_command_completed(cookie):
        assert handle.poll(10000) > 0, "a command hangs"
for number, (data, _) in enumerate(started):
    assert handle.pread(len(data), number * MIB) == data
assert handle.pread(32 * MIB, 0)[: len(started[0][0])] == started[0][0]
handle.shutdown()

# Who is refused: without TLS, without a certificate of this authority; and a server that the client does not trust.
plain = bridge.uri.replace("nbds", "nbd")
assert "TLS" in run("nbdinfo", plain, succeeds=False)
run("nbdinfo", "--list", plain, succeeds=False)
run("nbdinfo", with_certificates(bridge.uri, "stranger"), succeeds=False)
run("nbdinfo", with_certificates(bridge.uri, "other-trust"), succeeds=False)

# Options that somebody adds before TLS begins are not taken for the client's.
with socket.create_connection(("127.0.0.1", int(port))) as client:
    client.settimeout(10)
    assert client.recv(18, socket.MSG_WAITALL)[:8] == b"NBDMAGIC"
    option = lambda number: b"IHAVEOPT" + struct.pack(">II", number, 0)
    client.sendall(struct.pack(">I", 3) + option(5) + option(3))
    answer = b""
    while part := client.recv(4096):
        answer += part
    assert len(answer) <= 20, answer
bridge.stop()

# Whoever likes: TLS or none, on a Unix socket as well.
for place in (["--listen", "127.0.0.1:0"], ["--socket", os.path.abspath("nbd.sock")]):
    bridge = Bridge(*place, "--nbd-tls", "allowed")
    assert bridge.uri.startswith("nbd:") or bridge.uri.startswith("nbd+unix:"), bridge.uri
    assert "without TLS" in run("nbdinfo", bridge.uri)
    # On a Unix socket there is no name that the certificate could have.
    secure = with_certificates(bridge.uri.replace("nbd", "nbds", 1), "client")
    assert "with TLS" in run("nbdinfo", secure + ("&tls-verify-peer=0" if "unix" in secure else "")), secure
    bridge.stop()

# What is missing or wrong is named.
for options, word in (
    (["--nbd-tls-certificate", "target.pem"], "--nbd-tls-key"),
    (["--nbd-tls", "required"], "--nbd-tls-certificate"),
    ([*OPTIONS[:2], "--nbd-tls-key", "client.key"], "does not belong"),
    ([*OPTIONS[:2], "--nbd-tls-key", "none.key"], "none.key"),
    ([*OPTIONS[:2], "--nbd-tls-key", "target.pem"], "private key"),
):
    command = [NVLANE, "attach", "nbd", "127.0.0.1:1/nqn.2026-01.io.nvlane:none", "--listen", "0", *options]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2 and word in ended.stderr, ended
print("all as expected")
