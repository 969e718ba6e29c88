#!/usr/bin/env bash
# enter.sh ROOT FOLDER COMMAND...: runs a command in a copy of a root that sees a folder as /opt/feedrail, as the user and group FEEDRAIL_USER
# (root by default). It has name spaces of its own: it reaches no network but its loopback, and what it writes and starts ends with it.
set -euo pipefail
root=$1 folder=$2
shift 2
export PATH=$PATH:/usr/sbin:/sbin
exec unshare --net --mount --pid --fork --kill-child --propagation private bash -c '
    set -euo pipefail
    ip link set lo up
    root=/mnt
    mount --types tmpfs tmpfs "$root"
    mkdir "$root/upper" "$root/work" "$root/merged"
    mount --types overlay overlay --options "lowerdir=$0,upperdir=$root/upper,workdir=$root/work" "$root/merged"
    root=$root/merged
    mkdir --parents "$root/proc" "$root/dev" "$root/tmp" "$root/opt/feedrail"
    mount --bind "$1" "$root/opt/feedrail"
    mount --types proc proc "$root/proc"
    mount --types tmpfs tmpfs "$root/dev"
    for device in null zero full random urandom; do
        touch "$root/dev/$device"
        mount --bind "/dev/$device" "$root/dev/$device"
    done
    mkdir "$root/dev/shm"
    mount --types tmpfs tmpfs "$root/dev/shm"
    mount --types tmpfs tmpfs "$root/tmp"
    user=${FEEDRAIL_USER:-0:0}
    shift
    cd /
    exec env --ignore-environment PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LC_ALL=C.UTF-8 chroot --userspec="$user" "$root" "$@"
' "$root" "$folder" "$@"
