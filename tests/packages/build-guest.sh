#!/usr/bin/env bash
# build-guest.sh SUITE FIRST NEXT INITRD: a Debian system in memory with systemd, which runs life-cycle.sh on the packages in two folders.
set -euo pipefail
suite=$1 first=$2 next=$3 initrd=$4
here=$(dirname "$0")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir -p "$work/packages/first" "$work/packages/next" "$(dirname "$initrd")"
cp "$first"/*.deb "$work/packages/first"
cp "$next"/*.deb "$work/packages/next"
cp "$here/life-cycle.sh" "$here/life-cycle.service" "$work/packages"

. "$here/../kernel-lab/guest/mirrors.sh"

# Its kernel is that of the lab's guest, and has no modules here.
mmdebstrap --quiet --variant=apt --include=systemd-sysv,dbus,diffutils,iproute2,man-db,libgcc-s1 \
    --aptopt="$work/apt.conf" --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
    --customize-hook="copy-in $work/packages /opt" \
    --customize-hook='cp "$1/opt/packages/life-cycle.service" "$1/etc/systemd/system/"' \
    --customize-hook='chroot "$1" systemctl enable --quiet life-cycle.service' \
    --customize-hook='chroot "$1" systemctl mask --quiet apt-daily.timer apt-daily-upgrade.timer getty@tty1.service' \
    --customize-hook='rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/*' \
    "$suite" "$work/root.tar" "${mirrors[@]}"
mkdir "$work/root"
tar --extract --file "$work/root.tar" --directory "$work/root" --exclude './dev/*'
(cd "$work/root" && find . -print0 | cpio --null --create --format=newc --owner=0:0 --quiet) | zstd --quiet --force -T0 -3 -o "$initrd"
