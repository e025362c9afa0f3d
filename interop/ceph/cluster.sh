#!/bin/bash
# A Ceph cluster on loopback from the distribution's packages: a monitor and three OSDs on files, three copies, cephx. It needs
# root for nothing but the packages (ceph-mon, ceph-osd, ceph-common), takes some 30 s to start, 0.6 GB of memory and 0.3 GB
# of disk.
#
#   interop/ceph/cluster.sh start DIR [PORT]     DIR/ceph.conf is its configuration, with client.admin's key
#   interop/ceph/cluster.sh stop DIR             ends the daemons by their pid files
set -eu
command=${1:-} dir=$(realpath -m "${2:-}") port=${3:-43300}
export CEPH_CONF=$dir/ceph.conf

start() {
    mkdir -p "$dir/run" "$dir/log"
    fsid=$(cat /proc/sys/kernel/random/uuid)
    address="[v2:127.0.0.1:$port,v1:127.0.0.1:$((port + 1))]"
    cat > "$CEPH_CONF" <<END
[global]
fsid = $fsid
mon_host = $address
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
auth_allow_insecure_global_id_reclaim = false
keyring = $dir/keyring
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
run_dir = $dir/run
log_file = $dir/log/\$name.log
pid_file = $dir/run/\$name.pid
admin_socket = $dir/run/\$name.\$pid.asok
mon_data = $dir/mon.\$id
osd_data = $dir/osd.\$id
mon_data_avail_crit = 1
mon_data_avail_warn = 1
mon_allow_pool_delete = true
osd_pool_default_size = 3
osd_pool_default_min_size = 2
osd_pool_default_pg_num = 16
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
osd_op_num_shards = 2
osd_op_num_threads_per_shard = 1
bluestore_block_size = 4294967296
bluestore_cache_autotune = false
bluestore_cache_size = 67108864
[client]
log_file =
admin_socket =
END
    ceph-authtool --create-keyring "$dir/keyring" --gen-key -n mon. --cap mon 'allow *' > "$dir/log/keys.log"
    ceph-authtool "$dir/keyring" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' >> "$dir/log/keys.log"
    monmaptool --create --fsid "$fsid" --addv a "$address" "$dir/monmap" > "$dir/log/monmap.log"
    ceph-mon -i a --mkfs --monmap "$dir/monmap" --keyring "$dir/keyring"
    ceph-mon -i a
    for osd in 0 1 2; do
        uuid=$(cat /proc/sys/kernel/random/uuid) key=$(ceph-authtool --gen-print-key)
        id=$(echo "{\"cephx_secret\": \"$key\"}" | timeout 60 ceph osd new "$uuid" -i -)
        mkdir -p "$dir/osd.$id"
        ceph-authtool --create-keyring "$dir/osd.$id/keyring" -n "osd.$id" --add-key "$key" >> "$dir/log/keys.log"
        # In parallel: each waits for its own disk.
        (ceph-osd -i "$id" --mkfs --osd-uuid "$uuid" --keyring "$dir/osd.$id/keyring" &&
            ceph-osd -i "$id" --keyring "$dir/osd.$id/keyring") > "$dir/log/start-$osd.log" 2>&1 &
    done
    wait
    timeout 60 ceph osd pool create rbd 16 2> "$dir/log/pool.log"
    timeout 60 rbd pool init rbd
}

stop() {
    for file in "$dir"/run/*.pid; do
        [ -e "$file" ] || continue
        pid=$(cat "$file")
        # It is a daemon of this cluster: its files are here.
        if tr '\0' ' ' 2> /dev/null < "/proc/$pid/cmdline" | grep -q '^ceph-\(mon\|osd\) '; then
            kill "$pid" 2> /dev/null || true
            for _ in $(seq 100); do
                kill -0 "$pid" 2> /dev/null || break
                sleep 0.1
            done
            kill -9 "$pid" 2> /dev/null || true
        fi
    done
}

case $command in
start) start ;;
stop) stop ;;
*) echo "usage: $0 start|stop DIR [PORT]" >&2; exit 2 ;;
esac
