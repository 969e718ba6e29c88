#!/usr/bin/env bash
# aarch64.sh FOLDER: imports the wheel of a folder and starts both programs of its tarball, emulated. The emulator has no io_uring, so nothing
# is read.
set -euo pipefail
folder=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/../kernel-lab/guest/mirrors.sh"

mmdebstrap --quiet --variant=extract --architectures=arm64 --include=python3,libgcc-s1 --aptopt="$work/apt.conf" \
    --keyring=/usr/share/keyrings/debian-archive-keyring.gpg bookworm "$work/root" "${mirrors[@]}"
emulated() {
    qemu-aarch64-static -L "$work/root" "$@"
}
for wheel in "$folder"/wheels/*.whl; do
    python3 -m zipfile --extract "$wheel" "$work/packages"
done
emulated -E PYTHONPATH="$work/packages" "$work"/root/usr/bin/python3.11 -c '
import platform, feedrail
from feedrail import _core
assert len(feedrail.make_plan([0], [4096])) == 1 and len(feedrail.Buffer.allocate(4096)) == 4096
assert _core.crc32c(b"123456789") == 0xE3069283
print(f"tried: import in Python {platform.python_version()} on {platform.machine()}, emulated")'
tar --extract --gzip --file "$folder/feedrail.tar.gz" --directory "$work" --strip-components 1
for program in feedrail feedrail-target; do
    echo "tried: $(emulated "$work/bin/$program" --version), emulated"
done
