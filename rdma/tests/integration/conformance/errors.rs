//! Errors are reported with their status, and leave other queue pairs alone.

use std::time::Duration;

use rdma::{
    Access, ConnOptions, ConnParams, Group, Op, QpConfig, SendFlags, SendWr, Sge, Wc, WcStatus,
};

use super::buffer::Buffer;
use super::differences::Fault;
use super::world::{Bench, QP, World, params};

pub fn an_access_error_writes_nothing<B: Bench>(bench: B) {
    let mut bench = bench;
    type Case = fn(u64, u32) -> (u64, u32, usize);
    let cases: [(&str, Case); 6] = [
        ("an unknown key", |addr, rkey| (addr, rkey ^ 1, 16)),
        ("a key of nothing", |addr, _| (addr, 0, 16)),
        ("below the region", |addr, rkey| (addr - 1, rkey, 16)),
        ("past the region", |addr, rkey| (addr + 65_536, rkey, 16)),
        ("past its end by the last packet", |addr, rkey| (addr + 1, rkey, 65_536)),
        ("an address that wraps", |_, rkey| (u64::MAX - 3, rkey, 16)),
    ];
    for (what, case) in cases {
        let mut world = World::new(bench);
        let (left, right) = world.connect();
        let mut source = world.buffer(0, 65_536);
        source.fill(1);
        let sink = world.buffer(1, 65_536);
        world.recv(right, 9, &[sink.sge(0, 64)]);
        world.flush(right);
        let (remote_addr, rkey, length) = case(sink.addr(), sink.rkey());
        world.send(
            left,
            1,
            Op::RdmaWrite { remote_addr, rkey },
            SendFlags::NONE,
            &[source.sge(0, length)],
        );
        world.send(left, 2, Op::Send, SendFlags::NONE, &[source.sge(0, 64)]);
        world.flush(left);
        assert_eq!(world.completion(0).status, WcStatus::REMOTE_ACCESS_ERROR, "{what}");
        world.expect(0, 2, WcStatus::FLUSHED);
        world.expect(1, 9, WcStatus::FLUSHED);
        let long = length > 16 && !world.bench.differences().checks_writes_at_once;
        // The least that the last packet would have written, at the smallest path MTU.
        let from = if long { 65_536 - 255 } else { 0 };
        let untouched = &sink.all()[from..];
        assert!(untouched.iter().all(|byte| *byte == 0), "{what}: something was written");
        bench = world.bench;
    }
}

pub fn rights_are_checked<B: Bench>(bench: B) {
    let mut bench = bench;
    for read in [true, false] {
        let mut world = World::new(bench);
        let (left, _right) = world.connect();
        let mut ours = world.buffer(0, 64);
        ours.fill(1);
        let before = ours.all();
        let access =
            if read { Access::LOCAL_WRITE | Access::REMOTE_WRITE } else { Access::REMOTE_READ };
        let theirs = Buffer::<B::Provider>::new(&world.hosts[1].device, 64, access);
        let (remote_addr, rkey) = (theirs.addr(), theirs.rkey());
        let op = if read {
            Op::RdmaRead { remote_addr, rkey }
        } else {
            Op::RdmaWrite { remote_addr, rkey }
        };
        world.post(left, 1, op, &[ours.sge(0, 64)]);
        world.expect(0, 1, WcStatus::REMOTE_ACCESS_ERROR);
        assert_eq!(ours.all(), before);
        assert_eq!(theirs.all(), vec![0; 64]);
        bench = world.bench;
    }
}

pub fn a_dropped_region_is_gone<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let (left, _right) = world.connect();
    let mut source = world.buffer(0, 64);
    source.fill(1);
    let mut sink = world.buffer(1, 64);
    let write = Op::RdmaWrite { remote_addr: sink.addr(), rkey: sink.rkey() };
    sink.deregister();
    world.post(left, 1, write, &[source.sge(0, 64)]);
    world.expect(0, 1, WcStatus::REMOTE_ACCESS_ERROR);
    assert_eq!(sink.all(), vec![0; 64]);
}

