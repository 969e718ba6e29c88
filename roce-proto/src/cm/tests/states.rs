//! Transitions of connections in each state.

use core::net::SocketAddr;
use core::time::Duration;

use super::pair::*;
use crate::cm::*;
use crate::{PathMtu, Psn, Qpn};

#[test]
fn both_sides_agree() {
    let mut pair = Pair::new();
    let connect = connect_to(target_address(), 0x100);
    let host = pair.host.manager.connect(pair.now, &connect).unwrap();
    pair.reach_target();
    let ManagerEvent::Request { connection: target, request, .. } = pair.target.event() else {
        panic!()
    };
    assert_eq!(request.peer, host_address());
    let addresses = request.addresses.unwrap();
    assert_eq!(addresses.source, connect.source);
    assert_eq!(addresses.destination, target_address().ip());
    assert_eq!((request.responder_resources, request.initiator_depth), (4, 16));
    assert_eq!((request.retry_count, request.rnr_retry_count), (6, 5));
    assert_eq!(&request.private_data[..6], b"please");
    assert_eq!(request.private_data[6..], [0; 50]);

    let theirs = pair.target.manager.accept(pair.now, target, &accept_with(0x200)).unwrap();
    pair.reach_host();
    let ManagerEvent::Accepted { connection, agreement: ours, private_data } = pair.host.event()
    else {
        panic!()
    };
    assert_eq!(connection, host);
    assert_eq!(&private_data[..7], b"welcome");
    assert_eq!(private_data[7..], [0; 189]);
    let common = Agreement {
        peer: target_address(),
        peer_udp_source: None,
        selective_recovery: false,
        local_qpn: Qpn::new(0x100),
        remote_qpn: Qpn::new(0x200),
        send_psn: Psn::new(0x200 * 1000),
        recv_psn: Psn::new(0x100 * 1000),
        path_mtu: PathMtu::Bytes4096,
        responder_resources: 16,
        initiator_depth: 4,
        retry_count: 6,
        rnr_retry_count: 7,
        ack_timeout: TimeoutExponent::saturating(17),
        traffic_class: 0,
    };
    assert_eq!(ours, common);
    let mirrored = Agreement {
        peer: host_address(),
        local_qpn: common.remote_qpn,
        remote_qpn: common.local_qpn,
        send_psn: common.recv_psn,
        recv_psn: common.send_psn,
        responder_resources: 8,
        initiator_depth: 16,
        rnr_retry_count: 5,
        ..common
    };
    assert_eq!(theirs, mirrored);

    pair.target.assert_no_event();
    pair.host.manager.confirm(host).unwrap();
    pair.reach_target();
    assert_eq!(pair.target.event(), ManagerEvent::Established { connection: target });
    assert_eq!(pair.host.manager.deadline(), None);
    assert_eq!(pair.target.manager.deadline(), None);
}

#[test]
fn a_lost_request_is_sent_again() {
    let mut pair = Pair::new();
    pair.host.manager.connect(pair.now, &connect_to(target_address(), 2)).unwrap();
    let first = pair.host.sent();
    assert_eq!(pair.pass_to_deadline(), Duration::from_millis(200));
    let second = pair.host.sent();
    assert_eq!(first, second);
    pair.target.receive(pair.now, host_address(), &second);
    pair.target.request();
}

#[test]
fn an_unanswered_request_fails_with_a_reject() {
    let mut pair = Pair::new();
    let host = pair.host.manager.connect(pair.now, &connect_to(target_address(), 2)).unwrap();
    let mut sent = pair.host.sent().len();
    let longest = TimeoutExponent::saturating(20).duration();
    let mut expected = Duration::from_millis(200);
    let event = loop {
        let passed = pair.pass_to_deadline();
        assert_eq!(passed, expected);
        expected = (expected * 2).min(longest);
        if let Some(event) = pair.host.manager.poll_event() {
            break event;
        }
        sent += pair.host.sent().len();
    };
    assert_eq!(sent, 16);
    assert_eq!(
        event,
        ManagerEvent::Failed { connection: host, failure: ConnectionFailure::Timeout }
    );
    let (_, ManagementMessage::Rej(rej)) = pair.host.sent_one() else { panic!() };
    assert_eq!((rej.reason, rej.rejected), (RejectReason::TIMEOUT, RejectedMessage::REQ));
    assert_eq!(rej.info(), 0xA_u64.to_be_bytes());
    assert_eq!(pair.host.manager.deadline(), None);
    pair.host.manager.close(pair.now, host);
    assert_eq!(pair.host.manager.connections(), 0);
}

