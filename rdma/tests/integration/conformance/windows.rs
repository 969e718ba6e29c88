//! Memory windows open and close.

use rdma::{Access, MemoryWindow, Op, SendFlags, WcOpcode, WcStatus};

use super::differences::Fault;
use super::world::{Bench, End, World};

/// Opens 64 bytes at offset 64 of `buffer` of host 1 to the peer of `end`, and returns the key.
fn open<B: Bench>(
    world: &mut World<B>,
    end: End,
    window: &mut <B::Provider as rdma::Provider>::Window,
    buffer: &super::buffer::Buffer<B::Provider>,
) -> u32 {
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let bind = window.bind(buffer.region(), buffer.addr() + 64, 64, access);
    world.post(end, 50, bind, &[]);
    let wc = world.expect(end.host, 50, WcStatus::SUCCESS);
    assert_eq!(wc.opcode, WcOpcode::BIND_WINDOW);
    window.rkey()
}

pub fn a_window_opens_and_closes<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let (left, right) = world.connect();
    let mut source = world.buffer(0, 64);
    source.fill(1);
    let sink = world.buffer(1, 256);
    let Some(mut window) = world.window(1) else { return };
    for _ in 0..3 {
        let rkey = open(&mut world, right, &mut window, &sink);
        let write = Op::RdmaWrite { remote_addr: sink.addr() + 64, rkey };
        world.post(left, 1, write, &[source.sge(0, 64)]);
        world.expect(0, 1, WcStatus::SUCCESS);
        assert_eq!(sink.read(64, 64), source.all());
        world.post(right, 51, Op::LocalInvalidate { rkey }, &[]);
        let wc = world.expect(1, 51, WcStatus::SUCCESS);
        assert_eq!(wc.opcode, WcOpcode::LOCAL_INVALIDATE);
    }
    let write = Op::RdmaWrite { remote_addr: sink.addr() + 64, rkey: window.rkey() };
    source.fill(2);
    world.post(left, 2, write, &[source.sge(0, 64)]);
    world.expect(0, 2, WcStatus::REMOTE_ACCESS_ERROR);
    assert_ne!(sink.read(64, 64), source.all(), "written through a closed window");
}

pub fn a_window_grants_no_more_than_it_says<B: Bench>(bench: B) {
    let mut bench = bench;
    for (offset, length) in [(63, 1), (128, 1), (64, 65), (0, 256)] {
        let mut world = World::new(bench);
        let (left, right) = world.connect();
        let mut source = world.buffer(0, 256);
        source.fill(1);
        let sink = world.buffer(1, 256);
        let Some(mut window) = world.window(1) else { return };
        let rkey = open(&mut world, right, &mut window, &sink);
        let write = Op::RdmaWrite { remote_addr: sink.addr() + offset, rkey };
        world.post(left, 1, write, &[source.sge(0, length)]);
        if world.has(Fault::WindowIsItsRegion) {
            world.expect(0, 1, WcStatus::SUCCESS);
            assert_eq!(sink.read(offset as usize, length), source.read(0, length));
        } else {
            world.expect(0, 1, WcStatus::REMOTE_ACCESS_ERROR);
            assert_eq!(sink.all(), vec![0; 256]);
        }
        bench = world.bench;
    }
}

pub fn a_window_serves_its_queue_pair_only<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let (_left, right) = world.connect();
    let (other_left, _other_right) = world.connect();
    let mut source = world.buffer(0, 64);
    source.fill(1);
    let sink = world.buffer(1, 256);
    let Some(mut window) = world.window(1) else { return };
    let rkey = open(&mut world, right, &mut window, &sink);
    let write = Op::RdmaWrite { remote_addr: sink.addr() + 64, rkey };
    world.post(other_left, 1, write, &[source.sge(0, 64)]);
    world.expect(0, 1, WcStatus::REMOTE_ACCESS_ERROR);
    assert_eq!(sink.all(), vec![0; 256]);
}

pub fn a_send_closes_the_peers_window<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let (left, right) = world.connect();
    let source = world.buffer(0, 64);
    let sink = world.buffer(1, 256);
    let Some(mut window) = world.window(1) else { return };
    let rkey = open(&mut world, right, &mut window, &sink);
    world.recv(right, 1, &[sink.sge(0, 64)]);
    let write = Op::RdmaWrite { remote_addr: sink.addr() + 64, rkey };
    world.send(left, 2, write, SendFlags::NONE, &[source.sge(0, 64)]);
    let sges = [source.sge(0, 16)];
    world.send(left, 3, Op::SendWithInvalidate { rkey }, SendFlags::NONE, &sges);
    world.flush(left);
    let wc = world.expect(1, 1, WcStatus::SUCCESS);
    let reported = (!world.has(Fault::InvalidateIsNotReported)).then_some(rkey);
    assert_eq!(wc.invalidated(), reported, "{wc:?}");
    world.expect(0, 2, WcStatus::SUCCESS);
    world.expect(0, 3, WcStatus::SUCCESS);
    world.post(left, 4, write, &[source.sge(0, 64)]);
    world.expect(0, 4, WcStatus::REMOTE_ACCESS_ERROR);
}

pub fn a_region_is_never_invalidated<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let (left, right) = world.connect();
    let (other_left, _other_right) = world.connect();
    let mut source = world.buffer(0, 64);
    source.fill(1);
    let sink = world.buffer(1, 256);
    world.recv(right, 1, &[sink.sge(0, 64)]);
    world.post(left, 2, Op::SendWithInvalidate { rkey: sink.rkey() }, &[source.sge(0, 16)]);
    let wc = world.completion(0);
    assert_eq!(wc.is_success(), world.has(Fault::RefusedInvalidateSucceeds), "{wc:?}");
    let wc = world.completion(1);
    assert!(!wc.is_success(), "{wc:?}");
    // The region still serves others.
    let write = Op::RdmaWrite { remote_addr: sink.addr() + 64, rkey: sink.rkey() };
    world.post(other_left, 3, write, &[source.sge(0, 64)]);
    world.expect(0, 3, WcStatus::SUCCESS);
    assert_eq!(sink.read(64, 64), source.all());
}

pub fn an_open_window_is_not_opened_again<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let (_left, right) = world.connect();
    let sink = world.buffer(1, 256);
    let Some(mut window) = world.window(1) else { return };
    open(&mut world, right, &mut window, &sink);
    let bind = window.bind(sink.region(), sink.addr(), 64, Access::REMOTE_READ);
    world.post(right, 1, bind, &[]);
    let flushed = world.has(Fault::LocalFailureIsFlushed);
    world.expect(1, 1, if flushed { WcStatus::FLUSHED } else { WcStatus::WINDOW_BIND_ERROR });
}
