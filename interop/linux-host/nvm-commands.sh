#!/usr/bin/env bash
# Commands the block layer does not send: Compare, Write Zeroes, Deallocate, Verify, Copy and
# Flush through nvme-cli, each with the effect it should have on the data.
# Outside: namespace 1 of 64 MiB with 512-byte blocks.
. /lab/lib.sh

connect
head -c 4096 /dev/urandom >/tmp/a
head -c 4096 /dev/urandom >/tmp/b
head -c 4096 /dev/zero >/tmp/zeroes
io() { local verb=$1; shift; nvme "$verb" "$DISK" "$@" >/tmp/said 2>&1; }
is() { io read -s "$1" -c 7 -z 4096 -d /tmp/read && cmp /tmp/read "$2" || fail "block $1 is not $2"; }

io write -s 8 -c 7 -z 4096 -d /tmp/a
is 8 /tmp/a
io flush -n 1
io write-zeroes -s 8 -c 7
is 8 /tmp/zeroes
io write -s 8 -c 7 -z 4096 -d /tmp/b
io dsm -n 1 --ad --slbs=8 --blocks=8
! stand_in || skip "nvmet has no Compare, Verify, Copy"
is 8 /tmp/zeroes
io write -s 8 -c 7 -z 4096 -d /tmp/b
io compare -s 8 -c 7 -z 4096 -d /tmp/b || fail "equal blocks compare unequal: $(cat /tmp/said)"
! io compare -s 8 -c 7 -z 4096 -d /tmp/a || fail "unequal blocks compare equal"
grep -qi 'compare failure' /tmp/said || fail "$(cat /tmp/said)"
io verify -s 8 -c 7 || fail "verify: $(cat /tmp/said)"
io copy --sdlba=64 --blocks=7 --slbs=8 --format=0 || fail "copy: $(cat /tmp/said)"
is 64 /tmp/b
