#!/usr/bin/env bash
# image-libraries.sh ARCHITECTURE OUTPUT SECONDS: a tar archive of what the programs load, from Debian: the C library, and rdma-core for the
# provider verbs.
set -euo pipefail
architecture=$1 output=$2 seconds=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/unpack.sh"

# The licence of libgcc is in the last.
packages=(libc6 libgcc-s1 libibverbs1 ibverbs-providers librdmacm1 libnl-3-200 libnl-route-3-200 "$(depends libgcc-s1 'gcc-[0-9]*-base')")
unpack "$work/root" "${packages[@]/%/:$architecture}"
cd "$work/root"
# The loader's path, where packages have all below /usr.
for name in lib lib64; do
    [ -e "$name" ] || [ ! -e "usr/$name" ] || ln -s "usr/$name" "$name"
done
# Neither character sets nor documentation but the licences.
find . \( -name gconv -o -name lintian -o -name rsocket \) -prune -o \( -type f -o -type l \) \
    \( ! -path './usr/share/*' -o -name copyright \) -print | LC_ALL=C sort >"$work/kept"
tar --create --file "$output" --no-recursion --mtime="@$seconds" --owner=0 --group=0 --numeric-owner --files-from "$work/kept"
