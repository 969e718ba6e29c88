#!/bin/sh
# The guest's first process: mounts, modules, then the job that the host left in the shared folder.
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
ln -s /proc/self/fd /dev/fd
mkdir -p /dev/pts /dev/shm
mount -t devpts none /dev/pts
mount -t tmpfs none /dev/shm
mount -t tmpfs none /tmp
ulimit -l unlimited
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root

load() {
    for module in "$@"; do
        modprobe "$module" || echo "no kernel module $module"
    done
}

load virtio_pci 9pnet_virtio 9p
for _ in 1 2 3 4 5; do
    mkdir -p /job
    mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 job /job && break
    sleep 1
done
load virtio_blk ext4 veth loop configfs rdma_rxe ib_uverbs rdma_ucm nvmet nvmet_rdma nvme_rdma
mount -t configfs none /sys/kernel/config
ip link set lo up
mkdir -p /disk
mount /dev/vda /disk

cd /job || exit
if [ -e /job/shell ]; then
    . /job/lib.sh
    echo "The lab is at /job; try: network_up; ls scenarios. Leave with exit."
    setsid -c sh -i </dev/ttyS0 >/dev/ttyS0 2>&1
else
    bash /job/run.sh >/job/run.log 2>&1
    echo $? >/job/exit-status
fi
dmesg >/job/dmesg.log
sync
echo o >/proc/sysrq-trigger
sleep 10
