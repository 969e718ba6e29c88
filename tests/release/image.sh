#!/usr/bin/env bash
# image.sh ARCHIVE: unpacks the image with umoci and runs its entry point as its user.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
here=$(dirname "$0")

skopeo copy --quiet --override-arch "$(dpkg --print-architecture)" "oci-archive:$1" "oci:$work/image:trial"
umoci unpack --image "$work/image:trial" "$work/bundle" >"$work/said" 2>&1 || { cat "$work/said" >&2 && exit 1; }
read -r user entry < <(python3 -c '
import json, sys
process = json.load(open(sys.argv[1]))["process"]
print("%d:%d" % (process["user"]["uid"], process["user"]["gid"]), *process["args"])' "$work/bundle/config.json")
mkdir "$work/none"
version=$(FEEDRAIL_USER=$user bash "$here/enter.sh" "$work/bundle/rootfs" "$work/none" $entry --version)
FEEDRAIL_USER=$user bash "$here/enter.sh" "$work/bundle/rootfs" "$work/none" feedrail demo --provider soft >/dev/null
echo "tried: $entry --version ($version) and feedrail demo as user $user"
