# Hosts that come and go leave nothing behind in our target: nvme-cli and our command line, hundreds of times each.
# set: full
# limit: 3000
CYCLES=500
# There is nothing of RDMA to leave behind, and cycles take their time.
[ "$provider" = soft ] && CYCLES=200
# After so many the allocators have what they need.
WARM_UP=50
# Pages that an allocator touches late. A leak of one object for each connection is several times as much.
SLACK_KIB=192

truncate -s 16M /disk/a.img
target_start /disk/a.img

# usage: what our target and its device hold: memory in KiB, descriptors, threads, then objects of RDMA.
usage() {
    awk '/^VmRSS|^Threads/ { printf "%s %s ", $1, $2 }' "/proc/$TARGET/status"
    echo -n "descriptors: $(ls "/proc/$TARGET/fd" | wc -l) "
    rdma resource show rxe0 | sed 's/.*rxe0: //'
}
memory() { awk '/^VmRSS/ { print $2 }' "/proc/$TARGET/status"; }
# All but the memory.
objects() { usage | sed 's/VmRSS: [0-9]* //'; }
is_back() { [ "$(objects)" = "$before" ]; }

nvme_cli() {
    nvme connect -t rdma -a "$ADDRESS" -n "$NQN" -i 1 >/dev/null && nvme disconnect -n "$NQN" >/dev/null
}
our_cli() { feedrail id-ctrl -a "$ADDRESS" -n "$NQN" --provider "$provider" --timeout 30000 >/dev/null; }

for host in nvme_cli our_cli; do
    for _ in $(seq $WARM_UP); do $host || fail "$host while warming up"; done
    sleep 1
    before=$(objects)
    memory_before=$(memory)
    echo "$host, after $WARM_UP: $(usage)"
    for cycle in $(seq $((WARM_UP + 1)) $CYCLES); do
        $host || fail "$host, cycle $cycle"
        [ $((cycle % 100)) = 0 ] && echo "$host, after $cycle: $(usage)"
    done
    eventually is_back
    echo "$host, at the end: $(usage)"
    [ $(($(memory) - memory_before)) -le $SLACK_KIB ] || fail "$host: memory grew from $memory_before to $(memory) KiB"
done
target_stop
