# The kernel's target goes away during I/O and comes back: our initiator reconnects and every byte is right; where another
# namespace came back it says so, and never reads from it.
# set: full
# kernel may say: nvmet
kernel_target_up 64M
head -c 64M /dev/urandom >/tmp/content
dd if=/tmp/content of="$LOOP" bs=1M oflag=direct status=none

# outages COMMAND COUNT: while the job in the background runs, takes the target away with `COMMAND away` and brings it back.
outages() {
    local job=$! count
    eventually is_connected
    sleep 2
    for count in $(seq "$2"); do
        "$1" away
        sleep 1
        kill -0 $job || fail "$1: the command was over before outage $count: $(cat /tmp/said)"
        "$1" back
        sleep 2
    done
    wait $job || fail "$1: the command failed: $(cat /tmp/said)"
    dmesg -C
}
subsystem() { if [ "$1" = away ]; then kernel_unlink 4420 $KERNEL_NQN; else kernel_link 4420 $KERNEL_NQN; fi; }
port() {
    if [ "$1" = away ]; then
        kernel_unlink 4420 $KERNEL_NQN
        rmdir $NVMET/ports/4420
    else
        kernel_port 4420
        kernel_link 4420 $KERNEL_NQN
    fi
}

dmesg -C
for outage in subsystem port; do
    initiator read --timeout 60000 2>/tmp/said | slowly /tmp/read &
    outages $outage 3
    cmp /tmp/content /tmp/read || fail "$outage: what was read differs: $(cat /tmp/said)"
    initiator perf --timeout 60000 --rw randread --bs 16k --iodepth 16 --runtime 15 -o json >/tmp/perf.json 2>/tmp/said &
    outages $outage 3
    jq -e '.results.reconnects >= 3 and .results.read.total_ios > 0' /tmp/perf.json || fail "perf: $(cat /tmp/perf.json)"
done

# Written data survives as well.
head -c 64M /dev/urandom >/tmp/content
for part in $(seq 0 31); do
    dd if=/tmp/content bs=2M skip="$part" count=1 status=none
    sleep 0.3
done | initiator write --timeout 60000 2>/tmp/said &
outages subsystem 3
blockdev --flushbufs "$LOOP"
cmp "$LOOP" /tmp/content || fail "what was written differs"

# replaced DEVICE TEXT: the namespace behind a connection becomes another one.
replaced() {
    dmesg -C
    initiator perf --timeout 60000 --rw randread --bs 16k --iodepth 16 --runtime 60 >/tmp/said 2>&1 &
    eventually is_connected
    sleep 2
    subsystem away
    kernel_namespace_replace $KERNEL_NQN 1 "$1"
    subsystem back
    wait $! && fail "it went on with another namespace"
    grep -q "the namespace changed: $2" /tmp/said || fail "of another namespace it said: $(cat /tmp/said)"
}
replaced "$(loop_device twin 64M)" "its UUID"
# The same UUID does not make it the same.
uuid=$(cat $NVMET/subsystems/$KERNEL_NQN/namespaces/1/device_uuid)
kernel_namespace() {
    mkdir "$NVMET/subsystems/$1/namespaces/$2"
    echo "$uuid" >"$NVMET/subsystems/$1/namespaces/$2/device_uuid"
    echo "$3" >"$NVMET/subsystems/$1/namespaces/$2/device_path"
    echo 1 >"$NVMET/subsystems/$1/namespaces/$2/enable" || fail "cannot enable namespace $2 on $3"
}
replaced "$(loop_device smaller 32M)" "its size"
kernel_target_down
