# Two targets: one dataset is one namespace with two paths; data of their own are two subsystems that share no name or id.
# set: full
second_address
mkdir -p /tmp/one /tmp/two
head -c 4M /dev/urandom >/tmp/one/shard.img
cp /tmp/one/shard.img /tmp/two/shard.img

# stop PID: as target_stop.
stop() {
    TARGET=$1
    target_stop
}

same_as() { dd if="$2" bs=1M count=4 iflag=direct status=none | cmp - "$1" || fail "$2 differs from $1"; }

dataset_config /tmp/one shard.img "$ADDRESS:4420" 1 100
dataset_config /tmp/two shard.img "$SECOND:$SECOND_PORT" 101 200
target_run --config /tmp/one/target.toml --machine-id 11111111111111111111111111111111
one=$TARGET
log=/tmp/two target_run --config /tmp/two/target.toml --machine-id 22222222222222222222222222222222
two=$TARGET
kernel_connect_to "$ADDRESS" 4420 "$NQN" -i 2
device=$DEVICE
nvme connect -t rdma -a "$SECOND" -s "$SECOND_PORT" -n "$NQN" -i 2 || fail "nvme connect to the second target"
eventually eval '[ "$(grep -lx "$NQN" /sys/class/nvme/nvme*/subsysnqn | wc -l)" = 2 ]'
first=$(dirname "$(grep -lx "$NQN" /sys/class/nvme/nvme*/subsysnqn | head -1)")
last=$(dirname "$(grep -lx "$NQN" /sys/class/nvme/nvme*/subsysnqn | tail -1)")
[ "$(cat "$first/cntlid")" -le 100 ] || fail "the first target's controller has id $(cat "$first/cntlid")"
[ "$(cat "$last/cntlid")" -gt 100 ] || fail "the second target's controller has id $(cat "$last/cntlid")"
[ "$(cat "$first/serial")" = "$(cat "$last/serial")" ] || fail "one subsystem has two serial numbers"
if [ "$(cat /sys/module/nvme_core/parameters/multipath)" = Y ]; then
    # Two paths, one of which is enough.
    eventually eval '[ "$(ls -d /sys/block/nvme*c*n1 | wc -l)" = 2 ]'
    same_as /tmp/one/shard.img "$device"
    nvme disconnect -d "$(basename "$first")" || fail "disconnect of one path"
    same_as /tmp/two/shard.img "$device"
else
    eventually block_device 1
    for device in /dev/nvme*n1; do same_as /tmp/one/shard.img "$device"; done
fi
nvme disconnect -n "$NQN" || fail "disconnect"
stop "$one"
stop "$two"

# The same commands on two machines, for different files of the same name.
head -c 4M /dev/urandom >/tmp/two/shard.img
target_start --machine-id 11111111111111111111111111111111 /tmp/one/shard.img
one=$TARGET first_nqn=$NQN
log=/tmp/two target_run --listen "$SECOND:$SECOND_PORT" --machine-id 22222222222222222222222222222222 /tmp/two/shard.img
two=$TARGET second_nqn=$NQN
[ "$first_nqn" != "$second_nqn" ] || fail "two targets are both named $first_nqn"
kernel_connect_to "$ADDRESS" 4420 "$first_nqn" -i 2
first=$DEVICE first_controller=$CONTROLLER
kernel_connect_to "$SECOND" "$SECOND_PORT" "$second_nqn" -i 2
same_as /tmp/one/shard.img "$first"
same_as /tmp/two/shard.img "$DEVICE"
serial() { nvme id-ctrl "$1" -o json | jq -r .sn; }
uuid() { cat "/sys/block/$(basename "$1")/uuid"; }
[ "$(serial "$first_controller")" != "$(serial "$CONTROLLER")" ] || fail "two targets have one serial number"
[ "$(uuid "$first")" != "$(uuid "$DEVICE")" ] || fail "different data have one UUID"
nvme disconnect -n "$first_nqn" || fail "disconnect"
nvme disconnect -n "$second_nqn" || fail "disconnect from the second target"
stop "$one"
stop "$two"
second_address_down
