//! A target on a simulated network, and hosts that do everything by hand.

mod host;
mod world;

use nvme_proto::rdma_cm::{RejectStatus, Request};
use nvme_proto::{Cntlid, IntoBytes, Qid};

use host::Link;
use world::{World, two_namespaces};

fn pattern(length: usize, seed: u32) -> Vec<u8> {
    (0..length as u32).map(|i| (i.wrapping_add(seed).wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn what_is_written_is_read() {
    let mut world = World::new(&two_namespaces());
    let host = world.add_host();
    let admin = world.admin(host);
    let io = world.io(admin, 1, 32);
    for (slba, length) in [(0, 512), (1, 4096), (100, 65_536), (0, 1 << 20)] {
        let bytes = pattern(length, slba as u32);
        world.write(io, 1, slba, &bytes);
        assert!(world.read(io, 1, slba, length) == bytes, "{length} bytes at {slba}");
    }
    assert_eq!(world.read(io, 2, 0, 4096), vec![0; 4096]);
}

#[test]
fn connections_are_refused_with_the_reason() {
    let mut world = World::new(&two_namespaces());
    let host = world.add_host();
    let request = |qid, receive, send| Request::new(Qid(qid), Cntlid(0), receive, send);
    let mut format = request(0, 32, 32).as_bytes().to_vec();
    format[0] = 1;
    for (private, status) in [
        (request(0, 32, 32).as_bytes()[..8].to_vec(), RejectStatus::INVALID_RECFMT),
        (format, RejectStatus::INVALID_RECFMT),
        (request(1000, 32, 32).as_bytes().to_vec(), RejectStatus::INVALID_QID),
        (request(0, 64, 64).as_bytes().to_vec(), RejectStatus::INVALID_HSQSIZE),
        (request(0, 0, 32).as_bytes().to_vec(), RejectStatus::INVALID_HRQSIZE),
    ] {
        assert_eq!(world.link_with(host, &private), Link::Rejected(status), "{private:?}");
    }
    // Nothing is left of them.
    let admin = world.admin(host);
    world.io(admin, 1, 128);
}
#[test]
fn debug_it() {
    tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).init();
    let mut world = World::new(&two_namespaces());
    let host = world.add_host();
    let admin = world.admin(host);
    let (on, link) = world.link(host, 1, 32);
    println!("{link:?} {:?}", world.now);
    world.run_for(std::time::Duration::from_millis(10));
    println!("{:?} {:?}", world.state(on), world.target.stats());
    let c = world.nvme_connect(on, Cntlid(1), 32);
}