#[test]
fn a_request_that_comes_twice_makes_one_connection() {
    let mut pair = Pair::new();
    pair.host.manager.connect(pair.now, &connect_to(target_address(), 2)).unwrap();
    let req = pair.host.sent();
    pair.target.receive(pair.now, host_address(), &req);
    let target = pair.target.request();

    // An MRA, while the consumer has not answered.
    pair.target.receive(pair.now, host_address(), &req);
    pair.target.assert_no_event();
    let (wait, ManagementMessage::Mra(mra)) = pair.target.sent_one() else { panic!() };
    assert_eq!(mra.received, ReceivedMessage::REQ);
    pair.host.receive(pair.now, target_address(), &[wait]);
    let patience = pair.host.manager.deadline().unwrap() - pair.now;
    assert_eq!(patience, mra.service_timeout.duration() + Duration::from_millis(200));

    // When it was accepted: the same reply.
    pair.target.manager.accept(pair.now, target, &accept_with(3)).unwrap();
    let rep = pair.target.sent();
    pair.target.receive(pair.now, host_address(), &req);
    assert_eq!(pair.target.sent(), rep);

    // When it is established: nothing.
    pair.host.receive(pair.now, target_address(), &rep);
    let ManagerEvent::Accepted { connection, .. } = pair.host.event() else { panic!() };
    pair.host.manager.confirm(connection).unwrap();
    pair.reach_target();
    pair.target.receive(pair.now, host_address(), &req);
    assert_eq!(pair.target.sent(), []);
    assert_eq!(pair.target.event(), ManagerEvent::Established { connection: target });

    // When it has ended: it had its connection.
    pair.host.manager.disconnect(pair.now, connection);
    pair.reach_target();
    pair.reach_host();
    pair.target.manager.close(pair.now, target);
    pair.target.receive(pair.now, host_address(), &req);
    pair.target.assert_no_event();
    let (_, ManagementMessage::Rej(rej)) = pair.target.sent_one() else { panic!() };
    assert_eq!(rej.reason, RejectReason::STALE_CONNECTION);
    assert_eq!(pair.target.manager.connections(), 0);
}

#[test]
fn a_delaying_peer_can_not_delay_for_ever() {
    let mut pair = Pair::new();
    let host = pair.host.manager.connect(pair.now, &connect_to(target_address(), 2)).unwrap();
    let (_, ManagementMessage::Req(req)) = pair.host.sent_one() else { panic!() };
    let mra = ManagementMessage::Mra(Mra {
        local_comm_id: CommId(77),
        remote_comm_id: req.local_comm_id,
        received: ReceivedMessage::REQ,
        service_timeout: TimeoutExponent::MAX,
        private_data: [0; Mra::PRIVATE_DATA_BYTES],
    })
    .to_mad(0);
    for _ in 0..100 {
        pair.host.manager.handle_datagram(pair.now, target_address(), &mra, |_| None);
    }
    let mut rounds = 0;
    while pair.host.manager.poll_event().is_none() {
        let passed = pair.pass_to_deadline();
        assert!(passed < Duration::from_secs(300), "{passed:?}");
        pair.host.manager.handle_datagram(pair.now, target_address(), &mra, |_| None);
        rounds += 1;
        assert!(rounds < 40);
    }
    pair.host.manager.close(pair.now, host);
}

#[test]
fn a_repeated_reply_draws_a_lost_rtu_again() {
    let mut pair = Pair::new();
    let (host, target) = pair.replied(2);
    pair.host.manager.confirm(host).unwrap();
    let rtu = pair.host.sent();
    pair.pass_to_deadline();
    pair.reach_host();
    assert_eq!(pair.host.sent(), rtu);
    pair.host.assert_no_event();
    pair.target.receive(pair.now, host_address(), &rtu);
    pair.target.receive(pair.now, host_address(), &rtu);
    assert_eq!(pair.target.event(), ManagerEvent::Established { connection: target });
    pair.target.assert_no_event();
}

#[test]
fn a_packet_replaces_a_lost_rtu() {
    let mut pair = Pair::new();
    let (host, target) = pair.replied(2);
    pair.host.manager.confirm(host).unwrap();
    let rtu = pair.host.sent();
    pair.target.manager.packet_arrived(target);
    assert_eq!(pair.target.event(), ManagerEvent::Established { connection: target });
    assert_eq!(pair.target.manager.deadline(), None);
    pair.target.manager.packet_arrived(target);
    pair.target.receive(pair.now, host_address(), &rtu);
    pair.target.assert_no_event();
}

