# A host is killed during I/O, again and again: the target frees everything each time. (A kernel that falls silent: see keep-alive.)
# set: full
# kernel may say: non-flush error status
truncate -s 128M /disk/a.img
target_start --writable /disk/a.img
queue_pairs() { rdma resource show qp 2>/dev/null | grep -c "pid $TARGET "; }
before=$(queue_pairs)
for rw in randread randwrite randread randwrite; do
    ours /job/bin/feedrail perf -t rdma -a "$ADDRESS" -s 4420 --provider "$provider" -n "$NQN" --rw $rw --bs 64k --iodepth 32 --runtime 300 --allow-writes \
        >"$log/perf.out" 2>&1 &
    io_is_moving
    pkill -KILL -x feedrail || fail "perf has ended: $(tail -3 "$log/perf.out")"
    eventually target_is_free
    [ "$(queue_pairs)" = "$before" ] || fail "the target still has queue pairs: $(rdma resource show qp)"
done
target_stop
