#!/bin/bash
# The declarations of librbd and librados against the headers of another release of Debian than this machine's: those of 18.2 or later.
# Outside: cargo; a mirror of Debian, which apt knows; an empty working directory.
set -eu -o pipefail

release=trixie key=/usr/share/keyrings/debian-archive-keyring.gpg
mkdir -p lists/partial cache/archives/partial
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' 'Component: main' | sort -u | head -n 1)
[ -n "$mirror" ] || { echo 'FAIL: apt knows no mirror of Debian: apt-get update'; exit 1; }
echo "deb [signed-by=$key] $mirror $release main" > sources.list
# Lists of packages, and packages, of this directory: nothing is installed.
apt() {
    apt-get -qq -o Dir::Etc::sourcelist="$PWD/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$PWD/lists" \
        -o Dir::Cache="$PWD/cache" -o Acquire::Languages=none -o APT::Sandbox::User=root -o Debug::NoLocking=1 "$@"
}
apt update
apt download librbd-dev librados-dev
rm -r lists cache
for package in ./*.deb; do dpkg-deb -x "$package" root; done
ls ./*.deb
export CPATH=$PWD/root/usr/include
included=$(cc -E -x c - <<< '#include <rbd/librbd.h>')
[[ $included == *"\"$CPATH/rbd/librbd.h\""* ]] || { echo 'FAIL: the compiler reads other headers'; exit 1; }
cd "${BASH_SOURCE%/*}/../.."
said=$(cargo test --locked --quiet -p nvlane-ceph --lib -- prototypes_and_layouts_are_those_of_the_installed_headers)
[[ $said == *'1 passed'* ]] || { echo "FAIL: the test: $said"; exit 1; }
