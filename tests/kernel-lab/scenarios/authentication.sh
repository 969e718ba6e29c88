# The kernel's host authenticates in one direction and in both; with another key or none it is refused. It
# authenticates again under I/O, and with another key after a reload.
# set: ci
# kernel may say: authentication
# kernel may say: failed to connect queue
# kernel may say: Connect Invalid
host=nqn.2026-01.org.example:host hostid=$(uuidgen)
other=nqn.2026-01.org.example:other
manage() { feedrail target "$@" --socket /tmp/target.sock || fail "feedrail target $*"; }

# configure HASH GROUP [ctrl]: what the host has to use.
configure() {
    cat >/tmp/target.toml <<TOML
management = "/tmp/target.sock"
[[port]]
address = "$ADDRESS:4420"
[[subsystem]]
nqn = "nqn.2026-01.org.example:private"
[[subsystem.host]]
nqn = "$host"
dhchap_key = "/tmp/host.key"
${3:+dhchap_ctrl_key = \"/tmp/subsystem.key\"}
hashes = ["$1"]
groups = ["$2"]
[[subsystem.host]]
nqn = "$other"
dhchap_key = "/tmp/other.key"
[[subsystem.namespace]]
path = "/disk/a.img"
read_only = false
TOML
}

# connect KEY [ctrl]: with a Keep Alive Timeout in which an emulated machine computes a message of ffdhe8192.
connect() {
    kernel_connect -i 1 -k 120 --hostnqn=$host --hostid="$hostid" --dhchap-secret="$(cat "/tmp/$1.key")" \
        ${2:+--dhchap-ctrl-secret="$(cat /tmp/subsystem.key)"}
}

# refused KEY [ctrl]: the kernel's host does not get in.
refused() {
    refuse "could not add new controller\|failed to write to nvme-fabrics device" nvme connect -t rdma -a "$ADDRESS" -s 4420 -n "$NQN" -i 1 --hostnqn=$host \
        --hostid="$hostid" ${1:+--dhchap-secret="$(cat "/tmp/$1.key")"} ${2:+--dhchap-ctrl-secret="$(cat "/tmp/$2.key")"}
}

# The kernel tells of the authentication of its admin queue only.
authentications_of_io_queue() { grep -c "authenticated peer=[^ ]* qid=1 " "$log/target.err"; }

disconnect() {
    nvme disconnect -n "$NQN" || fail "disconnect"
    eventually target_is_free
}

# One with nvme-cli's tool, one with ours.
nvme gen-dhchap-key --hmac=1 --nqn=$host >/tmp/host.key || fail "nvme gen-dhchap-key"
chmod 600 /tmp/host.key
dhchap_key 2 subsystem
dhchap_key 0 other
truncate -s 64M /disk/a.img
configure sha256 null
target_run --config /tmp/target.toml --log info,feedrail_target::controller::authentication=debug

for hash in ${hashes:-sha256 sha384}; do
    for group in ${groups:-null ffdhe2048}; do
        for direction in "" ctrl; do
            configure $hash $group $direction
            manage reload
            dmesg -C
            connect host $direction
            dmesg | grep "authenticated with hash hmac($hash) dhgroup $group" || fail "$hash $group $direction: $(dmesg | tail -3)"
            dd if="$DEVICE" of=/dev/null bs=4k count=16 iflag=direct status=none || fail "read"
            disconnect
            echo "CELL $hash $group ${direction:-uni} passed"
        done
    done
done

refused other
refused ""
refused host other
configure sha384 ffdhe2048 ctrl
manage reload
connect host ctrl
controller=$(basename "$CONTROLLER")
fio_begin "$DEVICE" randrw 16k 16 8M
for _ in 1 2 3 4 5; do
    before=$(authentications_of_io_queue)
    cat /tmp/host.key >"/sys/class/nvme/$controller/dhchap_secret" || fail "re-authentication"
    eventually eval '[ "$(authentications_of_io_queue)" -gt "$before" ]'
    io_is_moving
done
fio_end

# Another key: whoever has the old one does not get in any more.
cp /tmp/host.key /tmp/old.key
dhchap_key 3 host
manage reload
disconnect
refused old ctrl
connect host ctrl
verified_fio "$DEVICE" randwrite 4k 4 256k
disconnect
target_stop
grep -h DHHC-1 "$log"/target.* && fail "a key is in the log"
true