#[test]
fn a_repeated_reply_draws_an_mra_before_confirmation() {
    let mut pair = Pair::new();
    let (host, target) = pair.replied(2);
    pair.pass_to_deadline();
    pair.reach_host();
    pair.host.assert_no_event();
    let (wait, ManagementMessage::Mra(mra)) = pair.host.sent_one() else { panic!() };
    assert_eq!(mra.received, ReceivedMessage::REP);
    pair.target.receive(pair.now, host_address(), &[wait]);
    assert!(pair.target.manager.deadline().unwrap() - pair.now > mra.service_timeout.duration());
    pair.host.manager.confirm(host).unwrap();
    pair.reach_target();
    assert_eq!(pair.target.event(), ManagerEvent::Established { connection: target });
}

#[test]
fn a_reply_without_an_answer_fails() {
    let mut pair = Pair::new();
    let (host, target) = pair.accepted(2);
    pair.target.sent();
    let event = loop {
        let deadline = pair.target.manager.deadline().unwrap();
        pair.target.manager.handle_deadline(deadline);
        if let Some(event) = pair.target.manager.poll_event() {
            break event;
        }
        pair.target.sent();
    };
    assert_eq!(
        event,
        ManagerEvent::Failed { connection: target, failure: ConnectionFailure::Timeout }
    );
    // A peer that is still there asks again, so that nothing is sent.
    assert_eq!(pair.target.sent(), []);
    let request = pair.host.sent();
    assert_eq!(request, []);
    pair.pass_to_deadline();
    pair.reach_target();
    pair.reach_host();
    let ManagerEvent::Rejected { connection, reason, .. } = pair.host.event() else { panic!() };
    assert_eq!((connection, reason), (host, RejectReason::STALE_CONNECTION));
}

/// A peer that said "wait" is at its address.
#[test]
fn the_active_side_bounds_the_repeated_replies() {
    let config = ManagerConfig { max_retries: 3, ..ManagerConfig::new(0xA, 1) };
    let mut pair = Pair::with(config, ManagerConfig::new(0xB, 2));
    pair.replied(2);
    pair.pass_to_deadline();
    pair.reach_host();
    pair.reach_target();
    let mut replies = 2;
    while let Some(deadline) = pair.target.manager.deadline() {
        pair.target.manager.handle_deadline(deadline);
        let sent = pair.target.sent();
        replies += sent
            .iter()
            .filter(|sent| {
                matches!(ManagementMessage::parse(&sent.mad), Ok((_, ManagementMessage::Rep(_))))
            })
            .count();
    }
    assert_eq!(replies, 4);
}

#[test]
fn a_service_without_listener_rejects() {
    let mut pair = Pair::new();
    let connect =
        ConnectParams { service_id: ServiceId::tcp(1), ..connect_to(target_address(), 2) };
    let host = pair.host.manager.connect(pair.now, &connect).unwrap();
    pair.reach_target();
    pair.target.assert_no_event();
    assert_eq!(pair.target.manager.connections(), 0);
    pair.reach_host();
    let ManagerEvent::Rejected { connection, reason, .. } = pair.host.event() else { panic!() };
    assert_eq!((connection, reason), (host, RejectReason::INVALID_SERVICE_ID));
}

#[test]
fn a_listener_that_left_takes_nothing_more() {
    let mut pair = Pair::new();
    assert_eq!(pair.target.manager.listen(SERVICE), Err(Error::ServiceInUse));
    let listener = pair.target.manager.listen(ServiceId::tcp(1)).unwrap();
    pair.target.manager.unlisten(listener);
    assert!(pair.target.manager.listen(ServiceId::tcp(1)).is_ok());
    assert_eq!(pair.target.manager.listen(SERVICE), Err(Error::ServiceInUse));
}

