//! Tests of the host's queues.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rdma::sim::{Sim, SimConfig, SimNetwork};
use rdma::{ConnOptions, ConnectionManager, GroupConfig, QpConfig, Time};

use super::*;

#[test]
fn as_many_slots_as_work_requests_suffice_for() {
    type Any = HostQueue<Sim, ()>;
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
    let mut cm = device.connection_manager().unwrap();
    let config = GroupConfig { completions: 64, queue_pairs: 1, completion_vector: 0 };
    let mut group = device.group(&config).unwrap();
    let timeout = Duration::from_secs(1);
    let conn = cm.resolve(Time::ZERO, peer, timeout, &ConnOptions::default()).unwrap();
    while cm.poll(Time::ZERO).is_none() {}
    let config = QpConfig {
        send_wr: HostQueue::<Sim, ()>::send_wr(slots),
        recv_wr: 1024,
        send_sge: 2,
        recv_sge: 1,
        inline_bytes: 0,
    };
    let qp = group.adopt(cm.create_qp(conn, &group.handle(), &device, &config).unwrap());
    let (queue, controller) = (QueueKey::at(0), ControllerKey::at(0));
    let mut queue: HostQueue<Sim, ()> =
        HostQueue::new(&device, queue, controller, Qid(1), conn, qp, slots).unwrap();
    let mut answered = 0;
    while queue.room() > 0 {
        let data = Data::Keyed { address: 0, length: 512, rkey: 0 };
        let sqe = Sqe::read_from_bytes(&[0; SQE_BYTES]).unwrap();
        queue.issue(&device, &mut group, sqe, data, ()).unwrap();
        let (cid, ()) = queue.awaiting().next().unwrap();
        queue.memory.write_response(0, &Cqe::success(cid));
        let received = queue.received(&mut group, 0, CQE_BYTES as u32, None);
        assert!(received.unwrap().is_some());
        answered += 1;
    }
    answered
}

impl CapsuleMemory<Sim> {
    fn write_response(&mut self, index: u16, cqe: &Cqe) {
        let bytes = cqe.as_bytes();
        // SAFETY: within the mapping; no queue pair receives.
        unsafe {
            let to = self.memory.memory().address().as_ptr().add(self.response_offset(index));
            ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }
}