pub fn our_own_keys_are_checked<B: Bench>(bench: B) {
    let mut bench = bench;
    for which in 0..3 {
        let mut world = World::new(bench);
        let (left, right) = world.connect();
        let mut source = world.buffer(0, 64);
        let read_only = Buffer::<B::Provider>::new(&world.hosts[0].device, 64, Access::NONE);
        let sink = world.buffer(1, 64);
        world.recv(right, 9, &[sink.sge(0, 64)]);
        let sge = source.sge(0, 64);
        let (op, sge) = match which {
            0 => (Op::Send, Sge { lkey: sge.lkey ^ 1, ..sge }),
            1 => {
                source.deregister();
                (Op::Send, sge)
            }
            _ => {
                let read = Op::RdmaRead { remote_addr: sink.addr(), rkey: sink.rkey() };
                (read, read_only.sge(0, 64))
            }
        };
        world.post(left, 1, op, &[sge]);
        // What a READ brings is placed late, when the request has long been sent.
        let flushed = world.has(Fault::LocalFailureIsFlushed) && op == Op::Send;
        let status = if flushed { WcStatus::FLUSHED } else { WcStatus::LOCAL_PROTECTION_ERROR };
        world.expect(0, 1, status);
        bench = world.bench;
    }
}

pub fn a_message_longer_than_its_receive_is_refused<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let (left, right) = world.connect();
    let source = world.buffer(0, 8192);
    let sink = world.buffer(1, 8192);
    world.recv(right, 9, &[sink.sge(0, 5000)]);
    world.post(left, 1, Op::Send, &[source.sge(0, 5001)]);
    let [sender, receiver] = if world.has(Fault::LongMessageIsMalformed) {
        [WcStatus::REMOTE_OPERATION_ERROR, WcStatus::LOCAL_QP_OPERATION_ERROR]
    } else {
        [WcStatus::REMOTE_INVALID_REQUEST, WcStatus::LOCAL_LENGTH_ERROR]
    };
    world.expect(0, 1, sender);
    world.expect(1, 9, receiver);
}

pub fn a_late_receive_is_waited_for<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let (left, right) = world.connect();
    let mut source = world.buffer(0, 8192);
    source.fill(1);
    let sink = world.buffer(1, 8192);
    world.post(left, 1, Op::Send, &[source.sge(0, 8192)]);
    world.settle_for(Duration::from_millis(20));
    assert!(world.hosts.iter().all(|host| host.wcs.is_empty()));
    if world.bench.differences().counts_packets {
        assert!(world.hosts[1].group.stats().rnr_naks_sent > 0);
        assert!(world.hosts[0].group.stats().rnr_naks_received > 0);
    }
    world.recv(right, 2, &[sink.sge(0, 8192)]);
    world.expect(1, 2, WcStatus::SUCCESS);
    world.expect(0, 1, WcStatus::SUCCESS);
    assert_eq!(sink.all(), source.all());
}

pub fn a_receive_that_never_comes_is_an_error<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let limited = ConnParams { rnr_retry_count: 2, ..params() };
    let to = world.listen(1);
    let left = world.ask(0, to, &ConnOptions::default(), &QP, &limited);
    let (conn, asked) = world.requested(1);
    assert_eq!(asked.rnr_retry_count, 2);
    let right = world.accept(1, conn, &QP, &limited);
    world.established(left);
    world.established(right);
    let source = world.buffer(0, 64);
    world.post(left, 1, Op::Send, &[source.sge(0, 64)]);
    world.expect(0, 1, WcStatus::RNR_RETRY_EXCEEDED);
}

pub fn failing_flushes_in_order<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let (left, _right) = world.connect();
    let buffer = world.buffer(0, 64);
    for index in 0..10 {
        world.recv(left, 100 + index, &[buffer.sge(0, 64)]);
        world.send(left, index, Op::Send, SendFlags::NONE, &[buffer.sge(0, 64)]);
    }
    world.hosts[0].group.fail(left.qp);
    let mut seen = [Vec::new(), Vec::new()];
    for _ in 0..20 {
        let wc = world.completion(0);
        assert_eq!(wc.status, WcStatus::FLUSHED);
        seen[usize::from(wc.wr_id >= 100)].push(wc.wr_id % 100);
    }
    if world.bench.differences().uses_newest_receive {
        seen[1].reverse();
    }
    assert!(seen.iter().all(|ids| ids.iter().copied().eq(0..10)), "out of order: {seen:?}");
    world.recv(left, 7, &[buffer.sge(0, 64)]);
    world.expect(0, 7, WcStatus::FLUSHED);
}

/// Nothing that the peer sends is placed after `fail`.
pub fn a_failed_queue_pair_places_nothing<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let options = ConnOptions { ack_timeout_exponent: Some(8), ..ConnOptions::default() };
    let few = ConnParams { retry_count: 1, ..params() };
    let (left, right) = world.connect_with(&options, &QP, &few);
    let mut source = world.buffer(0, 65_536);
    source.fill(1);
    let sink = world.buffer(1, 65_536);
    world.hosts[1].group.fail(right.qp);
    let write = Op::RdmaWrite { remote_addr: sink.addr(), rkey: sink.rkey() };
    world.post(left, 1, write, &[source.sge(0, 65_536)]);
    let wc = world.completion(0);
    assert!(!wc.is_success(), "{wc:?}");
    assert!(sink.all() == vec![0; 65_536]);
}

