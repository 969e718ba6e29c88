# What scenarios share. The kernel's peer lives on rxe0 in the initial namespace at $KERNEL; a userspace peer on the soft
# provider lives in namespace `soft` at $SOFT, at the other end of a veth pair; one on verbs shares rxe0 with the kernel's.
# A scenario finds the provider of our side in $provider, and the folder for its logs in $log.
KERNEL=10.1.0.1
SOFT=10.1.0.2
# Where our target listens.
if [ "$provider" = soft ]; then ADDRESS=$SOFT; else ADDRESS=$KERNEL; fi

set -o pipefail
. ./kernel-target.sh

network_up() {
    ip link show veth0 >/dev/null 2>&1 && return
    ip link add veth0 type veth peer name veth1
    ip netns add soft
    ip link set veth1 netns soft
    # A path MTU of 4096 needs room for headers.
    ip link set veth0 mtu 4500 up
    ip addr add $KERNEL/24 dev veth0
    in_soft ip link set lo up
    in_soft ip link set veth1 mtu 4500 up
    in_soft ip addr add $SOFT/24 dev veth1
    device_up
}

in_soft() { ip netns exec soft "$@"; }

# ours COMMAND...: runs a userspace peer where its provider can be had.
ours() { if [ "$provider" = soft ]; then in_soft "$@"; else "$@"; fi; }

fail() {
    echo "FAILED: $*"
    exit 1
}

# expect TEXT COMMAND...: the command succeeds and prints TEXT.
expect() {
    local text=$1 output
    shift
    output=$("$@" 2>&1) || fail "$* said: $output"
    grep -q -- "$text" <<<"$output" || fail "$* did not print '$text' but: $output"
}

# refuse TEXT COMMAND...: the command fails and prints TEXT.
refuse() {
    local text=$1 output
    shift
    output=$("$@" 2>&1) && fail "$* succeeded: $output"
    grep -q -- "$text" <<<"$output" || fail "$* did not print '$text' but: $output"
}

eventually() {
    local end=$((SECONDS + 60))
    while [ $SECONDS -lt $end ]; do
        "$@" >/dev/null 2>&1 && return
        sleep 0.2
    done
    fail "not within a minute: $*"
}

capture() { in_soft tcpdump -i veth1 -s 160 -w "$log/packets.pcap" udp port 4791 >/dev/null 2>&1 & }

# target_start ARGUMENTS...: our daemon, once it listens; its NQN is in $NQN.
target_start() {
    target_run --listen "$ADDRESS:4420" "$@"
}

# target_run ARGUMENTS...: the same with nothing said of where to listen.
target_run() {
    local namespace=()
    # Not through a function: the daemon itself must be the child that is signalled and waited for.
    [ "$provider" = soft ] && namespace=(ip netns exec soft)
    "${namespace[@]}" /job/bin/feedrail-target --provider "$provider" "$@" >"$log/target.out" 2>>"$log/target.err" &
    TARGET=$!
    for _ in $(seq 300); do
        grep -q listening "$log/target.out" && break
        kill -0 $TARGET 2>/dev/null || fail "the target did not start: $(tail -3 "$log/target.err")"
        sleep 0.1
    done
    NQN=$(jq -r 'select(.event == "listening") | .nqn' "$log/target.out" | head -1)
    [ "$(jq -r 'select(.event == "listening") | .provider' "$log/target.out" | head -1)" = "$provider" ] ||
        fail "the target did not take $provider: $(cat "$log/target.out")"
}

# dhchap_key HMAC NAME: makes /tmp/NAME.key, a new key for authentication.
dhchap_key() {
    (umask 077 && /job/bin/feedrail gen-dhchap-key --hmac "$1" >"/tmp/$2.key") || fail "gen-dhchap-key"
}

# second_address: gives a second target of ours $SECOND and $SECOND_PORT to listen at.
second_address() {
    if [ "$provider" = soft ]; then
        # Each address has one owner of UDP port 4791.
        in_soft ip addr add 10.1.0.3/24 dev veth1 2>/dev/null
        SECOND=10.1.0.3 SECOND_PORT=4420
    else
        SECOND=$ADDRESS SECOND_PORT=4421
    fi
}

second_address_down() {
    [ "$provider" != soft ] || in_soft ip addr del 10.1.0.3/24 dev veth1
}

# dataset_config FOLDER FILE LISTEN CNTLID-MIN CNTLID-MAX: the configuration of a target of one data set, in the folder.
dataset_config() {
    cat >"$1/target.toml" <<TOML
[limits]
cntlid_min = $4
cntlid_max = $5
[[port]]
address = "$3"
[[subsystem]]
nqn = "nqn.2026-01.org.example:dataset"
dataset_id = "2f1d6a52-6a0c-4d0e-8e53-6d7a2c9b1f40"
allow_any_host = true
[[subsystem.namespace]]
path = "$2"
read_only = true
TOML
}

target_stop() {
    kill -TERM "$TARGET"
    wait "$TARGET" || fail "the target ended with $?: $(tail -5 "$log/target.err")"
}

