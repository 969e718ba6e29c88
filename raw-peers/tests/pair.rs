//! A raw host and a raw target with each other, over a simulated network.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nvme_proto::rdma_cm::{ConnectAccept, ConnectRequest, Reject, RejectStatus};
use nvme_proto::{Cid, Cntlid, Cqe, IntoBytes, Qid, Sgl};
use raw_peers::{
    RawHost, RawHostShape, RawLinkState, RawReceives, RawTarget, RawTargetEvent, RawTargetShape,
};
use rdma::sim::{Sim, SimConfig, SimNetwork};
use rdma::{ConnId, ConnParams, Op, Time};

const HOST: [u8; 4] = [10, 0, 0, 1];
const TARGET: [u8; 4] = [10, 0, 0, 2];

struct Peers {
    now: Time,
    network: SimNetwork,
    host: RawHost<Sim>,
    target: RawTarget<Sim>,
    events: Vec<RawTargetEvent>,
}

impl Peers {
    fn new() -> Self {
        let network = SimNetwork::new(1, SimConfig::default());
        let open = |ip: [u8; 4]| network.device(IpAddr::from(ip), 1).unwrap();
        let host = RawHostShape {
            queue_pairs: 2,
            sends: 8,
            receives: 4,
            capsules: 2,
            capsule_bytes: 128,
            data_bytes: 256,
            timeout: Duration::from_secs(1),
        };
        let target = RawTargetShape {
            queue_pairs: 2,
            sends: 8,
            receives: 4,
            capsule_bytes: 128,
            places: 8,
            place_bytes: 64,
            data_bytes: 256,
        };
        Self {
            now: Time::from_nanos(1),
            host: RawHost::new(open(HOST), host),
            target: RawTarget::new(open(TARGET), address(), target),
            network,
            events: Vec::new(),
        }
    }

    /// Advances time by a second; returns the target's events.
    fn run(&mut self) -> Vec<RawTargetEvent> {
        let until = self.now + Duration::from_secs(1);
        while self.now < until {
            let mut busy = self.host.turn(self.now);
            while let Some(event) = self.target.poll(self.now) {
                busy = true;
                if !matches!(event, RawTargetEvent::Other) {
                    self.events.push(event);
                }
            }
            self.target.flush(self.now);
            let next = [self.host.deadline(), self.target.deadline(), self.network.next_event()];
            match next.into_iter().flatten().min() {
                _ if busy => {}
                Some(next) => self.now = next.max(self.now + Duration::from_nanos(100)),
                None => break,
            }
        }
        std::mem::take(&mut self.events)
    }

    /// A link, and the connection of the target that belongs to it.
    fn connect(&mut self, receives: RawReceives) -> (usize, ConnId) {
        let request = ConnectRequest::new(Qid(1), Cntlid(0), 4, 4);
        let params = RawHost::<Sim>::request(request.as_bytes());
        let link = self.host.dial(self.now, address(), params, receives);
        let events = self.run();
        let [RawTargetEvent::Request { conn, params }] = events[..] else { panic!("{events:?}") };
        assert_eq!(params.private_data.as_slice()[..32], *request.as_bytes());
        (link, conn)
    }

    fn accept(&mut self, conn: ConnId) {
        let params = RawHost::<Sim>::request(ConnectAccept::new(3).as_bytes());
        let params = ConnParams { initiator_depth: 4, ..params };
        assert!(self.target.accept(self.now, conn, &params, 4));
        assert!(self.run().is_empty());
    }
}

fn address() -> SocketAddr {
    (TARGET, 4420).into()
}

#[test]
fn a_capsule_and_its_data_go_both_ways() {
    let mut peers = Peers::new();
    let (link, conn) = peers.connect(RawReceives { at_first: 1, later: 1 });
    peers.accept(conn);
    assert_eq!(peers.host.links[link].state, RawLinkState::Up(3));

    peers.host.put(0, b"from the host");
    peers.host.send(link, b"a capsule").unwrap();
    let events = peers.run();
    let [RawTargetEvent::Capsule { bytes, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(bytes, b"a capsule");

    let Sgl::Keyed { address, key, .. } = peers.host.keyed(0, 13) else { panic!("it is keyed") };
    let fetch = Op::RdmaRead { remote_addr: address, rkey: key };
    peers.target.push(conn, 7, fetch, peers.target.data(100, 13)).unwrap();
    let events = peers.run();
    assert!(matches!(events[..], [RawTargetEvent::Fetched { wr_id: 7, .. }]), "{events:?}");
    assert!(peers.target.get(100, 13).eq(*b"from the host"));

    let give = Op::RdmaWrite { remote_addr: address + 100, rkey: key };
    peers.target.send(conn, give, b"from the target").unwrap();
    for cid in 0..3 {
        let cqe = Cqe::success(Cid(cid));
        peers.target.send(conn, Op::Send, cqe.as_bytes()).unwrap();
    }
    peers.run();
    assert!(peers.host.get(100, 15).eq(*b"from the target"));
    let cids = |peers: &Peers| -> Vec<u16> {
        peers.host.links[link].responses.iter().map(|cqe| cqe.cid().0).collect()
    };
    assert_eq!(cids(&peers), [0, 1], "there is no receive for the third");
    peers.host.post_receives(link, 1);
    peers.run();
    assert_eq!(cids(&peers), [0, 1, 2]);

    peers.host.disconnect(peers.now, link);
    let events = peers.run();
    assert!(matches!(events[..], [RawTargetEvent::Gone { .. }]), "{events:?}");
    assert_eq!(peers.host.links[link].state, RawLinkState::Down);
}

#[test]
fn rejects_have_a_reason() {
    let mut peers = Peers::new();
    let (link, conn) = peers.connect(RawReceives::once(0));
    let reject = Reject::new(RejectStatus::NO_RESOURCES);
    peers.target.reject(peers.now, conn, reject.as_bytes());
    peers.run();
    let state = peers.host.links[link].state;
    assert_eq!(state, RawLinkState::Rejected(RejectStatus::NO_RESOURCES));
}

#[test]
fn deregistered_memory_ends_its_users_connection() {
    let mut peers = Peers::new();
    let (link, conn) = peers.connect(RawReceives::once(1));
    peers.accept(conn);
    let Sgl::Keyed { address, key, .. } = peers.host.keyed(0, 13) else { panic!("it is keyed") };
    peers.host.replace_memory();
    let give = Op::RdmaWrite { remote_addr: address, rkey: key };
    peers.target.send(conn, give, b"too late").unwrap();
    peers.run();
    assert_eq!(peers.host.links[link].state, RawLinkState::Down);
}
