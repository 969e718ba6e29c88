#!/bin/bash
# Installs, starts, upgrades, removes and purges the packages under systemd. Each step that passed is a line.
# The trap holds in functions, too.
set -Eeuo pipefail
cd /opt/packages

passed() {
    echo "life cycle: $*"
}

failed() {
    systemctl status --no-pager feedrail-target || true
    journalctl --no-pager -u feedrail-target || true
    echo "life cycle: failed at line $1"
}
trap 'failed $LINENO' ERR

# Commands that are to fail.
refuses() {
    if "$@" >/dev/null 2>&1; then
        echo "life cycle: succeeded, though it was to fail: $*"
        return 1
    fi
}

pid() {
    systemctl show --property=MainPID --value feedrail-target
}

dpkg --install first/*.deb
refuses systemctl is-active --quiet feedrail-target
systemctl is-enabled --quiet feedrail-target
getent passwd feedrail >/dev/null
feedrail --version
man -w feedrail-perf >/dev/null
case $(man -w feedrail-target) in */man8/*) ;; *) false ;; esac
man -w feedrail-target-commands >/dev/null
man -w 5 feedrail.toml >/dev/null
for package in feedrail feedrail-target; do
    zcat "/usr/share/doc/$package/changelog.Debian.gz" | grep --quiet "^$package "
    refuses grep --quiet --text '\.symtab' "/usr/bin/$package"
done
test -s /usr/share/bash-completion/completions/feedrail
passed "installed $(dpkg-query --show --showformat='${Package} ${Version}, ' feedrail feedrail-target)no configuration, not started"

mkdir -p /etc/feedrail /srv/data
head --bytes 1048576 /dev/urandom >/srv/data/file
cat >/etc/feedrail/target.toml <<'TOML'
provider = "soft"
[[port]]
address = "127.0.0.1:4420"
[[subsystem]]
nqn = "nqn.2026-01.io.feedrail:life-cycle"
allow_any_host = true
[[subsystem.namespace]]
path = "/srv/data/file"
[[subsystem.namespace]]
kind = "memory"
size_bytes = "1MiB"
read_only = false
TOML
systemctl start feedrail-target
systemctl is-active --quiet feedrail-target
passed "started as $(stat --format=%U "/proc/$(pid)")"

reads() {
    feedrail read -a 127.0.0.1 --provider soft -n nqn.2026-01.io.feedrail:life-cycle --namespace-id 1 --file /tmp/copy
    cmp /tmp/copy /srv/data/file
    rm /tmp/copy
}
reads
passed "a host read what was exported"
feedrail target show --socket /run/feedrail/target.sock
passed "the management socket answers"
refuses su nobody -s /bin/sh -c 'feedrail target show --socket /run/feedrail/target.sock'
passed "the management socket refuses other users"
head --bytes 2097152 /dev/urandom >/srv/data/other
cat >>/etc/feedrail/target.toml <<'TOML'
[[subsystem.namespace]]
path = "/srv/data/other"
TOML
running=$(pid)
systemctl reload feedrail-target
feedrail target show --socket /run/feedrail/target.sock | grep other
test "$(pid)" = "$running"
feedrail target reload --socket /run/feedrail/target.sock | grep --line-regexp "nothing to change"
reads
passed "reloaded: one more namespace, by the same process"
cp /etc/feedrail/target.toml /tmp/target.toml
echo 'no_such_key = 1' >>/etc/feedrail/target.toml
refuses systemctl reload feedrail-target
systemctl is-active --quiet feedrail-target
test "$(pid)" = "$running"
reads
mv /tmp/target.toml /etc/feedrail/target.toml
systemctl reload feedrail-target
passed "a reload of a wrong configuration fails, and the same process serves on"
# After a boot an address and a file may come late.
systemctl stop feedrail-target
cp /etc/feedrail/target.toml /tmp/target.toml
sed --in-place 's/127.0.0.1:4420/192.0.2.77:4420/; s|/srv/data/file|/srv/data/late|' /etc/feedrail/target.toml
refuses systemctl start feedrail-target
sleep 12
test "$(systemctl show --property=ActiveState --value feedrail-target)" = activating
ip address add 192.0.2.77/32 dev lo
sleep 6
refuses systemctl is-active --quiet feedrail-target
ln /srv/data/file /srv/data/late
for _ in $(seq 100); do
    systemctl is-active --quiet feedrail-target && break
    sleep 1
done
systemctl is-active --quiet feedrail-target
restarts=$(systemctl show --property=NRestarts --value feedrail-target)
mv /tmp/target.toml /etc/feedrail/target.toml
systemctl restart feedrail-target
reads
passed "started by itself once its only address and its file were there, at start $((restarts + 1))"

passed "systemd-analyze: $(systemd-analyze security --no-pager feedrail-target | tail --lines 1)"

before=$(pid)
cp /etc/feedrail/target.toml /tmp/target.toml
echo 'unknown = 1' >/etc/feedrail/target.toml
dpkg --install next/*.deb 2>&1 | grep "the old one keeps running"
test "$(pid)" = "$before"
reads
cp /tmp/target.toml /etc/feedrail/target.toml
passed "upgraded with a configuration that the new one refuses: the old one keeps running"
dpkg --install next/*.deb
systemctl is-active --quiet feedrail-target
test "$(pid)" != "$before"
reads
passed "upgraded to $(dpkg-query --show --showformat='${Version}' feedrail-target), which runs and is read"

dpkg --remove feedrail-target
refuses systemctl is-active --quiet feedrail-target
test -e /etc/feedrail/target.toml
test -d /var/lib/feedrail
passed "removed: the configuration and the state are still there"
dpkg --install next/feedrail-target*.deb
systemctl is-active --quiet feedrail-target
reads
passed "installed again, with its configuration: it runs and is read"

dpkg --purge feedrail-target feedrail
refuses systemctl is-active --quiet feedrail-target
for path in /etc/feedrail /var/lib/feedrail /run/feedrail /usr/bin/feedrail /usr/bin/feedrail-target; do
    refuses test -e "$path"
done
refuses systemctl cat feedrail-target
test -s /srv/data/file
passed "purged: only the user and the exported files are left"
passed "passed"
