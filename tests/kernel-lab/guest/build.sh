#!/usr/bin/env bash
# build.sh SUITE FOLDER: makes FOLDER/{vmlinuz,initrd.zst} from a Debian suite's packages.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
suite=$1
folder=$2

packages=kmod,iproute2,procps,nvme-cli,fio,rdma-core,ibverbs-providers,ibverbs-utils,rdmacm-utils,tcpdump,jq,e2fsprogs,util-linux,strace

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=$(mktemp -d "$folder/build.XXXXXX")
trap 'rm -rf "$work"' EXIT

. "$here/mirrors.sh"

# The kernel is unpacked, not installed: its maintainer scripts would make an initial RAM disk that nobody needs.
mmdebstrap --quiet --variant=minbase --include="$packages" --aptopt="$work/apt.conf" \
    --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
    --customize-hook="chroot \"\$1\" sh -c 'cd /tmp && apt-get -qq download \$(apt-cache depends linux-image-amd64 | sed -n \"s/.*Depends: \\(linux-image-[0-9].*\\)/\\1/p\")'" \
    --customize-hook="mv \"\$1\"/tmp/linux-image-*.deb \"$work/kernel.deb\"" \
    "$suite" "$work/root" "${mirrors[@]}"
dpkg -x "$work/kernel.deb" "$work/kernel"

version=$(basename "$(echo "$work"/kernel/boot/vmlinuz-*)")
version=${version#vmlinuz-}
modules=$work/root/usr/lib/modules/$version
mkdir -p "$(dirname "$modules")"
if [ -d "$work/kernel/usr/lib/modules/$version" ]; then
    mv "$work/kernel/usr/lib/modules/$version" "$modules"
else
    mv "$work/kernel/lib/modules/$version" "$modules"
fi

# Drivers that no virtual machine has hardware for make up most of the modules.
for unneeded in sound drivers/{media,gpu,usb,hid,iio,scsi,input,hwmon,staging,bluetooth,i2c,mmc,mtd,target} \
    drivers/net/{wireless,ethernet} drivers/infiniband/hw net/{bluetooth,wireless,mac80211} \
    fs/{xfs,btrfs,ocfs2,gfs2,cifs,smb,nfs,nfsd,ceph} arch/x86/kvm; do
    rm -rf "$modules/kernel/$unneeded"
done
depmod -b "$work/root" "$version"

rm -rf "$work/root"/usr/share/{doc,man,locale} "$work/root"/var/cache/apt "$work/root"/var/lib/apt/lists/*
install -m 755 "$here/init.sh" "$work/root/init.sh"
(cd "$work/root" && find . -xdev | cpio --quiet -o -H newc | zstd -1 -q -T0) > "$work/initrd.zst"
mv "$work/kernel/boot/vmlinuz-$version" "$folder/vmlinuz"
mv "$work/initrd.zst" "$folder/initrd.zst"
echo "$version" > "$folder/version"
