# Two hosts at the same time, of which one leaves during I/O; a third, which is not allowed, is told so.
# set: ci
# kernel may say: is not allowed, hostnqn
# kernel may say: failed to connect queue
one=nqn.2026-01.org.example:one two=nqn.2026-01.org.example:two
truncate -s 64M /disk/a.img
cat >/tmp/target.toml <<END
discovery_nqn = "nqn.2026-01.org.example:discovery"
[[port]]
address = "$ADDRESS:4420"
[[subsystem]]
nqn = "nqn.2026-01.org.example:shared"
allowed_hosts = ["$one", "$two"]
[[subsystem.namespace]]
path = "/disk/a.img"
read_only = false
END
target_run --config /tmp/target.toml
kernel_connect -i 2 --hostnqn=$one --hostid="$(uuidgen)"
nvme connect -t rdma -a "$ADDRESS" -s 4420 -n "$NQN" -i 2 --hostnqn=$two --hostid="$(uuidgen)" || fail "the second host"
eventually eval '[ "$(stats .associations)" = 2 ]'
# To this kernel they are two paths to one namespace: it uses both, until one is gone.
echo round-robin >"$(echo /sys/class/nvme-subsystem/nvme-subsys*/iopolicy)" || fail "iopolicy"
fio_begin "$DEVICE" randrw 16k 16 8M
second=$(basename "$(dirname "$(grep -l $two /sys/class/nvme/nvme*/hostnqn)")")
nvme disconnect -d "$second" || fail "disconnect of the second host"
io_is_moving
fio_end
[ "$(stats .associations)" = 1 ] || fail "there are $(stats .associations) associations"
# nvme-cli itself says only that it failed; the reason is in the kernel's log.
refuse "failed to write to nvme-fabrics device" \
    nvme connect -t rdma -a "$ADDRESS" -s 4420 -n "$NQN" --hostnqn=nqn.2026-01.org.example:three --hostid="$(uuidgen)"
dmesg | grep "not allowed, hostnqn: nqn.2026-01.org.example:three" || fail "the kernel was not told that the host is not allowed"
# Nor does discovery show that host what it may not use.
nvme discover -t rdma -a "$ADDRESS" -s 4420 --hostnqn=nqn.2026-01.org.example:three -o json | grep shared && fail "discovery shows it"
expect shared nvme discover -t rdma -a "$ADDRESS" -s 4420 --hostnqn="$one" -o json
# The discovery service says its own name, whichever nvme-cli used.
expect "nqn.2026-01.org.example:discovery" nvme discover -t rdma -a "$ADDRESS" -s 4420 --hostnqn="$one" -o json
nvme disconnect -n "$NQN" || fail "disconnect"
eventually target_is_free
target_stop