#[test]
fn a_rejected_request_draws_the_same_reject_again() {
    let mut pair = Pair::new();
    let connect = connect_to(target_address(), 2);
    let host = pair.host.manager.connect(pair.now, &connect).unwrap();
    let req = pair.host.sent();
    pair.target.receive(pair.now, host_address(), &req);
    let target = pair.target.request();
    pair.target.manager.reject(pair.now, target, &[0, 0, 6, 0]).unwrap();
    assert_eq!(pair.target.manager.connections(), 0);
    let lost = pair.target.sent();
    pair.target.receive(pair.now, host_address(), &req);
    pair.target.assert_no_event();
    let again = pair.target.sent();
    assert_eq!(again, lost);
    pair.host.receive(pair.now, target_address(), &again);
    let ManagerEvent::Rejected { connection, reason, private_data } = pair.host.event() else {
        panic!()
    };
    assert_eq!((connection, reason), (host, RejectReason::CONSUMER_DEFINED));
    assert_eq!((&private_data[..4], private_data.len()), (&[0, 0, 6, 0][..], 148));
    pair.host.receive(pair.now, target_address(), &again);
    pair.host.assert_no_event();
}

/// A request as the host would send it, changed.
fn changed_request(pair: &mut Pair, change: impl FnOnce(&mut Req)) -> RejectReason {
    pair.host.manager.connect(pair.now, &connect_to(target_address(), 2)).unwrap();
    let (_, ManagementMessage::Req(mut req)) = pair.host.sent_one() else { panic!() };
    change(&mut req);
    let mad = ManagementMessage::Req(req).to_mad(5);
    pair.target.manager.handle_datagram(pair.now, host_address(), &mad, |_| None);
    pair.target.assert_no_event();
    assert_eq!(pair.target.manager.connections(), 0);
    let (sent, ManagementMessage::Rej(rej)) = pair.target.sent_one() else { panic!() };
    assert_eq!(ManagementMessage::parse(&sent.mad).unwrap().0, 5);
    assert_eq!(rej.remote_comm_id, req.local_comm_id);
    assert_eq!(rej.rejected, RejectedMessage::REQ);
    rej.reason
}

#[test]
fn requests_that_can_not_be_granted_are_rejected() {
    let mut pair = Pair::new();
    let mut reason = |change: fn(&mut Req)| changed_request(&mut pair, change);
    assert_eq!(
        reason(|req| req.transport = TransportService::UC),
        RejectReason::INVALID_TRANSPORT_SERVICE
    );
    assert_eq!(
        reason(|req| req.transport = TransportService::EXTENDED),
        RejectReason::INVALID_TRANSPORT_SERVICE
    );
    assert_eq!(reason(|req| req.path_mtu_code = 0), RejectReason::INVALID_PATH_MTU);
    assert_eq!(reason(|req| req.path_mtu_code = 6), RejectReason::INVALID_PATH_MTU);
    assert_eq!(reason(|req| req.local_qpn = Qpn::new(0)), RejectReason::UNSUPPORTED);
    assert_eq!(reason(|req| req.local_qpn = Qpn::GSI), RejectReason::UNSUPPORTED);
    assert_eq!(reason(|req| req.private_data[0] = 1), RejectReason::UNSUPPORTED);
    assert_eq!(reason(|req| req.private_data[1] = 0x50), RejectReason::UNSUPPORTED);
}

#[test]
fn the_smaller_path_mtu_wins() {
    for (ours, theirs) in [(5, 3), (3, 5), (4, 4), (5, 1)] {
        let (ours, theirs) =
            (PathMtu::from_code(ours).unwrap(), PathMtu::from_code(theirs).unwrap());
        let mut pair = Pair::with(
            ManagerConfig::new(0xA, 1),
            ManagerConfig { path_mtu: theirs, ..ManagerConfig::new(0xB, 2) },
        );
        let connect = ConnectParams { path_mtu: ours, ..connect_to(target_address(), 2) };
        pair.host.manager.connect(pair.now, &connect).unwrap();
        for _ in 0..2 {
            pair.reach_target();
            pair.reach_host();
        }
        let target = pair.target.request();
        let agreement = pair.target.manager.accept(pair.now, target, &accept_with(3)).unwrap();
        assert_eq!(agreement.path_mtu, ours.min(theirs));
        pair.reach_host();
        let ManagerEvent::Accepted { agreement, .. } = pair.host.event() else { panic!() };
        assert_eq!(agreement.path_mtu, ours.min(theirs));
    }
}

#[test]
fn a_reject_offering_the_same_mtu_is_final() {
    let mut pair = Pair::new();
    pair.host.manager.connect(pair.now, &connect_to(target_address(), 2)).unwrap();
    let (_, ManagementMessage::Req(req)) = pair.host.sent_one() else { panic!() };
    let mut info = [0; Rej::INFO_BYTES];
    info[0] = 5;
    let rej = ManagementMessage::Rej(Rej {
        local_comm_id: CommId::NONE,
        remote_comm_id: req.local_comm_id,
        rejected: RejectedMessage::REQ,
        reason: RejectReason::INVALID_PATH_MTU,
        info_length: 1,
        info,
        private_data: [0; Rej::PRIVATE_DATA_BYTES],
    });
    pair.host.manager.handle_datagram(pair.now, target_address(), &rej.to_mad(0), |_| None);
    assert!(matches!(pair.host.event(), ManagerEvent::Rejected { .. }));
}

