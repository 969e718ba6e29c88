# Two paths to one namespace: two ports of one target, whose states change while a kernel host works; then two targets with the
# same dataset, one of which is killed.
# set: ci smoke
# kernel may say: nvme nvme
[ "$(cat /sys/module/nvme_core/parameters/multipath)" = Y ] || fail "the kernel host has no multipath"
manage() { feedrail target "$@" --socket /tmp/target.sock || fail "feedrail target $*"; }

# path ADDRESS PORT: the folder of the controller that is connected there.
path() {
    local controller
    for controller in /sys/class/nvme/nvme*; do
        grep -q "traddr=$1,trsvcid=$2" "$controller/address" && echo "$controller"
    done
}
live() { [ "$(cat "$(path "$1" "$2")/state")" = live ]; }
has_state() { [ "$(cat "$(path "$ADDRESS" "$1")"/nvme*c*n1/ana_state)" = "$2" ]; }
gone() { [ -z "$(path "$1" "$2")" ]; }
paths() { [ "$(nvme list-subsys -o json | jq '[.. | objects | select(.State? == "live")] | length')" = "$1" ]; }
second_port() { nvme connect -t rdma -a "$ADDRESS" -s 4421 -n nqn.2026-01.org.example:paths -i 2 -c 1 || fail "nvme connect"; }

truncate -s 64M /disk/a.img
cat >/tmp/paths.toml <<TOML
state_dir = "/tmp/state"
management = "/tmp/target.sock"
[[port]]
address = "$ADDRESS:4420"
[[port]]
address = "$ADDRESS:4421"
[[subsystem]]
nqn = "nqn.2026-01.org.example:paths"
allow_any_host = true
[[subsystem.namespace]]
path = "/disk/a.img"
read_only = false
TOML
target_run --config /tmp/paths.toml
kernel_connect -i 2 -c 1
second_port
eventually paths 2
eventually has_state 4421 optimized
fio_begin "$DEVICE" randrw 16k 16 8M
for state in inaccessible persistent-loss change non-optimized; do
    manage ana "$NQN" "$ADDRESS:4420" $state
    eventually has_state 4420 $state
    io_is_moving
    manage ana "$NQN" "$ADDRESS:4420" optimized
    eventually has_state 4420 optimized
    manage ana "$NQN" "$ADDRESS:4421" $state
    eventually has_state 4421 $state
    io_is_moving
    manage ana "$NQN" "$ADDRESS:4421" optimized
    eventually has_state 4421 optimized
done
manage remove-listener "$NQN" "$ADDRESS:4421"
io_is_moving
eventually gone "$ADDRESS" 4421
manage add-listener "$NQN" "$ADDRESS:4421"
second_port
eventually has_state 4421 optimized
manage remove-listener "$NQN" "$ADDRESS:4420"
eventually gone "$ADDRESS" 4420
io_is_moving
fio_end
nvme disconnect -n "$NQN" || fail "disconnect"
eventually target_is_free
target_stop

second_address
mkdir -p /tmp/one /tmp/two
# Blocks that fio knows again.
fio --name=fill --filename=/disk/b.img --rw=write --bs=16k --size=8M --ioengine=psync --verify=crc32c --do_verify=0 \
    >"$log/fill.out" 2>&1 || fail "fio: $(tail -3 "$log/fill.out")"
dataset_config /tmp/one /disk/b.img "$ADDRESS:4420" 1 100
dataset_config /tmp/two /disk/b.img "$SECOND:$SECOND_PORT" 101 200
log=/tmp/two target_run --config /tmp/two/target.toml --machine-id 22222222222222222222222222222222
two=$TARGET
target_run --config /tmp/one/target.toml --machine-id 11111111111111111111111111111111
kernel_connect -i 2 -k 2
nvme connect -t rdma -a "$SECOND" -s "$SECOND_PORT" -n "$NQN" -i 2 -k 2 || fail "nvme connect to the second target"
eventually paths 2
fio_begin "$DEVICE" randread 16k 16 8M
target_kill
TARGET=$two log=/tmp/two io_is_moving
fio_end
live "$SECOND" "$SECOND_PORT" || fail "the other path is gone, too"
nvme disconnect -n "$NQN" || fail "disconnect"
TARGET=$two log=/tmp/two target_stop
second_address_down
