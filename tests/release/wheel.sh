#!/bin/sh
# wheel.sh PYTHON: installs the wheel of /opt/feedrail from there alone, and runs the quickstart with the target of the tarball.
set -eu
. /opt/feedrail/serve.sh
begin=$(date +%s.%N)
seconds() { echo "$(date +%s.%N) $1" | awk '{printf "%.1f", $1 - $2}'; }
for absent in cargo rustc gcc cc; do
    if command -v "$absent" >/dev/null; then echo "$absent is installed here" >&2 && exit 1; fi
done
"$1" -m venv /tmp/environment
/tmp/environment/bin/pip install --quiet --disable-pip-version-check --no-index --find-links /opt/feedrail/wheels feedrail
installed=$(seconds "$begin")
tar --extract --gzip --file /opt/feedrail/feedrail.tar.gz --directory /tmp --strip-components 1
PATH=/tmp/bin:$PATH
begin=$(date +%s.%N)
/tmp/environment/bin/python /opt/feedrail/quickstart.py /tmp/bin/feedrail-target >/tmp/said
grep --quiet 'all as in the file' /tmp/said
quickstart=$(seconds "$begin")
# Python ends a daemon thread that waits in Rust code.
head -c 10000000 /dev/urandom >/tmp/file
nqn=nqn.2026-01.io.feedrail:trial
serve 127.9.9.9 $nqn /tmp/file
for _ in 1 2 3 4 5; do
    /tmp/environment/bin/python - nvmf://127.9.9.9/$nqn <<'PYTHON'
import sys, threading, numpy as np, feedrail
source = feedrail.open(sys.argv[1])
plan = feedrail.make_plan(np.arange(1000) * 9_000, 9_000)
threading.Thread(target=source.read_many, args=(plan, np.zeros(9_000_000, np.uint8)), daemon=True).start()
PYTHON
done
kill $target
# A checkpoint that Python saves, and the command line of the tarball reads.
truncate --size 64M /tmp/volume.img
url=nvmf://127.9.9.8/nqn.2026-01.io.feedrail:ckpt
serve 127.9.9.8 "${url##*/}" --writable /tmp/volume.img
/tmp/environment/bin/python - $url <<'PYTHON'
import sys, numpy as np, feedrail
url = sys.argv[1]
weights = np.fromfile("/tmp/file", np.uint8)
feedrail.CheckpointStore.format(url)
with feedrail.CheckpointStore(url) as store, store.begin(step=1) as save:
    save.write("file", weights)
    save.commit()
with feedrail.CheckpointStore(url, mode="r") as store:
    again = np.empty_like(weights)
    store.latest().read_into({"file": again})
    assert np.array_equal(again, weights) and store.verify()
PYTHON
feedrail checkpoint get $url step-1 /tmp/restored >/tmp/said
cmp /tmp/file /tmp/restored/file
kill $target
echo "tried: $("$1" -V), pip install in $installed s, quickstart in $quickstart s, daemon threads at exit, a checkpoint"