#[test]
fn either_side_disconnects_despite_a_lost_answer() {
    let mut pair = Pair::new();
    let (host, target) = pair.established(2);
    pair.target.manager.disconnect(pair.now, target);
    pair.target.manager.disconnect(pair.now, target);
    let dreq = pair.target.sent();
    assert_eq!(dreq.len(), 1);
    pair.host.receive(pair.now, target_address(), &dreq);
    assert_eq!(pair.host.event(), ManagerEvent::Disconnected { connection: host, confirmed: true });
    let lost = pair.host.sent();
    pair.pass_to_deadline();
    pair.reach_host();
    pair.host.assert_no_event();
    let again = pair.host.sent();
    assert_eq!(again, lost);
    pair.target.assert_no_event();
    pair.target.receive(pair.now, host_address(), &again);
    assert_eq!(
        pair.target.event(),
        ManagerEvent::Disconnected { connection: target, confirmed: true }
    );
    pair.target.receive(pair.now, host_address(), &again);
    pair.target.assert_no_event();
    assert_eq!(pair.target.manager.deadline(), None);
}

#[test]
fn both_sides_may_disconnect_at_once() {
    let mut pair = Pair::new();
    let (host, target) = pair.established(2);
    pair.host.manager.disconnect(pair.now, host);
    pair.target.manager.disconnect(pair.now, target);
    let (from_host, from_target) = (pair.host.sent(), pair.target.sent());
    pair.host.receive(pair.now, target_address(), &from_target);
    pair.target.receive(pair.now, host_address(), &from_host);
    assert_eq!(pair.host.event(), ManagerEvent::Disconnected { connection: host, confirmed: true });
    assert_eq!(
        pair.target.event(),
        ManagerEvent::Disconnected { connection: target, confirmed: true }
    );
    pair.reach_target();
    pair.reach_host();
    pair.host.assert_no_event();
    pair.target.assert_no_event();
}

#[test]
fn a_disconnect_ends_without_a_peer() {
    let mut pair = Pair::new();
    let (host, _) = pair.established(2);
    let start = pair.now;
    pair.host.manager.disconnect(pair.now, host);
    while pair.host.manager.deadline().is_some() {
        pair.pass_to_deadline();
    }
    assert_eq!(
        pair.host.event(),
        ManagerEvent::Disconnected { connection: host, confirmed: false }
    );
    assert_eq!(pair.host.sent().len(), 5);
    assert!(pair.now - start < Duration::from_secs(10));
}

#[test]
fn a_disconnect_for_another_queue_pair_is_ignored() {
    let mut pair = Pair::new();
    let (host, _) = pair.established(2);
    pair.host.manager.disconnect(pair.now, host);
    let (_, ManagementMessage::Dreq(mut dreq)) = pair.host.sent_one() else { panic!() };
    dreq.remote_qpn = Qpn::new(0x999);
    let mad = ManagementMessage::Dreq(dreq).to_mad(0);
    pair.target.manager.handle_datagram(pair.now, host_address(), &mad, |_| None);
    pair.target.assert_no_event();
    assert_eq!(pair.target.sent(), []);
}

#[test]
fn a_closed_connection_disconnects_in_the_background() {
    let mut pair = Pair::new();
    let (host, target) = pair.established(2);
    pair.host.manager.close(pair.now, host);
    assert_eq!(pair.host.manager.confirm(host), Err(Error::UnknownConnection));
    pair.host.sent();
    pair.pass_to_deadline();
    pair.reach_target();
    assert_eq!(
        pair.target.event(),
        ManagerEvent::Disconnected { connection: target, confirmed: true }
    );
    pair.reach_host();
    pair.host.assert_no_event();
    assert_eq!(pair.host.manager.connections(), 0);
}

