//! Tests of the engine.

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::super::wire::{Arrived, WireCounters};
use super::*;

fn peer(paths: &mut Paths) -> Peer {
    let endpoint: SocketAddr = "192.0.2.1:4791".parse().unwrap();
    Peer {
        route: ConnectionRoute {
            peer: endpoint,
            sender: SenderIndex::FIRST,
            udp_source: None,
            traffic_class: 0,
        },
        path: paths.join(endpoint),
        qpn: Qpn::new(7),
        announce: false,
        identifications: Identifications::Small(0),
    }
}

fn datagram() -> Datagram<'static> {
    let from = "192.0.2.1:50000".parse().unwrap();
    let to = "192.0.2.2:4791".parse().unwrap();
    Datagram::new(from, to, IpId::UNKNOWN, &[])
}

#[test]
fn a_peer_of_ours_sends_from_one_port() {
    let mut peer = peer(&mut Paths::default());
    let sends_from = |peer: &Peer, from: &str| peer.sends_from(from.parse().unwrap());
    assert!(sends_from(&peer, "192.0.2.1:50000") && sends_from(&peer, "192.0.2.1:50001"));
    peer.route.udp_source = Some(50_000);
    assert!(sends_from(&peer, "192.0.2.1:50000"));
    assert!(!sends_from(&peer, "192.0.2.1:50001") && !sends_from(&peer, "192.0.2.3:50000"));
}

#[test]
fn a_peer_is_held_to_small_identifications() {
    let mut peer = peer(&mut Paths::default());
    for index in 0..TRUSTED_AFTER {
        assert!(peer.accepts(&datagram(), Identification::segment(index % 15)));
    }
    assert!(!peer.accepts(&datagram(), Identification::segment(SMALL_ID)));
    let fragmentable = Identification { id: 0, dont_fragment: false };
    assert!(!peer.accepts(&datagram(), fragmentable));
    assert!(peer.accepts(&datagram(), Identification::ZERO));
}

/// The kernel's software device counts, for all its connections together: a connection may
/// begin anywhere.
#[test]
fn a_counting_peer_may_use_large_identifications() {
    for start in 0..=2 * SMALL_ID {
        let mut peer = peer(&mut Paths::default());
        for id in (start..).take(1000) {
            assert!(peer.accepts(&datagram(), Identification::segment(id)), "{start}: {id}");
        }
    }
}

/// Others draw them at random, so the first may be small by chance.
#[test]
fn any_identifications_of_a_peer_are_accepted() {
    let mut peer = peer(&mut Paths::default());
    for id in [3, 40_000, 1, 2, 65_535, 9] {
        assert!(peer.accepts(&datagram(), Identification::segment(id)));
    }
    for _ in 0..100 {
        assert!(peer.accepts(&datagram(), Identification::ZERO));
    }
    assert!(peer.accepts(&datagram(), Identification::segment(SMALL_ID)));
}

#[test]
fn an_overflow_is_told_for_a_while() {
    let at = |milliseconds| Time::ZERO + Duration::from_millis(milliseconds);
    let mut overflow = Overflow::default();
    for (now, count, told) in
        [(0, 0, false), (1, 0, false), (2, 5, true), (51, 5, true), (52, 5, false), (53, 6, true)]
    {
        overflow.note(at(now), count);
        assert_eq!(overflow.lately, told, "after {now} ms");
    }
}

/// Counts what is queued.
#[derive(Default)]
struct Counting {
    queued: usize,
    sent: usize,
}

impl Wire for Counting {
    fn receive(&mut self, _: Time, _: impl FnMut(Datagram<'_>)) -> Arrived {
        Arrived::default()
    }

    unsafe fn send(&mut self, _: Time, _: &Outgoing<'_>) {
        self.queued += 1;
    }

    fn flush(&mut self, _: Time) {
        self.sent += std::mem::take(&mut self.queued);
    }

    fn discard(&mut self) {
        self.queued = 0;
    }

    fn next_unreachable(&mut self) -> Option<SocketAddr> {
        None
    }

    fn receiver(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn sender(&self, _: SenderIndex) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> WireCounters {
        WireCounters::default()
    }
}

#[test]
fn packets_gathered_before_a_panic_are_not_sent() {
    for panics in [false, true] {
        let mut wire = Counting::default();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let unsent = Unsent(&mut wire);
            let to = "192.0.2.1:4791".parse().unwrap();
            let packet = Outgoing {
                to: &to,
                sender: SenderIndex::FIRST,
                destination_qpn: 7,
                traffic_class: 0,
                headers: &[0; 12],
                pieces: &[],
                pad_bytes: 0,
                continues: false,
            };
            // SAFETY: the packet has no pieces.
            unsafe { unsent.0.send(Time::ZERO, &packet) };
            assert!(!panics, "on purpose");
        }));
        assert_eq!(outcome.is_err(), panics);
        wire.flush(Time::ZERO);
        assert_eq!(wire.sent, usize::from(!panics));
    }
}
