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
quickstart=$(seconds "$begin")
# Python ends a daemon thread that waits in Rust code.
head -c 10000000 /dev/urandom >/tmp/file
nqn=nqn.2026-01.io.feedrail:trial
/tmp/bin/feedrail-target --listen 127.9.9.9:4420 --nqn $nqn /tmp/file >/tmp/listening 2>/dev/null &
target=$!
until grep --quiet '"listening"' /tmp/listening; do sleep 0.1; done
for _ in 1 2 3 4 5; do
    /tmp/environment/bin/python - nvmf://127.9.9.9/$nqn <<'PYTHON'
import sys, threading, numpy as np, feedrail
source = feedrail.open(sys.argv[1])
plan = feedrail.make_plan(np.arange(1000) * 9_000, 9_000)
threading.Thread(target=source.read_many, args=(plan, np.zeros(9_000_000, np.uint8)), daemon=True).start()
PYTHON
done
kill $target
echo "tried: $("$1" -V), pip install in $installed s, quickstart in $quickstart s, daemon threads at exit"
