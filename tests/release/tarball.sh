#!/bin/sh
# tarball.sh: unpacks the tarball of /opt/feedrail as its README says, and uses both programs.
set -eu
. /opt/feedrail/serve.sh
tar --extract --gzip --file /opt/feedrail/feedrail.tar.gz --directory /usr/local --strip-components 1
for file in bin/feedrail bin/feedrail-target sbin/mount.feedrail lib/systemd/system/feedrail-target.service \
    lib/sysusers.d/feedrail-target.conf share/man/man8/feedrail-target.8 share/man/man5/feedrail.toml.5 share/man/man1/feedrail.1 \
    share/bash-completion/completions/feedrail share/zsh/site-functions/_feedrail share/fish/vendor_completions.d/feedrail.fish \
    share/doc/feedrail/examples/feedrail.toml share/doc/feedrail/LICENSE-MIT share/doc/feedrail/THIRD-PARTY.txt; do
    test -s "/usr/local/$file" || { echo "no $file in the tarball" >&2 && exit 1; }
done
PATH=/usr/local/bin:$PATH
head -c 1048576 /dev/urandom >/tmp/file
cat >/tmp/target.toml <<'TOML'
[[port]]
address = "127.0.0.1:4420"
[[subsystem]]
nqn = "nqn.2026-01.io.feedrail:trial"
allow_any_host = true
[[subsystem.namespace]]
path = "/tmp/file"
TOML
feedrail-target --config /tmp/target.toml --check >/tmp/said
for provider in soft shm; do
    feedrail demo --provider $provider >>/tmp/said
done
# As docs/checkpoints.md has it.
truncate --size 64M /tmp/volume.img
url=nvmf://127.9.9.8/nqn.2026-01.io.feedrail:ckpt
serve 127.9.9.8 "${url##*/}" --writable /tmp/volume.img
feedrail checkpoint format $url >>/tmp/said
feedrail checkpoint put $url step-1 /tmp/file --step 1 >>/tmp/said
feedrail checkpoint verify $url >>/tmp/said
feedrail checkpoint get $url step-1 /tmp/restored >>/tmp/said
cmp /tmp/file /tmp/restored/file
kill $target
echo "tried: $(feedrail --version), demo over soft and shm, checkpoint, --check; $(ldd --version | head -n 1 | sed 's/.* /glibc /')"
