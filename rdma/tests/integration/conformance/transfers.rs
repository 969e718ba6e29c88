//! Data moves and arrives whole.

use rdma::{Op, SendFlags, Sge, WcOpcode, WcStatus};

use super::buffer::pattern;
use super::world::{Bench, World};

/// Lengths around the packet sizes of every path MTU.
const LENGTHS: [usize; 16] =
    [0, 1, 2, 3, 4, 5, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 12_345];

pub fn sends_arrive_in_order<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let (left, right) = world.connect();
    let mut source = world.buffer(0, 16_384);
    source.fill(1);
    let sink = world.buffer(1, 16 * 16_384);
    for (index, _) in LENGTHS.iter().enumerate() {
        world.recv(right, index as u64, &[sink.sge(index * 16_384, 16_384)]);
    }
    for (index, &length) in LENGTHS.iter().enumerate() {
        let sge = source.sge(index, length);
        world.send(left, 100 + index as u64, Op::Send, SendFlags::NONE, &[sge]);
    }
    world.flush(left);
    let newest_first = world.bench.differences().uses_newest_receive;
    for (index, &length) in LENGTHS.iter().enumerate() {
        let receive = if newest_first { LENGTHS.len() - 1 - index } else { index };
        let wc = world.expect(1, receive as u64, WcStatus::SUCCESS);
        assert_eq!((wc.byte_len as usize, wc.opcode), (length, WcOpcode::RECV));
        assert_eq!(wc.qpn, rdma::Group::qpn(&world.hosts[1].group, right.qp));
        assert_eq!(sink.read(receive * 16_384, length), source.read(index, length));
        let rest = sink.read(receive * 16_384 + length, 16_384 - length);
        assert!(rest.iter().all(|&byte| byte == 0), "written past a message of {length} bytes");
    }
    for (index, _) in LENGTHS.iter().enumerate() {
        let wc = world.expect(0, 100 + index as u64, WcStatus::SUCCESS);
        assert_eq!(wc.opcode, WcOpcode::SEND);
    }
}

pub fn inline_needs_no_key<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let (left, right) = world.connect();
    let sink = world.buffer(1, 64);
    world.recv(right, 1, &[sink.sge(0, 64)]);
    let mut text = *b"captured when it is flushed";
    let length = u32::try_from(text.len()).unwrap();
    let sge = Sge { addr: text.as_mut_ptr().expose_provenance() as u64, length, lkey: 0 };
    world.send(left, 2, Op::Send, SendFlags::INLINE, &[sge]);
    world.flush(left);
    let sent = text;
    text.fill(0);
    world.expect(1, 1, WcStatus::SUCCESS);
    assert_eq!(sink.read(0, text.len()), sent);
    world.expect(0, 2, WcStatus::SUCCESS);
}

pub fn messages_are_scattered_and_gathered<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let (left, right) = world.connect();
    let mut source = world.buffer(0, 16_384);
    source.fill(2);
    let sink = world.buffer(1, 16_384);
    let pieces = [(1, 3000), (5000, 1), (6001, 0), (7003, 4097)];
    let gathered: Vec<Sge> = pieces.iter().map(|&(at, length)| source.sge(at, length)).collect();
    let scattered = [sink.sge(3, 1000), sink.sge(2000, 1), sink.sge(4001, 7000)];
    world.recv(right, 1, &scattered);
    world.post(left, 2, Op::Send, &gathered);
    let wc = world.expect(1, 1, WcStatus::SUCCESS);
    assert_eq!(wc.byte_len, 7098);
    world.expect(0, 2, WcStatus::SUCCESS);
    let sent: Vec<u8> = pieces.iter().flat_map(|&(at, length)| source.read(at, length)).collect();
    let mut received = sink.read(3, 1000);
    received.extend(sink.read(2000, 1));
    received.extend(sink.read(4001, 7098 - 1001));
    assert_eq!(received, sent);
}

pub fn writes_land_exactly<B: Bench>(bench: B) {
    writes_in(World::new(bench));
}

pub fn writes_in<B: Bench>(mut world: World<B>) {
    let (left, _right) = world.connect();
    let mut source = world.buffer(0, 1 << 20);
    source.fill(3);
    let mut sink = world.buffer(1, 1 << 20);
    let lengths = LENGTHS.into_iter().chain([65_536, 131_072, 700_001]);
    for (index, length) in lengths.enumerate() {
        let (from, to) = (3 * index, 5 * index + 1);
        sink.fill(4);
        let mut expected = sink.all();
        expected[to..to + length].copy_from_slice(&source.read(from, length));
        let half = length / 3;
        let sges = [source.sge(from, half), source.sge(from + half, length - half)];
        let op = Op::RdmaWrite { remote_addr: sink.addr() + to as u64, rkey: sink.rkey() };
        world.post(left, index as u64, op, &sges);
        let wc = world.expect(0, index as u64, WcStatus::SUCCESS);
        assert_eq!(wc.opcode, WcOpcode::RDMA_WRITE);
        assert!(sink.all() == expected, "a write of {length} bytes went wrong");
    }
}

