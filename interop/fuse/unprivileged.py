"""`nvlane attach fuse` of a user without rights, whom fusermount3 mounts for: I/O, fusermount3 -u, SIGTERM while a file is open, and a
bridge that is killed and started again.

Outside: NVLANE, the program. As root, which makes /dev/fuse everybody's in a mount namespace of this script's."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile

NOBODY = 65534


if os.getuid() != 0 or not shutil.which("fusermount3"):
    sys.exit("this takes root and fusermount3 (package fuse3)")
if "IN_NAMESPACE" not in os.environ:
    os.environ["IN_NAMESPACE"] = "1"
    os.execvp("unshare", ["unshare", "--mount", sys.executable, *sys.argv])

base = tempfile.mkdtemp()
os.chown(base, NOBODY, NOBODY)
device = f"{base}/fuse"
try:
    os.mknod(device, 0o20666, os.makedev(10, 229))
    os.chmod(device, 0o666)
    subprocess.run(["mount", "--bind", device, "/dev/fuse"], check=True)
    os.close(os.open("/dev/fuse", os.O_RDWR))
except OSError as error:
    shutil.rmtree(base)
    print(f"skipped: no /dev/fuse: {error}")
    sys.exit(0)

# The program may lie where this user cannot search.
program = os.open(os.environ["NVLANE"], os.O_RDONLY)
mounted = f"{base}/mounted"
file = f"{mounted}/ns1"
as_nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": base}
as_nobody["env"] = {"PATH": os.environ["PATH"], "HOME": base, "XDG_RUNTIME_DIR": base}


def nobody(*command):
    return subprocess.run(command, capture_output=True, text=True, **as_nobody)


def attach():
    """A bridge, once it serves."""
    command = ["nvlane", "--log", "error", "attach", "fuse", address, mounted]
    path = f"/proc/self/fd/{program}"
    bridge = subprocess.Popen(command, executable=path, pass_fds=[program], stdout=subprocess.PIPE, text=True, **as_nobody)
    assert bridge.stdout.readline() == f"{file}\n", "no path is printed"
    return bridge


def ends(bridge, code):
    assert bridge.wait(30) == code, bridge.returncode
    with open("/proc/mounts") as mounts:
        assert (mounted in mounts.read()) == (code < 0)


target = [os.environ["NVLANE"], "--log", "error", "target", "--listen", "127.0.0.1:0", "--namespace", "ram:64M"]
target = subprocess.Popen([*target, "--run", 'echo "$NVLANE_ADDR"; exec sleep 1000'], stdout=subprocess.PIPE, text=True)
try:
    address = target.stdout.readline().strip()
    os.mkdir(mounted)
    os.chown(mounted, NOBODY, NOBODY)

    bridge = attach()
    written = nobody("dd", "if=/dev/urandom", f"of={file}", "bs=1M", "count=4", "conv=notrunc,fsync", "status=none")
    assert written.returncode == 0, written
    owner = nobody("stat", "--format=%u %a %s", file).stdout
    assert owner == f"{NOBODY} 600 {64 << 20}\n", owner
    detached = nobody("fusermount3", "-u", mounted)
    assert detached.returncode == 0, detached
    ends(bridge, 0)

    bridge = attach()
    reader = subprocess.Popen(["sh", "-c", f"exec 3<{file}; echo; exec sleep 1000"], stdout=subprocess.PIPE, **as_nobody)
    reader.stdout.readline()
    bridge.terminate()
    ends(bridge, 0)
    reader.kill()
    reader.wait()

    bridge = attach()
    bridge.kill()
    ends(bridge, -signal.SIGKILL)
    assert nobody("cat", file).returncode != 0, "a dead bridge serves"
    bridge = attach()
    assert nobody("cmp", "--bytes=4096", file, file).returncode == 0, "the next bridge does not serve"
    assert nobody("fusermount3", "-u", mounted).returncode == 0
    ends(bridge, 0)
finally:
    target.terminate()
    target.wait(20)
    subprocess.run(["umount", "--lazy", mounted], stderr=subprocess.DEVNULL)
    subprocess.run(["umount", "/dev/fuse"], check=True)
    shutil.rmtree(base)
print("all as expected")