#[test]
fn closing_early_tells_the_peer() {
    for stage in 0..5 {
        let mut pair = Pair::new();
        let (host, target) = match stage {
            0 | 1 => pair.requested(2),
            2 => pair.accepted(2),
            3 | 4 => pair.replied(2),
            _ => unreachable!(),
        };
        let by_host = matches!(stage, 0 | 2 | 3);
        if by_host {
            pair.host.manager.close(pair.now, host);
        } else {
            pair.target.manager.close(pair.now, target);
        }
        let (closer, other) = if by_host {
            pair.reach_target();
            (&pair.host, &mut pair.target)
        } else {
            pair.reach_host();
            (&pair.target, &mut pair.host)
        };
        assert_eq!(closer.manager.connections(), 0, "stage {stage}");
        let event = other.event();
        assert!(matches!(event, ManagerEvent::Rejected { .. }), "stage {stage}: {event:?}");
        other.manager.close(pair.now, event.connection());
        assert_eq!(other.manager.connections(), 0, "stage {stage}");
        assert_eq!(other.manager.deadline(), None, "stage {stage}");
    }
}

#[test]
fn a_reply_to_a_forgotten_request_is_rejected() {
    let mut pair = Pair::new();
    let (host, target) = pair.accepted(2);
    pair.host.manager.close(pair.now, host);
    pair.host.sent();
    pair.reach_host();
    let (sent, ManagementMessage::Rej(rej)) = pair.host.sent_one() else { panic!() };
    assert_eq!((rej.reason, rej.rejected), (RejectReason::INVALID_COMM_ID, RejectedMessage::REP));
    pair.target.receive(pair.now, host_address(), &[sent]);
    let ManagerEvent::Rejected { connection, .. } = pair.target.event() else { panic!() };
    assert_eq!(connection, target);
}

#[test]
fn a_restarted_host_reusing_a_qpn_is_stale() {
    let mut pair = Pair::new();
    let (_, old) = pair.established(2);
    // The same adapter and queue pair, another communication id: it does not remember.
    pair.host = Side::new(host_address(), ManagerConfig::new(0xA, 99));
    pair.host.manager.connect(pair.now, &connect_to(target_address(), 2)).unwrap();
    pair.reach_target();
    pair.target.assert_no_event();
    pair.reach_host();
    let ManagerEvent::Rejected { reason, .. } = pair.host.event() else { panic!() };
    assert_eq!(reason, RejectReason::STALE_CONNECTION);
    // The host answered that it knows nothing of the old one, which ends thereby.
    pair.reach_target();
    assert_eq!(
        pair.target.event(),
        ManagerEvent::Disconnected { connection: old, confirmed: true }
    );
    pair.established(2);
}

#[test]
fn a_restarted_host_reusing_a_name_is_stale() {
    let mut pair = Pair::new();
    let (_, old) = pair.established(2);
    // The same adapter and communication id, another queue pair.
    pair.host = Side::new(host_address(), ManagerConfig::new(0xA, 1));
    pair.host.manager.connect(pair.now, &connect_to(target_address(), 7)).unwrap();
    pair.reach_target();
    pair.target.assert_no_event();
    pair.reach_host();
    let ManagerEvent::Rejected { reason, .. } = pair.host.event() else { panic!() };
    assert_eq!(reason, RejectReason::STALE_CONNECTION);
    pair.reach_target();
    assert_eq!(
        pair.target.event(),
        ManagerEvent::Disconnected { connection: old, confirmed: true }
    );
}

#[test]
fn a_restarted_host_with_new_names_connects() {
    let mut pair = Pair::new();
    pair.established(2);
    pair.host = Side::new(host_address(), ManagerConfig::new(0xC, 3));
    pair.established(2);
    assert_eq!(pair.target.manager.connections(), 2);
}

#[test]
fn a_host_may_repeat_a_forgotten_request() {
    let mut pair = Pair::new();
    let (_, old) = pair.accepted(2);
    pair.host = Side::new(host_address(), ManagerConfig::new(0xA, 99));
    pair.host.manager.connect(pair.now, &connect_to(target_address(), 2)).unwrap();
    pair.reach_target();
    assert_eq!(
        pair.target.event(),
        ManagerEvent::Failed { connection: old, failure: ConnectionFailure::Stale }
    );
    pair.target.sent();
    pair.pass_to_deadline();
    pair.reach_target();
    pair.target.request();
}

