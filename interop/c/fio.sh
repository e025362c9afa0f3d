#!/usr/bin/env bash
# Debian's fio with the engine of libnvlane: verified load at depths 1 to 128, several jobs, trim, flushes, FUA, long I/Os, every
# pattern of data. Within `nvlane target --run`, with a namespace of blocks. Outside: PREFIX, where library and engine are
# installed.
set -eu -o pipefail

export ADDR="${NVLANE_ADDR%%\?*}?ns=1"
ENGINE="$PREFIX/lib/fio/nvlane.so"
cat >jobs.fio <<END
[global]
ioengine=external:$ENGINE
thread=1
addr=\${ADDR}
size=4m
bs=4k
verify=crc32c
verify_fatal=1
group_reporting

[depth1]
rw=randwrite
iodepth=1
size=1m

[depth128]
stonewall
rw=randwrite
iodepth=128

[jobs]
stonewall
rw=randwrite
iodepth=32
numjobs=3
offset_increment=8m
fsync=64

[durable]
stonewall
rw=write
bs=64k
iodepth=4
fua=1

[long]
stonewall
rw=write
bs=4m
size=16m
iodepth=4
offset=32m

[pattern]
stonewall
rw=randwrite
bs=16k
iodepth=16
verify=pattern
verify_pattern=0xdeadbeef

[trim]
stonewall
rw=trimwrite
bs=16k
iodepth=16
END
fio --output=jobs.log jobs.fio || { cat jobs.log; exit 1; }
for verify in md5 crc16 crc64 sha256 xxhash meta; do
    fio --name=v --ioengine="external:$ENGINE" --thread=1 --addr="$ADDR" --rw=randwrite --size=1m --bs=4k --iodepth=16 \
        --verify="$verify" --output=verify.log || { cat verify.log; exit 1; }
done
# Mixed load, trims among it, and jobs that are processes.
fio --name=m --ioengine="external:$ENGINE" --thread=1 --addr="$ADDR" --rw=randrw --size=4m --bs=4k --iodepth=64 --output=mixed.log
fio --name=t --ioengine="external:$ENGINE" --thread=1 --addr="$ADDR" --rw=trimwrite --size=4m --bs=4k --iodepth=8 --output=trim.log
fio --name=p --ioengine="external:$ENGINE" --thread=0 --addr="$ADDR" --rw=randread --size=1m --bs=4k --iodepth=8 --numjobs=2 \
    --output=processes.log
# What a person mistypes.
refused() { # TEXT OPTION...: fio fails, and says so.
    text=$1; shift
    if out=$(fio --name=r --ioengine="external:$ENGINE" --thread=1 --size=1m "$@" 2>&1); then echo "accepted: $*" >&2; exit 1; fi
    [[ $out == *"$text"* ]] || { echo "$*: $out" >&2; exit 1; }
}
refused "set addr=HOST" --rw=read --bs=4k
refused "no multiple of the block size" --rw=read --bs=512 --addr="$ADDR"
refused "nothing listens there" --rw=read --bs=4k --addr="127.0.0.1:1/nqn.2016-06.io.nvlane:c"
refused "cannot read /nonexistent" --rw=read --bs=4k --addr="$ADDR" --tls_key=/nonexistent
