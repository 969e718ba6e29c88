#!/usr/bin/env bash
# debian-rust.sh FOLDER ARCHITECTURE: Debian's newest Rust, which runs on this machine, with its standard library of another architecture.
# FOLDER/rustc is the compiler.
set -euo pipefail
folder=$1 architecture=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/unpack.sh"

# rustc-web follows the stable Rust, for browsers.
library=$(depends libstd-rust-web-dev 'libstd-rust-web-[0-9.]*')
llvm=$(depends "$library" 'libllvm[0-9]*')
rm -rf "$folder"
unpack "$folder" rustc-web libstd-rust-web-dev "libstd-rust-web-dev:$architecture" "$library" "$llvm"
cat >"$work/rustc" <<RUSTC
#!/bin/sh
export LD_LIBRARY_PATH=$folder/usr/lib/$(uname -m)-linux-gnu
exec $folder/usr/bin/rustc "\$@"
RUSTC
chmod 755 "$work/rustc"
"$work/rustc" --version
mv "$work/rustc" "$folder/rustc"
