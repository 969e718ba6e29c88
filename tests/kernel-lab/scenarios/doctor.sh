# The doctor finds nothing wrong with rxe0 as it should be; of six misconfigurations it finds each, and the command that it names mends it.
# set: ci
# providers: verbs
# kernel may say: infiniband rxe0: set
# kernel may say: infiniband rxe0: added
# kernel may say: rdma_rxe: 
# kernel may say: rxe_reg_user_mr: returned err = -12
# doctor OPTIONS...: what it finds is in $log/doctor.json, its exit code in $code.
doctor() {
    timeout 60 /job/bin/feedrail doctor -o json "$@" >"$log/doctor.json"
    code=$?
    cp "$log/doctor.json" "$log/doctor-$((++runs)).json"
}
# found ID: there is such a finding. absent ID: there is none.
found() { jq -e --arg id "$1" '.findings | any(.id == $id)' "$log/doctor.json" >/dev/null || fail "no $1: $(cat "$log/doctor.json")"; }
absent() { jq -e --arg id "$1" '.findings | all(.id != $id)' "$log/doctor.json" >/dev/null || fail "still $1: $(cat "$log/doctor.json")"; }
exits() { [ "$code" = "$1" ] || fail "exit code $code, not $1: $(cat "$log/doctor.json")"; }
# mend ID: runs what the finding says.
mend() {
    jq -r --arg id "$1" '.findings[] | select(.id == $id) | .mend[]' "$log/doctor.json" >/tmp/mend
    [ -s /tmp/mend ] || fail "$1 names no command: $(cat "$log/doctor.json")"
    echo "mending $1: $(cat /tmp/mend)"
    . /tmp/mend || fail "the command fails: $(cat /tmp/mend)"
}

# Healthy: alone, and with a target to look at.
doctor
exits 0
found device
jq -e '.findings[] | select(.id == "device") | .what | contains("takes GID") and contains("4096 bytes of payload")' "$log/doctor.json" ||
    fail "the device: $(cat "$log/doctor.json")"
head -c 4M /dev/urandom >/disk/a.img
target_start /disk/a.img
doctor -a $KERNEL -w $KERNEL -n "$NQN"
jq -e '.errors == 0' "$log/doctor.json" >/dev/null || fail "errors on a healthy path: $(cat "$log/doctor.json")"
found path
found bandwidth
target_stop

# 1. An MTU that is too small for full packets.
ip link set veth0 mtu 1500
doctor
exits 3
found port-mtu
mend port-mtu
doctor
exits 0
eventually sh -c 'ibv_devinfo -d rxe0 | grep -Eq "active_mtu:[[:space:]]*4096"'
ip link set veth0 mtu 4500

# 2. A link that is down.
ip link set veth0 down
eventually grep -q DOWN /sys/class/infiniband/rxe0/ports/1/state
doctor
exits 4
found port-down
mend port-down
eventually grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state
doctor
exits 0

# 3. A limit of locked memory, for a user whom it binds.
cat >/tmp/limited <<END
. ./lib.sh
$(declare -f doctor found absent exits mend)
runs=10
refuse "RLIMIT_MEMLOCK is 64 KiB" /job/bin/feedrail-target --provider verbs --listen $KERNEL /disk/a.img
doctor
exits 3
found memlock
mend memlock
doctor
exits 0
target_start /disk/a.img
target_stop
END
setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock prlimit --memlock=65536:1073741824 bash /tmp/limited || fail "as a limited user"

# 4. A path on which only shorter packets pass than this side would send.
provider=soft ADDRESS=$SOFT
in_soft ip link set veth1 mtu 1500
target_start /disk/a.img
doctor -a $SOFT -w $KERNEL
exits 4
found path-mtu
mend path-mtu
doctor -a $SOFT -w $KERNEL -n "$NQN"
absent path-mtu
found bandwidth
timeout 60 /job/bin/feedrail read -a $SOFT -w $KERNEL -n "$NQN" | cmp - /disk/a.img || fail "a large read"
ip link set veth0 mtu 4500
in_soft ip link set veth1 mtu 4500
target_stop
provider=verbs ADDRESS=$KERNEL

# 5. A process on `soft` where rdma_rxe has the port.
doctor --provider soft
exits 4
found roce-port-taken
mend roce-port-taken
doctor --provider soft
absent roce-port-taken
/job/bin/feedrail-target --provider soft --listen $KERNEL:4420 /disk/a.img >"$log/target.out" 2>>"$log/target.err" &
TARGET=$!
eventually grep -q '"provider":"soft"' "$log/target.out"
target_stop

# 6. Small socket buffers, for a user whom the limit binds.
before=$(sysctl -n net.core.rmem_max)
sysctl -qw net.core.rmem_max=212992 net.core.wmem_max=4194304
cat >/tmp/limited <<END
. ./lib.sh
$(declare -f doctor found absent exits mend)
runs=20
doctor
exits 3
found receive-buffer
END
setpriv --bounding-set=-net_admin --inh-caps=-net_admin bash /tmp/limited || fail "as a user without CAP_NET_ADMIN"
mend receive-buffer
sed -i -e 's/^exits 3/exits 0/' -e 's/^found/absent/' /tmp/limited
setpriv --bounding-set=-net_admin --inh-caps=-net_admin bash /tmp/limited || fail "as a user without CAP_NET_ADMIN, mended"
sysctl -qw net.core.rmem_max="$before"
modprobe rdma_rxe || fail "rdma_rxe does not come back"
device_up
