#!/bin/sh
# wheel.sh PYTHON: installs the wheel of /opt/feedrail from there alone, and runs the quickstart with the target of the tarball.
set -eu
begin=$(date +%s.%N)
seconds() { echo "$(date +%s.%N) $1" | awk '{printf "%.1f", $1 - $2}'; }
for absent in cargo rustc gcc cc; do
    if command -v "$absent" >/dev/null; then echo "$absent is installed here" >&2 && exit 1; fi
done
"$1" -m venv /tmp/environment
/tmp/environment/bin/pip install --quiet --disable-pip-version-check --no-index --find-links /opt/feedrail/wheels feedrail
installed=$(seconds "$begin")
tar --extract --gzip --file /opt/feedrail/feedrail.tar.gz --directory /tmp --strip-components 1
begin=$(date +%s.%N)
/tmp/environment/bin/python /opt/feedrail/quickstart.py /tmp/bin/feedrail-target >/tmp/said
grep --quiet 'all as in the file' /tmp/said
echo "tried: $("$1" -V), pip install in $installed s, quickstart in $(seconds "$begin") s"
