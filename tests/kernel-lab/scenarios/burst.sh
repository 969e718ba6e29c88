# Writes of 1 MiB, 32 at a time, from the first command of a connection on: what the target asks for fits its socket.
# set: full
overflows() { awk '/^Udp: [0-9]/ { print $6 }' /proc/net/snmp; }

truncate -s 256M /disk/a.img
target_start --writable /disk/a.img
before=$(overflows)
for round in 1 2 3; do
    kernel_connect -i 1
    verified_fio "$DEVICE" write 1M 32 128M
    nvme disconnect -n "$NQN" || fail "disconnect $round"
    eventually target_is_free
    [ "$(overflows)" = "$before" ] || fail "round $round: RcvbufErrors went from $before to $(overflows)"
done
target_stop
