#!/bin/sh
# packages.sh: installs the Debian packages of /opt/feedrail, uses them, and purges them.
set -eu
export DEBIAN_FRONTEND=noninteractive
dpkg --install /opt/feedrail/*.deb >/tmp/said 2>&1 || { cat /tmp/said >&2 && exit 1; }
feedrail demo --provider soft >/tmp/said
getent passwd feedrail >/dev/null
test -s /usr/share/bash-completion/completions/feedrail
version=$(dpkg-query --show --showformat='${Version}' feedrail-target)
dpkg --purge feedrail-target feedrail >/tmp/said 2>&1
# `command -v` of dash remembers what it has found.
if [ -e /usr/bin/feedrail ]; then exit 1; fi
echo "tried: installed $version, demo, purged"