pub fn reads_bring_exactly<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let (left, _right) = world.connect();
    let mut source = world.buffer(1, 2 << 20);
    source.fill(5);
    let mut sink = world.buffer(0, 2 << 20);
    let lengths = LENGTHS.into_iter().chain([65_536, 131_073, 1 << 20]);
    for (index, length) in lengths.enumerate() {
        let (from, to) = (7 * index, 3 * index + 2);
        sink.fill(6);
        let half = length / 3;
        let mut expected = sink.all();
        expected[to..to + half].copy_from_slice(&source.read(from, half));
        let rest = source.read(from + half, length - half);
        expected[to + half + 9..to + 9 + length].copy_from_slice(&rest);
        let sges = [sink.sge(to, half), sink.sge(to + half + 9, length - half)];
        let op = Op::RdmaRead { remote_addr: source.addr() + from as u64, rkey: source.rkey() };
        world.post(left, index as u64, op, &sges);
        let wc = world.expect(0, index as u64, WcStatus::SUCCESS);
        assert_eq!((wc.opcode, wc.byte_len as usize), (WcOpcode::RDMA_READ, length));
        assert!(sink.all() == expected, "a read of {length} bytes went wrong");
    }
}

/// An NVMe read: data by RDMA WRITE, then the response by SEND, in one flush.
pub fn a_write_lands_before_the_next_send<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let (left, right) = world.connect();
    let mut source = world.buffer(0, 131_072);
    let sink = world.buffer(1, 131_072 + 64);
    for round in 0..20 {
        let length = 1000 + round * 6000;
        source.fill(round as u64);
        world.recv(right, 1, &[sink.sge(131_072, 64)]);
        let op = Op::RdmaWrite { remote_addr: sink.addr(), rkey: sink.rkey() };
        world.send(left, 2, op, SendFlags::NONE, &[source.sge(0, length)]);
        world.send(left, 3, Op::Send, SendFlags::NONE, &[source.sge(0, 16)]);
        world.flush(left);
        world.expect(1, 1, WcStatus::SUCCESS);
        assert!(
            sink.read(0, length) == pattern(round as u64, length),
            "the send overtook the write"
        );
        world.expect(0, 2, WcStatus::SUCCESS);
        world.expect(0, 3, WcStatus::SUCCESS);
    }
}

pub fn both_directions_at_once<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let (left, right) = world.connect();
    let mut buffers = [world.buffer(0, 4 << 20), world.buffer(1, 4 << 20)];
    for (host, buffer) in buffers.iter_mut().enumerate() {
        buffer.fill(host as u64);
    }
    // Each reads the other's first MiB into its second and writes its first to the other's third.
    for (end, host) in [(left, 0), (right, 1)] {
        let (ours, theirs) = (&buffers[host], &buffers[1 - host]);
        let read = Op::RdmaRead { remote_addr: theirs.addr(), rkey: theirs.rkey() };
        let remote_addr = theirs.addr() + (2 << 20);
        let write = Op::RdmaWrite { remote_addr, rkey: theirs.rkey() };
        for part in 0..8 {
            let at = part << 17;
            let read = shifted(read, at);
            world.send(end, 1, read, SendFlags::NONE, &[ours.sge((1 << 20) + at, 1 << 17)]);
            let write = shifted(write, at);
            world.send(end, 1, write, SendFlags::NONE, &[ours.sge(at, 1 << 17)]);
        }
        world.flush(end);
    }
    for host in [0, 1] {
        for _ in 0..16 {
            world.expect(host, 1, WcStatus::SUCCESS);
        }
    }
    for host in [0, 1] {
        let theirs = pattern(1 - host as u64, 1 << 20);
        assert!(buffers[host].read(1 << 20, 1 << 20) == theirs, "the reads of host {host}");
        assert!(buffers[host].read(2 << 20, 1 << 20) == theirs, "the writes to host {host}");
    }
}

fn shifted(op: Op, by: usize) -> Op {
    match op {
        Op::RdmaRead { remote_addr, rkey } => {
            Op::RdmaRead { remote_addr: remote_addr + by as u64, rkey }
        }
        Op::RdmaWrite { remote_addr, rkey } => {
            Op::RdmaWrite { remote_addr: remote_addr + by as u64, rkey }
        }
        other => other,
    }
}

pub fn only_signaled_successes_are_reported<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let (left, _right) = world.connect();
    let source = world.buffer(0, 64);
    let sink = world.buffer(1, 64);
    let op = Op::RdmaWrite { remote_addr: sink.addr(), rkey: sink.rkey() };
    let sges = [source.sge(0, 64)];
    let quiet = rdma::SendWr { wr_id: 1, op, flags: SendFlags::NONE, sges: &sges };
    for _ in 0..5 {
        // SAFETY: the buffers live until the end of the test.
        unsafe { rdma::Group::push_send(&mut world.hosts[0].group, left.qp, &quiet) }
            .expect("push");
    }
    world.post(left, 2, op, &sges);
    world.expect(0, 2, WcStatus::SUCCESS);
}
