# In-capsule data of every size that a host uses: none at all, one page, four pages.
# set: full
truncate -s 64M /disk/a.img
for bytes in 0 512 4096 16384; do
    cat >/tmp/target.toml <<END
[limits]
in_capsule_data_bytes = $bytes
[[port]]
address = "$ADDRESS:4420"
[[subsystem]]
nqn = "nqn.2026-01.org.example:capsules"
allow_any_host = true
[[subsystem.namespace]]
path = "/disk/a.img"
read_only = false
END
    target_run --config /tmp/target.toml
    kernel_connect -i 2
    nvme id-ctrl "$CONTROLLER" -o json | jq -e ".ioccsz == (64 + $bytes) / 16 and .icdoff == 0" || fail "ioccsz for $bytes bytes"
    for bs in 512 4k 16k 20k; do
        verified_fio "$DEVICE" randwrite $bs 16 512k
    done
    nvme disconnect -n "$NQN" || fail "disconnect"
    target_stop
done
