# The kernel target in the guest: what linux-target behaviours export, and the
# stand-in that lets linux-host behaviours run where nvlane is not.
# shellcheck shell=bash

NVMET=/sys/kernel/config/nvmet
DISKS=/var/tmp/stand-in

# The UUID that namespace NSID of the target is configured with.
uuid_of() { printf '%s%012d' "$UUID_PREFIX" "$1"; }

# nvmet_namespace NQN NSID DEVICE|FILE [UUID]: adds a namespace, and its subsystem.
nvmet_namespace() {
    local sub=$NVMET/subsystems/$1
    mkdir -p "$sub"
    echo 1 >"$sub/attr_allow_any_host"
    mkdir -p "$sub/namespaces/$2"
    echo -n "$3" >"$sub/namespaces/$2/device_path"
    [ -z "${4:-}" ] || echo -n "$4" >"$sub/namespaces/$2/device_uuid"
    echo 1 >"$sub/namespaces/$2/enable"
}

nvmet_remove_namespace() {
    echo 0 >"$NVMET/subsystems/$1/namespaces/$2/enable"
    rmdir "$NVMET/subsystems/$1/namespaces/$2"
}

# [TLS=required] nvmet_listen NQN ADDRESS PORT: serves the subsystem there.
nvmet_listen() {
    local port=$NVMET/ports/$3
    if mkdir "$port" 2>/dev/null; then
        echo ipv4 >"$port/addr_adrfam"
        echo tcp >"$port/addr_trtype"
        echo "$2" >"$port/addr_traddr"
        echo "$3" >"$port/addr_trsvcid"
        [ -z "${TLS:-}" ] || { echo tls1.3 >"$port/addr_tsas"; echo "$TLS" >"$port/addr_treq"; }
    fi
    ln -s "$NVMET/subsystems/$1" "$port/subsystems/$1"
}

# nvmet_hang_up NQN PORT: closes the port; its controllers lose their connections.
nvmet_hang_up() { rm "$NVMET/ports/$2/subsystems/$1"; }

# nvmet_stop: takes everything down.
nvmet_stop() {
    local path
    for path in "$NVMET"/ports/*/subsystems/*; do [ ! -L "$path" ] || rm "$path"; done
    for path in "$NVMET"/ports/*; do [ ! -d "$path" ] || rmdir "$path"; done
    for path in "$NVMET"/subsystems/*/namespaces/*; do
        [ ! -d "$path" ] || { echo 0 >"$path/enable"; rmdir "$path"; }
    done
    for path in "$NVMET"/subsystems/*/allowed_hosts/*; do [ ! -L "$path" ] || rm "$path"; done
    for path in "$NVMET"/subsystems/* "$NVMET"/hosts/*; do [ ! -d "$path" ] || rmdir "$path"; done
    for path in /sys/kernel/config/nullb/*; do [ ! -d "$path" ] || rmdir "$path"; done
    modprobe -r brd null_blk 2>/dev/null
    rm -rf "$DISKS"
    return 0
}

# The outside's verbs (interop/README.md), done with nvmet in this guest.
nvmet_stand_in() {
    local verb=$1 word; shift
    case $verb in
        start)
            # shellcheck disable=SC2086
            [ -d "$NVMET/subsystems/$TARGET_NQN" ] || nvmet_stand_in namespaces $NAMESPACES
            nvmet_listen "$TARGET_NQN" "$TARGET_ADDR" "$TARGET_PORT" ;;
        kill)
            nvmet_hang_up "$TARGET_NQN" "$TARGET_PORT" ;;
        namespaces)
            for word in "$NVMET/subsystems/$TARGET_NQN/namespaces"/*; do
                [[ ! -d $word || " $*" == *" ${word##*/}="* ]] || nvmet_remove_namespace "$TARGET_NQN" "${word##*/}"
            done
            for word; do nvmet_stand_in_namespace "${word%%=*}" "${word#*=}"; done ;;
        allocated-kib)
            du -k "$DISKS/$1" | cut -f1 ;;
        connections)
            ss -Htn state established "sport = :$TARGET_PORT" | wc -l ;;
        *)
            echo "the stand-in cannot $verb"; return 1 ;;
    esac
}

# Namespace NSID as BACKING says, ram:SIZE or file:NAME:SIZE with @4096 perhaps, new or
# resized. A file's blocks are of 4096 bytes in any case.
nvmet_stand_in_namespace() {
    local backing=${2%@*} block=512 path size namespace=$NVMET/subsystems/$TARGET_NQN/namespaces/$1
    [ "$backing" = "$2" ] || block=${2#*@}
    size=${backing##*:}
    case $backing in
        ram:*) path=$(null_blk "ram$1" "${size%M}" "$block") ;;
        file:*)
            path=${backing#file:}; path=$DISKS/${path%%:*}
            mkdir -p "$DISKS"
            truncate -s "$size" "$path" ;;
    esac
    if [ -d "$namespace" ]; then
        echo 1 >"$namespace/revalidate_size"
    else
        nvmet_namespace "$TARGET_NQN" "$1" "$path" "$(uuid_of "$1")"
    fi
}

# null_blk NAME MIB BLOCK: a RAM disk, which unlike brd has a size and a block size of its own.
null_blk() {
    local config=/sys/kernel/config/nullb/$1
    modprobe null_blk nr_devices=0
    if mkdir "$config" 2>/dev/null; then
        echo 1 >"$config/memory_backed"
        echo "$2" >"$config/size"
        echo "$3" >"$config/blocksize"
        echo 1 >"$config/discard"
        echo 1 >"$config/power"
    fi
    echo "/dev/$1"
}
