# How two ways to do the same I/O compare in one run: figures of a guest mean something only beside each other.
PAIRS=5
SECONDS_EACH=4
# fio's words for each workload: pattern, block size, depth.
WORKLOADS="randread:4k:1 randread:4k:32 read:128k:8 write:128k:8"

# fio_iops DEVICE PATTERN BLOCK-SIZE DEPTH: I/Os per second of the kernel host.
fio_iops() {
    fio --name=ratio --filename="$1" --rw="$2" --bs="$3" --iodepth="$4" --ioengine=io_uring --direct=1 --time_based \
        --runtime=$SECONDS_EACH --output-format=json >/tmp/fio.json 2>/tmp/fio.err || fail "fio: $(cat /tmp/fio.err)"
    jq '.jobs[0] | .read.iops + .write.iops' /tmp/fio.json
}

# twins_up: our target serves a file to the kernel host, as $OURS; a subsystem of the kernel's target, not served yet, has a twin.
twins_up() {
    dd if=/dev/urandom of=/disk/a.img bs=1M count=128 oflag=direct status=none
    dd if=/dev/urandom of=/disk/b.img bs=1M count=128 oflag=direct status=none
    target_start --writable /disk/a.img
    kernel_connect
    OURS=$DEVICE
    kernel_subsystem $KERNEL_NQN
    kernel_namespace $KERNEL_NQN 1 /disk/b.img
}

# twins_compare: ours with the twin, which the kernel host has as $THEIRS.
twins_compare() { compare on_ours on_theirs; }
on_ours() { fio_iops "$OURS" "$@"; }
on_theirs() { fio_iops "$THEIRS" "$@"; }

twins_down() {
    nvme disconnect-all
    target_stop
    kernel_target_down
}

# compare OURS THEIRS: runs the functions in turn for each workload; prints the median ratio of their figures.
compare() {
    local workload pattern bs depth pair ours theirs
    for workload in $WORKLOADS; do
        IFS=: read -r pattern bs depth <<<"$workload"
        for pair in $(seq $PAIRS); do
            ours=$("$1" "$pattern" "$bs" "$depth") || fail "$1: $ours"
            theirs=$("$2" "$pattern" "$bs" "$depth") || fail "$2: $theirs"
            echo "$ours $theirs"
        done >/tmp/pairs
        awk -v name="$pattern $bs depth $depth" '
            $1 <= 0 || $2 <= 0 { exit 1 }
            { print $1 / $2, $1, $2 }' /tmp/pairs >/tmp/ratios || fail "$workload: a run did nothing: $(cat /tmp/pairs)"
        sort -n /tmp/ratios | awk -v name="$pattern $bs depth $depth" '
            { ratio[NR] = $1; ours[NR] = $2; theirs[NR] = $3 }
            END {
                middle = int((NR + 1) / 2)
                printf "RATIO %s: %.2f (%.2f to %.2f; in the middle pair %.0f and %.0f I/Os per second)\n",
                    name, ratio[middle], ratio[1], ratio[NR], ours[middle], theirs[middle]
            }'
    done
}
