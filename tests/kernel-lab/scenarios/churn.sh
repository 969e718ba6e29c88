# Random management changes while a kernel host writes and verifies: its disk is untouched by any, and nothing grows.
# set: full
changes=250
manage() { feedrail target "$@" --socket /tmp/target.sock >/dev/null || fail "feedrail target $*"; }
descriptors() { ls "/proc/$TARGET/fd" | wc -l; }
resident_kib() { awk '/^VmRSS/ { print $2 }' "/proc/$TARGET/status"; }
has_nsids() { [ "$(cat /sys/block/nvme*n*/nsid | sort -un | tr '\n' ' ')" = "$1" ]; }

truncate -s 64M /disk/a.img
for file in 0 1 2 3; do head -c 1M /dev/urandom >/disk/extra$file.img; done
target_start --writable --management /tmp/target.sock /disk/a.img
kernel_connect -i 2
fio_begin "$DEVICE" randrw 16k 16 8M
before_fds=$(descriptors)
before_kib=$(resident_kib)

# What is there now: for each of NSIDs 2 to 5 whether it is, and the state of the path.
declare -A present
reached=optimized
subsystem=nqn.2026-01.org.example:other
has_subsystem=
RANDOM=7
for _ in $(seq "$changes"); do
    nsid=$((RANDOM % 4 + 2))
    case $((RANDOM % 8)) in
        0 | 1 | 2)
            if [ "${present[$nsid]}" ]; then
                manage remove-ns "$NQN" $nsid
                present[$nsid]=
            else
                manage add-ns "$NQN" "/disk/extra$((nsid - 2)).img" --nsid $nsid
                present[$nsid]=1
            fi
            ;;
        3)
            if [ "$has_subsystem" ]; then
                manage remove-subsystem $subsystem
                has_subsystem=
            else
                manage add-subsystem $subsystem --allow-any-host
                has_subsystem=1
            fi
            ;;
        4 | 5)
            # No longer than a host waits.
            if [ $reached = optimized ]; then reached=non-optimized; else reached=optimized; fi
            manage ana "$NQN" "$ADDRESS:4420" $reached
            ;;
        6) manage add-host "$NQN" nqn.2026-01.org.example:guest && manage remove-host "$NQN" nqn.2026-01.org.example:guest ;;
        7) manage add-referral 192.0.2.7:8009 && manage remove-referral 192.0.2.7:8009 ;;
    esac
done
io_is_moving
fio_end
for nsid in 2 3 4 5; do [ "${present[$nsid]}" ] && manage remove-ns "$NQN" $nsid; done
[ "$has_subsystem" ] && manage remove-subsystem $subsystem
eventually has_nsids "1 "
eventually eval '[ "$(descriptors)" -le "$before_fds" ]'
after_kib=$(resident_kib)
echo "$changes changes; resident memory $before_kib KiB before, $after_kib KiB after; $before_fds descriptors before, $(descriptors) after"
[ "$after_kib" -le $((before_kib + 16384)) ] || fail "the target grew from $before_kib KiB to $after_kib KiB"
[ "$(stats '.storage_errors | length')" = 0 ] || fail "storage errors"
nvme disconnect -n "$NQN" || fail "disconnect"
eventually target_is_free
target_stop
