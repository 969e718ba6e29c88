# The host vanishes during I/O: the target frees everything, and still listens.
# set: full
# kernel may say: nvme nvme
# kernel may say: I/O error, dev nvme
# kernel may say: no available path - failing I/O
truncate -s 128M /disk/a.img
target_start --writable /disk/a.img
before=$(rdma resource show qp | grep -c feedrail-target)
kernel_connect -i 2 --reconnect-delay=5 --ctrl-loss-tmo=5 --keep-alive-tmo=2
fio_begin "$DEVICE" randrw 16k 32 16M
link_down
eventually target_is_free
[ "$(rdma resource show qp | grep -c feedrail-target)" = "$before" ] || fail "the target still has queue pairs: $(rdma resource show qp)"
# The host gives up in its own time, and fio with it.
wait "$FIO"
target_stop
