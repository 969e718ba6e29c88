# What is said of the RDMA device, and which provider each address gets, with the link up and down.
# set: ci
# providers: verbs
# kernel may say: infiniband rxe0: set
# kernel may say: rxe_reg_user_mr: returned err = -12
feedrail() { timeout 60 /job/bin/feedrail "$@"; }
look() { feedrail devices -o json >"$log/devices.json" || fail "feedrail devices"; }
# choice ADDRESS JQ-TEST: what `auto` took for an address of this machine at the last look.
choice() {
    jq -e --arg address "$1" '.addresses[] | select(.address == $address) | '"$2" "$log/devices.json" ||
        fail "not $2 for $1: $(cat "$log/devices.json")"
}
# device JQ-TEST: what rxe0 was at the last look.
device() {
    jq -e '.devices[] | select(.name == "rxe0") | '"$1" "$log/devices.json" ||
        fail "rxe0: not $1: $(cat "$log/devices.json")"
}

look
device '.software and .addresses == ["'$KERNEL'"]'
device '.capabilities | .send_with_invalidate and (.memory_windows | not) and (.dma_buf | not)'
device '.ports[0] | .state == "ACTIVE" and .link_layer == "Ethernet" and .active_mtu == 4096'
device '.ports[0].gids | any(.gid == "::ffff:'$KERNEL'" and .type == "RoCE v2" and .interface == "veth0")'
choice $KERNEL '.provider == "verbs" and .interface == "veth0"'
choice 127.0.0.1 '.provider == "soft"'
in_soft timeout 60 /job/bin/feedrail devices -o json >/tmp/in-soft.json || fail "feedrail devices in the namespace"
jq -e '.addresses[] | select(.address == "'$SOFT'") | .provider == "soft" and (.reason | contains("rxe0"))' /tmp/in-soft.json ||
    fail "the address of the namespace: $(cat /tmp/in-soft.json)"
ip link set veth0 mtu 1500
eventually sh -c '/job/bin/feedrail devices | grep -q "Active MTU *1024"'
[ "$(ibv_devinfo -d rxe0 | awk '/active_mtu/ { print $2 }')" = 1024 ] || fail "the device says otherwise of its MTU"
ip link set veth0 mtu 4500

# A daemon serves what it can, on the provider that serves each address.
truncate -s 1M /disk/a.img
target_start --listen 192.0.2.99:4420 /disk/a.img
jq -e 'select(.event == "not_listening") | .address == "192.0.2.99:4420" and (.reason | contains("not an address of this machine"))' \
    "$log/target.out" || fail "the address that is not ours: $(cat "$log/target.out")"
target_stop
refuse "192.0.2.99 is not an address of this machine" \
    /job/bin/feedrail-target --provider verbs --listen 192.0.2.99:4420 /disk/a.img

# What keeps a process from the device is named, with what to do.
mkdir /tmp/broken
echo "no library" >/tmp/broken/libibverbs.so.1
expect "No usable RDMA device: libibverbs.so.1 cannot be loaded" \
    env LD_LIBRARY_PATH=/tmp/broken timeout 60 /job/bin/feedrail devices
refuse "rdma_rxe (rxe0).*soft was chosen because: libibverbs.so.1 cannot be loaded" \
    env LD_LIBRARY_PATH=/tmp/broken /job/bin/feedrail-target --listen $KERNEL /disk/a.img
as_nobody() { HOME=/tmp setpriv --reuid 65534 --clear-groups prlimit --memlock=65536:65536 "$@"; }
refuse "RLIMIT_MEMLOCK is 64 KiB; raise it" \
    as_nobody /job/bin/feedrail-target --provider verbs --listen $KERNEL /disk/a.img
chmod 600 /dev/infiniband/rdma_cm
refuse "/dev/infiniband/rdma_cm cannot be opened; this user needs read and write access" \
    as_nobody /job/bin/feedrail-target --provider verbs --listen $KERNEL /disk/a.img
chmod 666 /dev/infiniband/rdma_cm

# With the link down auto stays with the device, which has the RoCE port, and everybody says what is the matter.
ip link set veth0 down
eventually grep -q DOWN /sys/class/infiniband/rxe0/ports/1/state
expect "State *DOWN (Disabled)" feedrail devices
look
device '.ports[0] | .state == "DOWN" and .physical_state == "Disabled"'
choice $KERNEL '.provider == "verbs" and (.reason | contains("port 1 of RDMA device rxe0 is DOWN")) and (.reason | contains("ip link set veth0 up"))'
refuse "port 1 of RDMA device rxe0 is DOWN" /job/bin/feedrail discover -a $KERNEL -w $KERNEL
# The daemon listens nevertheless, and works once the link is up.
target_start /disk/a.img
grep -q "is DOWN" "$log/target.err" || fail "the daemon did not warn: $(cat "$log/target.err")"
ip link set veth0 up
eventually grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state
expect "$NQN" feedrail list -a $KERNEL -w $KERNEL
target_stop
