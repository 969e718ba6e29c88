# Our host authenticates to the kernel's target in one direction and in both, and says why it is refused.
# set: ci
# kernel may say: nvmet:
host=nqn.2026-01.org.example:host
subsystem=$NVMET/subsystems/$KERNEL_NQN

# configure HASH GROUP [ctrl]: what our host has to use.
configure() {
    rm -f "$subsystem/allowed_hosts/$host"
    [ -d $NVMET/hosts/$host ] && rmdir $NVMET/hosts/$host
    mkdir $NVMET/hosts/$host || fail "host"
    cat /tmp/host.key >$NVMET/hosts/$host/dhchap_key || fail "key"
    [ -z "$3" ] || cat /tmp/subsystem.key >$NVMET/hosts/$host/dhchap_ctrl_key || fail "controller's key"
    echo "hmac($1)" >$NVMET/hosts/$host/dhchap_hash || fail "hash $1"
    echo "$2" >$NVMET/hosts/$host/dhchap_dhgroup || fail "group $2"
    ln -s $NVMET/hosts/$host "$subsystem/allowed_hosts/"
}

# authenticated COMMAND [OPTIONS]: a command of ours with the host's key.
authenticated() { initiator "$@" -q $host --dhchap-secret-file /tmp/host.key; }

dhchap_key 1 host
nvme gen-dhchap-key --hmac=2 --nqn=$KERNEL_NQN >/tmp/subsystem.key && chmod 600 /tmp/subsystem.key || fail "nvme gen-dhchap-key"
dhchap_key 1 other
kernel_target_up 8M
echo 0 >"$subsystem/attr_allow_any_host"
head -c 8M /dev/urandom >/tmp/model
dd if=/tmp/model of="$LOOP" bs=1M oflag=direct status=none

for hash in ${hashes:-sha256 sha384}; do
    for group in ${groups:-null ffdhe2048}; do
        for direction in "" ctrl; do
            configure $hash $group $direction
            authenticated read --offset 4096 --length 1000000 ${direction:+--dhchap-ctrl-secret-file /tmp/subsystem.key} >/tmp/part ||
                fail "$hash $group $direction"
            cmp -n 1000000 -i 0:4096 /tmp/part /tmp/model || fail "$hash $group $direction: what was read differs"
            echo "CELL $hash $group ${direction:-uni} passed"
        done
    done
done

# nvmet may end the connection before the message that says why has been sent: then our host says that the connection
# ended while it authenticated.
refuse "uthentication" initiator id-ctrl -q $host
refuse "uthentication\|the connection ended while this host authenticated" initiator id-ctrl -q $host --dhchap-secret-file /tmp/other.key
refuse "uthentication" authenticated id-ctrl --dhchap-ctrl-secret-file /tmp/other.key
DHCHAP=$(cat /tmp/host.key)
FEEDRAIL_DHCHAP_SECRET=$DHCHAP expect cntlid initiator id-ctrl -q $host
kernel_target_down
true