pub fn nothing_is_reported_after_release<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let (left, right) = world.connect();
    let (other_left, other_right) = world.connect();
    let buffers = [world.buffer(0, 4096), world.buffer(1, 4096)];
    for index in 0..8 {
        world.recv(right, index, &[buffers[1].sge(0, 64)]);
        world.send(left, index, Op::Send, SendFlags::NONE, &[buffers[0].sge(0, 64)]);
    }
    world.flush(left);
    // Completions lie there and are not polled for.
    let now = world.now();
    for _ in 0..5 {
        world.hosts[1].group.poll(now, &mut []);
    }
    world.hosts[1].group.release(right.qp);
    world.hosts[0].group.release(left.qp);
    world.settle_for(Duration::from_millis(5));
    assert!(world.hosts.iter().all(|host| host.wcs.is_empty()));
    world.recv(other_right, 1, &[buffers[1].sge(0, 64)]);
    world.post(other_left, 2, Op::Send, &[buffers[0].sge(0, 64)]);
    world.expect(1, 1, WcStatus::SUCCESS);
    world.expect(0, 2, WcStatus::SUCCESS);
}

pub fn a_peer_that_vanishes_is_noticed<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let options = ConnOptions { ack_timeout_exponent: Some(8), ..ConnOptions::default() };
    let few = ConnParams { retry_count: 2, ..params() };
    let (left, _right) = world.connect_with(&options, &QP, &few);
    let buffer = world.buffer(0, 64);
    world.recv(left, 9, &[buffer.sge(0, 64)]);
    world.hosts.truncate(1);
    world.send(left, 1, Op::Send, SendFlags::NONE, &[buffer.sge(0, 64)]);
    world.send(left, 2, Op::Send, SendFlags::NONE, &[buffer.sge(0, 64)]);
    world.flush(left);
    let mut statuses: Vec<Wc> = (0..3).map(|_| world.completion(0)).collect();
    statuses.sort_by_key(|wc| wc.wr_id);
    let statuses: Vec<_> = statuses.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    // Told that the peer is gone, a host need not try.
    let told = world.bench.differences().disconnects_on_exit && statuses[0].1 == WcStatus::FLUSHED;
    let first = if told { WcStatus::FLUSHED } else { WcStatus::RETRY_EXCEEDED };
    assert_eq!(statuses, [(1, first), (2, WcStatus::FLUSHED), (9, WcStatus::FLUSHED)]);
}

pub fn queues_have_the_room_that_was_granted<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let config = QpConfig { send_wr: 3, recv_wr: 5, send_sge: 2, recv_sge: 1, inline_bytes: 16 };
    let (left, _right) = world.connect_with(&ConnOptions::default(), &config, &params());
    let group = &mut world.hosts[0].group;
    let granted = group.granted(left.qp);
    assert!(granted.send_wr >= 3 && granted.recv_wr >= 5);
    let mut pushed = 0;
    loop {
        // SAFETY: the request names no memory.
        match unsafe { group.push_recv(left.qp, &rdma::RecvWr { wr_id: pushed, sges: &[] }) } {
            Ok(()) => pushed += 1,
            Err(error) => break assert_eq!(error, rdma::PushError::QueueFull),
        }
        assert!(pushed <= u64::from(granted.recv_wr));
    }
    assert_eq!(pushed, u64::from(granted.recv_wr));
    let sges = vec![Sge::default(); granted.send_sge as usize + 1];
    let wr = SendWr { wr_id: 0, op: Op::Send, flags: SendFlags::NONE, sges: &sges };
    // SAFETY: the request names no memory.
    let result = unsafe { group.push_send(left.qp, &wr) };
    assert_eq!(result, Err(rdma::PushError::TooManySges));
    let text = [0u8; 300];
    let addr = text.as_ptr().expose_provenance() as u64;
    let sges = [Sge { addr, length: granted.inline_bytes + 1, lkey: 0 }];
    let wr = SendWr { wr_id: 0, op: Op::Send, flags: SendFlags::INLINE, sges: &sges };
    // SAFETY: the text lives until the end of the test.
    let result = unsafe { group.push_send(left.qp, &wr) };
    assert_eq!(result, Err(rdma::PushError::InlineTooLong));
}
