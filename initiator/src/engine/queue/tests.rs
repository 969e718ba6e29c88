//! Tests of the host's queues.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nvme_proto::FromBytes;
use rdma::sim::{Sim, SimConfig, SimNetwork};
use rdma::{ConnOptions, ConnParams, Time};

use super::*;
use crate::engine::arena::ArenaKey;
use crate::engine::link::Link;
use crate::engine::wire::NewQueue;

#[test]
fn as_many_slots_as_work_requests_suffice_for() {
    type Any = HostQueue<()>;
    for max_wr in 0..5000 {
        let slots = Any::slots(max_wr);
        assert!(slots == 0 || Any::send_wr(slots) <= max_wr, "{max_wr}");
        assert!(slots == Any::MAX_SLOTS || Any::send_wr(slots + 1) > max_wr, "{max_wr}");
    }
    assert_eq!(Any::slots(u32::MAX), Any::MAX_SLOTS);
}

#[test]
fn unacknowledged_sends_leave_the_queue_room() {
    for slots in 1..=64 {
        let answered = answer_without_acknowledging(slots);
        assert!(answered >= usize::from(slots), "{answered} of {slots}");
    }
}

/// Issues commands as long as there is room, and answers each, on a queue pair that is never
/// connected, so that no SEND completes. Returns how many there were.
fn answer_without_acknowledging(slots: u16) -> usize {
    let local: IpAddr = [10, 0, 0, 1].into();
    let peer = SocketAddr::from(([10, 0, 0, 2], 4420));
    let network = SimNetwork::new(1, SimConfig::default());
    let device = network.device(local, 1).unwrap();
    let mut link = Link::<Sim>::new(device).unwrap();
    let timeout = Duration::from_secs(1);
    let conn = link.resolve(Time::ZERO, peer, timeout, &ConnOptions::default()).unwrap();
    while link.next_event(Time::ZERO, false).is_none() {}
    let (key, controller) = (QueueKey::at(0), ControllerKey::at(0));
    let (scope, send_wr) = (link.domain().unwrap().scope, HostQueue::<()>::send_wr(slots));
    let new = NewQueue { key, conn, slots, send_wr, scope: &scope };
    link.connect(Time::ZERO, new, &ConnParams::default()).unwrap();
    let mut queue: HostQueue<()> = HostQueue::new(key, controller, Qid(1), conn, slots);
    let mut answered = 0;
    while queue.room() > 0 {
        let data = Data::Keyed { address: 0, length: 512, rkey: 0 };
        let sqe = Sqe::read_from_bytes(&[0; SQE_BYTES]).unwrap();
        queue.issue(&mut link, sqe, data, ()).unwrap();
        let (cid, ()) = queue.awaiting().next().unwrap();
        let received = queue.received(&mut link, Cqe::success(cid), None);
        assert!(received.unwrap().is_some());
        answered += 1;
    }
    answered
}