#[test]
fn a_restarted_target_reusing_a_qpn_is_stale() {
    let mut pair = Pair::new();
    let (old, _) = pair.established(2);
    pair.target = Side::new(target_address(), ManagerConfig::new(0xB, 77));
    pair.target.manager.listen(SERVICE).unwrap();
    let (new, target) = pair.requested(8);
    // The queue pair of the connection that only the host remembers.
    pair.target.manager.accept(pair.now, target, &accept_with(3)).unwrap();
    pair.reach_host();
    let failed = ManagerEvent::Failed { connection: new, failure: ConnectionFailure::Stale };
    assert_eq!(pair.host.event(), failed);
    pair.reach_target();
    let ManagerEvent::Rejected { connection, reason, .. } = pair.target.event() else { panic!() };
    assert_eq!((connection, reason), (target, RejectReason::STALE_CONNECTION));
    pair.reach_host();
    assert_eq!(pair.host.event(), ManagerEvent::Disconnected { connection: old, confirmed: true });
}

#[test]
fn a_reply_naming_a_management_qp_is_refused() {
    let mut pair = Pair::new();
    let (host, target) = pair.requested(2);
    pair.target.manager.accept(pair.now, target, &accept_with(1)).unwrap();
    pair.reach_host();
    let failed =
        ManagerEvent::Failed { connection: host, failure: ConnectionFailure::InvalidReply };
    assert_eq!(pair.host.event(), failed);
    pair.reach_target();
    let ManagerEvent::Rejected { reason, .. } = pair.target.event() else { panic!() };
    assert_eq!(reason, RejectReason::UNSUPPORTED);
}

/// The request with the longer packets comes once more, late: it must not touch the connection that
/// came of the second request.
#[test]
fn a_late_request_with_larger_mtu_is_harmless() {
    let small = ManagerConfig { path_mtu: PathMtu::Bytes1024, ..ManagerConfig::new(0xB, 2) };
    let mut pair = Pair::with(ManagerConfig::new(0xA, 1), small);
    let host = pair.host.manager.connect(pair.now, &connect_to(target_address(), 2)).unwrap();
    let first = pair.host.sent();
    pair.target.receive(pair.now, host_address(), &first);
    pair.reach_host();
    pair.reach_target();
    let target = pair.target.request();
    pair.target.receive(pair.now, host_address(), &first);
    pair.target.manager.accept(pair.now, target, &accept_with(3)).unwrap();
    pair.reach_host();
    assert!(matches!(pair.host.event(), ManagerEvent::Accepted { .. }));
    pair.host.manager.confirm(host).unwrap();
    pair.target.receive(pair.now, host_address(), &first);
    pair.reach_target();
    assert_eq!(pair.target.event(), ManagerEvent::Established { connection: target });
    pair.reach_host();
    pair.host.assert_no_event();
}

#[test]
fn an_unreachable_peer_fails_waiting_connections() {
    let mut pair = Pair::new();
    let elsewhere = SocketAddr::from(([10, 0, 0, 9], 4791));
    let lost = pair.host.manager.connect(pair.now, &connect_to(elsewhere, 2)).unwrap();
    let other = pair.host.manager.connect(pair.now, &connect_to(target_address(), 3)).unwrap();
    pair.host.sent();
    pair.established(4);
    pair.host.manager.handle_unreachable(pair.now, elsewhere);
    assert_eq!(
        pair.host.event(),
        ManagerEvent::Failed { connection: lost, failure: ConnectionFailure::Unreachable }
    );
    pair.host.assert_no_event();
    pair.host.manager.handle_unreachable(pair.now, target_address());
    assert_eq!(
        pair.host.event(),
        ManagerEvent::Failed { connection: other, failure: ConnectionFailure::Unreachable }
    );
    pair.host.assert_no_event();
}

/// Any host can forge a report that the peer is unreachable.
#[test]
fn the_passive_side_ignores_unreachable_reports() {
    let mut pair = Pair::new();
    let (host, target) = pair.replied(2);
    pair.target.manager.handle_unreachable(pair.now, host_address());
    pair.target.assert_no_event();
    pair.host.manager.confirm(host).unwrap();
    pair.reach_target();
    assert_eq!(pair.target.event(), ManagerEvent::Established { connection: target });
}

#[test]
fn disconnect_requests_reach_a_restarted_peer() {
    let mut pair = Pair::new();
    let (host, _) = pair.established(2);
    pair.host.manager.disconnect(pair.now, host);
    pair.host.sent();
    pair.host.manager.handle_unreachable(pair.now, target_address());
    pair.host.assert_no_event();
    pair.target = Side::new(target_address(), ManagerConfig::new(0xC, 3));
    pair.pass_to_deadline();
    pair.reach_target();
    pair.target.assert_no_event();
    pair.reach_host();
    assert_eq!(pair.host.event(), ManagerEvent::Disconnected { connection: host, confirmed: true });
    assert_eq!(pair.host.manager.deadline(), None);
}

