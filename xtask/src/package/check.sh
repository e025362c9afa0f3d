# Packages of nvlane on a clean system: installed, used, upgraded with a running target, removed, purged.
export DEBIAN_FRONTEND=noninteractive
say() { echo "== $*"; }
fail() { echo "FAILED: $*"; journalctl --no-pager -u nvlane | tail -n 20; exit 1; }
serving_pid() { systemctl show -p MainPID --value nvlane; }
ADDR=127.0.0.1:4420/nqn.2026-01.com.example:pairs

say "install the last version"
dpkg -i /packages/old/nvlane_*.deb
systemctl is-active nvlane && fail "a target without a configuration has been started"
systemctl is-enabled nvlane && fail "the service is enabled by the package"
[ "$(stat -c %U:%G:%a /etc/nvlane)" = root:nvlane:750 ] || fail "/etc/nvlane: $(stat -c %U:%G:%a /etc/nvlane)"
# Its state directory comes with the first start.
mkdir /var/lib/nvlane
nvlane check --config /usr/share/doc/nvlane/examples/nvlane.toml > /tmp/check || fail "the example configuration is refused"
rmdir /var/lib/nvlane

say "serve"
cat > /etc/nvlane/nvlane.toml <<'CONFIG'
[reactors]
count = 1
pool = "16M"
[audit]
file = "/var/log/nvlane/audit.jsonl"
[[listener]]
address = "127.0.0.1:4420"
[[subsystem]]
nqn = "nqn.2026-01.com.example:pairs"
hosts = "any"
[[subsystem.namespace]]
nsid = 1
storage = "kv:ram:16M"
[[subsystem.namespace]]
nsid = 2
storage = "kv:file:/var/lib/nvlane/pairs?size=64M"
CONFIG
chgrp nvlane /etc/nvlane/nvlane.toml
chmod 640 /etc/nvlane/nvlane.toml
systemctl enable --now nvlane || fail "the service does not start"
[ "$(ps -o user= -p "$(serving_pid)")" = nvlane ] || fail "the target runs as $(ps -o user= -p "$(serving_pid)")"
head -c 100000 /dev/urandom > /tmp/data
for nsid in 1 2; do nvlane kv set "$ADDR?ns=$nsid" key --file /tmp/data || fail "store"; done
read_back() { nvlane kv get "$ADDR?ns=$1" key > /tmp/back && cmp /tmp/data /tmp/back; }
systemctl reload nvlane || fail "reload"
logrotate --force /etc/logrotate.d/nvlane || fail "logrotate"
[ -e /var/log/nvlane/audit.jsonl.1 ] || fail "the audit log is not rotated"

say "upgrade with a running target"
before=$(serving_pid)
dpkg -i /packages/new/nvlane_*.deb > /tmp/upgrade
cat /tmp/upgrade
grep -q "nvlane.service is still version 0.0.9" /tmp/upgrade || fail "the upgrade does not say that the old target runs"
[ "$(serving_pid)" = "$before" ] || fail "the upgrade has restarted the target"
read_back 1 || fail "the data in memory is gone"
systemctl restart nvlane || fail "the new version does not start"
read_back 2 || fail "the data in the file is gone"
dpkg -i /packages/new/nvlane-csi_*.deb /packages/new/nvlane-lab_*.deb /packages/new/nvlane-dbgsym_*.deb
nvlane study list > /dev/null || fail "nvlane study does not find nvlane-lab"
nvlane csi --help | grep -q -e --endpoint || fail "nvlane csi does not find nvlane-csi"
for file in bash-completion/completions/nvlane man/man1/nvlane-target.1.gz doc/nvlane/copyright doc/nvlane/sbom.cdx.json; do
    # Small systems leave documents out.
    dpkg -L nvlane | grep -q "/usr/share/$file" || fail "the package has no $file"
done

say "a program with the library"
code=0
/packages/blocks 2> /dev/null || code=$?
[ $code = 127 ] || fail "without the library it ends with $code"
dpkg -i /packages/new/libnvlane0_*.deb /packages/new/libnvlane-dev_*.deb || fail "libnvlane"
nvlane target --listen 127.0.0.1:0 --namespace ram:16M --run '/packages/blocks "$NVLANE_ADDR"' || fail "the program with the library"
[ -e /usr/include/nvlane.h ] && [ "$(readlink /usr/lib/*/libnvlane.so)" = libnvlane.so.0 ] || fail "files of libnvlane-dev"

say "restart behind a socket of systemd"
mkdir /etc/systemd/system/nvlane.socket.d
printf '[Socket]\nListenStream=\nListenStream=127.0.0.1:4420\n' > /etc/systemd/system/nvlane.socket.d/addresses.conf
systemctl daemon-reload
systemctl stop nvlane
systemctl enable --now nvlane.socket || fail "the socket"
systemctl is-active nvlane && fail "the service runs before the first connection"
read_back 2 || fail "the first connection does not start the service"
# A read that has begun ends with its target, and the next one waits for the new target.
while :; do read_back 2 || true; done 2> /tmp/errors &
reader=$!
systemctl restart nvlane
systemctl restart nvlane
kill $reader
grep -i refused /tmp/errors && fail "a host was refused during a restart"
read_back 2 || fail "the data in the file is gone"
rm -r /etc/systemd/system/nvlane.socket.d

say "remove"
dpkg -r nvlane-csi nvlane-lab nvlane-dbgsym libnvlane-dev libnvlane0 nvlane
systemctl is-active nvlane && fail "the target runs after its removal"
[ -e /etc/nvlane/nvlane.toml ] && [ -e /var/lib/nvlane/pairs ] || fail "the removal has deleted files of the operator"
say "purge, with files of namespaces"
dpkg -P nvlane > /tmp/purge
grep -q "/var/lib/nvlane is kept" /tmp/purge || fail "the purge does not say what it keeps"
[ -e /var/lib/nvlane/pairs ] || fail "the purge has deleted a namespace"
[ -e /var/log/nvlane ] && fail "the purge has left logs"

say "purge, without"
dpkg -i /packages/new/nvlane_*.deb
rm /etc/nvlane/nvlane.toml /var/lib/nvlane/pairs
dpkg -P nvlane
systemctl daemon-reload
left=$(find / -xdev -name '*nvlane*' -not -path '/packages/*' -not -path '/proc/*' -not -path '/sys/*' -not -path '/tmp/*' -not -path '/var/log/journal/*' -not -path '/run/*')
[ -z "$left" ] || fail "the purge has left: $left"
id nvlane 2> /dev/null && fail "the purge has left the user"
say "all is well"