# kernel_connect [nvme-cli options]: connects the kernel host to our target.
kernel_connect() { kernel_connect_to "$ADDRESS" 4420 "$NQN" "$@"; }

# kernel_connect_to ADDRESS PORT NQN [nvme-cli options]: over $transport, RDMA without it; sets $DEVICE to the new namespace's block device, $CONTROLLER to
# its controller.
kernel_connect_to() {
    local address=$1 port=$2 nqn=$3
    shift 3
    ls /dev/nvme*n* 2>/dev/null | sort >/tmp/devices.before
    nvme connect -t "${transport:-rdma}" -a "$address" -s "$port" -n "$nqn" "$@" || fail "nvme connect"
    eventually new_block_device
    DEVICE=$(new_block_device)
    CONTROLLER=${DEVICE%n*}
}

new_block_device() {
    local device
    device=$(ls /dev/nvme*n* 2>/dev/null | sort | comm -13 /tmp/devices.before - | head -1)
    [ -b "$device" ] && echo "$device"
}

# target_kill: as if the machine that it runs on had lost its power.
target_kill() {
    kill -KILL "$TARGET"
    wait "$TARGET" 2>/dev/null
}

# stats FILTER: what a jq filter makes of the target's counters of this moment.
stats() {
    local before now
    before=$(grep -c '"event":"stats"' "$log/target.out")
    kill -USR1 "$TARGET" || fail "the target is gone: $(tail -3 "$log/target.err")"
    for _ in $(seq 100); do
        now=$(grep -c '"event":"stats"' "$log/target.out")
        [ "$now" -gt "$before" ] && break
        sleep 0.1
    done
    jq -s -r "map(select(.event == \"stats\")) | last | $1" "$log/target.out"
}

# The target holds nothing for any host.
target_is_free() {
    [ "$(stats '[.associations, .connections, .pool.used_bytes] == [0, 0, 0]')" = true ]
}

# block_device NSID: the device of a namespace. Since Linux 6.12 namespaces are scanned side by side, so the number in a
# device's name need not be its NSID.
block_device() {
    local path device
    for path in /sys/block/nvme*n*; do
        # The single paths of a multipath namespace are hidden and have no device node.
        device=/dev/$(basename "$path")
        [ -b "$device" ] && [ "$(cat "$path/nsid")" = "$1" ] && echo "$device" && return
    done
    # Not fail: that would end a scenario that waits for the device.
    echo "no block device has NSID $1" >&2
    return 1
}

clean_up() {
    packets_pass
    umount /mnt 2>/dev/null
    timeout 30 nvme disconnect-all
    pkill -x feedrail-target
    pkill -x feedrail
    pkill -x tcpdump
    kernel_target_down
    sleep 0.5
    pkill -KILL -x feedrail-target
    if [ -e /tmp/link-was-down ]; then
        rdma link del rxe0
        device_up
    fi
    rm -rf /disk/*.img /disk/*.bin /tmp/*
    true
}

# verified_fio DEVICE RW BLOCK-SIZE DEPTH SIZE [options]: writes, and verifies what it reads back.
verified_fio() {
    local device=$1 rw=$2 bs=$3 depth=$4 size=$5
    shift 5
    echo "fio $rw $bs depth $depth $size $*"
    fio --name=verified --filename="$device" --rw="$rw" --bs="$bs" --iodepth="$depth" --size="$size" --ioengine=io_uring \
        --direct=1 --allow_file_create=0 --verify=crc32c --verify_fatal=1 --output-format=terse --terse-version=3 "$@" >"$log/fio.out" 2>&1 ||
        fail "fio: $(tail -3 "$log/fio.out")"
}

# fio_begin DEVICE ...: the same in the background, over and over, until fio_end; returns when the target has work.
fio_begin() {
    rm -f /tmp/fio.enough
    (until [ -e /tmp/fio.enough ]; do verified_fio "$@"; done) &
    FIO=$!
    io_is_moving
}

# fio_end: lets it finish; all of it has succeeded.
fio_end() {
    touch /tmp/fio.enough
    wait "$FIO" || fail "fio did not finish clean"
}

# The target completes reads or writes.
io_is_moving() {
    local before
    before=$(stats '.io.reads + .io.writes')
    eventually eval '[ "$(stats ".io.reads + .io.writes")" -gt "$before" ]'
}

# packets_lost, packets_pass: between the initial namespace and the other. On verbs nothing takes that way.
packets_lost() {
    tc qdisc add dev veth0 root netem loss 100% || fail "netem"
    in_soft tc qdisc add dev veth1 root netem loss 100% || fail "netem"
}

packets_pass() {
    tc qdisc del dev veth0 root 2>/dev/null
    in_soft tc qdisc del dev veth1 root 2>/dev/null
}

# Nothing reaches anybody. Where there is no route rxe's connection manager breaks for good: clean_up makes a new device.
link_down() {
    touch /tmp/link-was-down
    ip link set veth0 down
}

device_up() {
    ip link set veth0 up
    rdma link add rxe0 type rxe netdev veth0
    for _ in $(seq 50); do
        rdma link show rxe0/1 | grep -q ACTIVE && return
        sleep 0.2
    done
    fail "rxe0 did not become active"
}
