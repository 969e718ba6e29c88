#!/usr/bin/env bash
# root.sh SUITE FOLDER [PACKAGE...]: a small Debian, with these packages besides those that every system has.
set -euo pipefail
suite=$1 folder=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

. "$(dirname "$0")/../kernel-lab/guest/mirrors.sh"

rm -rf "$folder"
mmdebstrap --quiet --variant=minbase --include="$(IFS=,; echo "$*")" --aptopt="$work/apt.conf" \
    --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
    --customize-hook='rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/*' \
    "$suite" "$work/root.tar" "${mirrors[@]}"
mkdir -p "$folder"
tar --extract --file "$work/root.tar" --directory "$folder" --exclude './dev/*'
