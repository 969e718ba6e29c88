# Keep alive: an idle host stays for many times its time-out. One that falls silent is let go, idle or not, and goes on when it is back.
# set: full
# providers: soft
# kernel may say: nvme nvme
truncate -s 128M /disk/a.img
target_start --writable /disk/a.img
kernel_connect -i 2 --reconnect-delay=1 --ctrl-loss-tmo=600 --keep-alive-tmo=2
accepted=$(stats .connections_accepted)
sleep 15
[ "$(stats '[.associations, .connections_accepted] | @csv')" = "1,$accepted" ] || fail "an idle host was not kept"
packets_lost
eventually target_is_free
grep -i "keep alive" "$log/target.err" || fail "the target does not say that the host was silent"
packets_pass
eventually eval '[ "$(stats .associations)" = 1 ]'

fio_begin "$DEVICE" randrw 16k 32 16M
packets_lost
eventually target_is_free
packets_pass
io_is_moving
fio_end
nvme disconnect -n "$NQN" || fail "disconnect"
eventually target_is_free
target_stop