#[test]
fn an_early_disconnect_is_not_confirmed() {
    let mut pair = Pair::new();
    let (host, _) = pair.replied(2);
    pair.host.manager.disconnect(pair.now, host);
    assert_eq!(
        pair.host.event(),
        ManagerEvent::Disconnected { connection: host, confirmed: false }
    );
}

#[test]
fn calls_out_of_turn_change_nothing() {
    let mut pair = Pair::new();
    let (host, target) = pair.requested(2);
    let manager = &mut pair.host.manager;
    assert_eq!(manager.confirm(host), Err(Error::WrongState));
    assert_eq!(manager.accept(pair.now, host, &accept_with(3)), Err(Error::WrongState));
    assert_eq!(manager.reject(pair.now, host, &[]), Err(Error::WrongState));
    manager.packet_arrived(host);
    let long = ConnectParams { private_data: &[0; 57], ..connect_to(target_address(), 5) };
    assert_eq!(manager.connect(pair.now, &long), Err(Error::PrivateDataTooLong));
    let manager = &mut pair.target.manager;
    assert_eq!(manager.confirm(target), Err(Error::WrongState));
    let long = AcceptParams { private_data: &[0; 197], ..accept_with(3) };
    assert_eq!(manager.accept(pair.now, target, &long), Err(Error::PrivateDataTooLong));
    assert_eq!(manager.reject(pair.now, target, &[0; 149]), Err(Error::PrivateDataTooLong));
    manager.accept(pair.now, target, &accept_with(3)).unwrap();
    assert_eq!(manager.accept(pair.now, target, &accept_with(3)).unwrap_err(), Error::WrongState);
    pair.reach_host();
    assert!(matches!(pair.host.event(), ManagerEvent::Accepted { .. }));
}

#[test]
fn other_service_ids_give_the_whole_private_data() {
    let mut pair = Pair::new();
    let service = ServiceId(0x1234_5678_9ABC_DEF0);
    pair.target.manager.listen(service).unwrap();
    let data = [7; 92];
    let connect = ConnectParams {
        service_id: service,
        private_data: &data,
        ..connect_to(target_address(), 2)
    };
    pair.host.manager.connect(pair.now, &connect).unwrap();
    pair.reach_target();
    let ManagerEvent::Request { request, .. } = pair.target.event() else { panic!() };
    assert_eq!(request.addresses, None);
    assert_eq!(request.private_data[..], data);
}

#[test]
fn ipv6_works_alike() {
    let [host, target]: [SocketAddr; 2] =
        ["[fd00::2]:4791".parse().unwrap(), "[fd00::1]:5000".parse().unwrap()];
    let mut pair = Pair::new();
    pair.host.address = host;
    pair.target.address = target;
    let source = "[fd00::2]:40000".parse().unwrap();
    let connect = ConnectParams { source, ..connect_to(target, 2) };
    pair.host.manager.connect(pair.now, &connect).unwrap();
    pair.reach_target();
    let ManagerEvent::Request { request, connection, .. } = pair.target.event() else { panic!() };
    assert_eq!(request.addresses, Some(IpHeader { source, destination: target.ip() }));
    pair.target.manager.accept(pair.now, connection, &accept_with(3)).unwrap();
    pair.reach_host();
    assert!(matches!(pair.host.event(), ManagerEvent::Accepted { .. }));
}

/// The way back may be narrower than the interface.
#[test]
fn a_request_is_held_to_the_way_back() {
    let mut pair = Pair::new();
    let connect = ConnectParams { path_mtu: PathMtu::Bytes4096, ..connect_to(target_address(), 2) };
    let host = pair.host.manager.connect(pair.now, &connect).unwrap();
    let mut asked = 0;
    for transmit in pair.host.sent() {
        pair.target.manager.handle_datagram(pair.now, host_address(), &transmit.mad, |peer| {
            asked += 1;
            assert_eq!(peer, host_address().ip());
            Some(PathMtu::Bytes512)
        });
    }
    assert_eq!(asked, 1);
    pair.target.assert_no_event();
    // Our side takes up the offer.
    pair.reach_host();
    pair.reach_target();
    let ManagerEvent::Request { request, .. } = pair.target.event() else { panic!() };
    assert_eq!(request.path_mtu, PathMtu::Bytes512);
    assert_eq!(pair.host.manager.agreement(host).unwrap().path_mtu, PathMtu::Bytes512);
}
