//! Connections come and go.

use std::net::SocketAddr;
use std::time::Duration;

use rdma::{
    CmError, CmEvent, ConnOptions, ConnParams, ConnectFailure, ConnectionManager, Device, Group,
    Op, PrivateData, REJECT_CONSUMER_DEFINED, WcStatus,
};

use super::world::{Bench, QP, World, params};

fn with_private(bytes: &[u8]) -> ConnParams {
    ConnParams { private_data: PrivateData::new(bytes).expect("short"), ..params() }
}

fn begins_with(data: &PrivateData, start: &[u8]) -> bool {
    data.as_slice().strip_prefix(start).is_some_and(|rest| rest.iter().all(|&byte| byte == 0))
}

pub fn private_data_travels_both_ways<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let to = world.listen(1);
    let options = ConnOptions::default();
    let mut asked = with_private(b"from the active side");
    asked.initiator_depth = 3;
    asked.responder_resources = 5;
    let left = world.ask(0, to, &options, &QP, &asked);
    let (conn, request) = world.requested(1);
    assert!(begins_with(&request.private_data, b"from the active side"));
    assert_eq!((request.responder_resources, request.initiator_depth), (3, 5));
    let mut granted = with_private(b"from the passive side");
    granted.responder_resources = 2;
    granted.initiator_depth = 4;
    let right = world.accept(1, conn, &QP, &granted);
    let established = world.established(left);
    assert!(begins_with(&established.private_data, b"from the passive side"));
    assert_eq!((established.initiator_depth, established.responder_resources), (2, 4));
    world.established(right);
}

pub fn a_reject_says_why<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let to = world.listen(1);
    let left = world.ask(0, to, &ConnOptions::default(), &QP, &params());
    let (conn, _) = world.requested(1);
    let now = world.now();
    world.hosts[1].cm.reject(now, conn, b"no").expect("reject");
    match world.event(0) {
        CmEvent::Rejected { conn, reason, private_data } => {
            assert_eq!((conn, reason), (left.conn, REJECT_CONSUMER_DEFINED));
            assert!(begins_with(&private_data, b"no"));
        }
        other => panic!("not rejected but {other:?}"),
    }
    let accept = world.hosts[1].cm.accept(now, conn, &params());
    assert!(matches!(accept, Err(CmError::UnknownConnection)), "a rejected connection is closed");
}

pub fn no_listener_at_the_port<B: Bench>(bench: B) {
    const INVALID_SERVICE_ID: u16 = 8;
    let mut world = World::new(bench);
    let to = SocketAddr::new(world.hosts[1].device.local_ip(), 4420);
    world.ask(0, to, &ConnOptions::default(), &QP, &params());
    let event = world.event(0);
    let expected = match event {
        CmEvent::Rejected { reason, .. } => reason == INVALID_SERVICE_ID,
        CmEvent::ConnectFailed { failure, .. } => {
            !world.bench.differences().tells_ports_apart && failure == ConnectFailure::NotShared
        }
        _ => false,
    };
    assert!(expected, "got {event:?}");
}

pub fn no_host_at_the_address<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let to = SocketAddr::new(world.bench.nobody(), 4420);
    let conn = world.resolve(0, to, &ConnOptions::default());
    let mut event = world.event(0);
    if matches!(event, CmEvent::Resolved { .. }) {
        world.make_qp(0, conn, &QP);
        let now = world.now();
        world.hosts[0].cm.connect(now, conn, &params()).expect("connect");
        event = world.event(0);
    }
    let failures = world.bench.differences().an_unreachable_peer_fails_waiting_connections;
    assert!(
        matches!(event, CmEvent::ConnectFailed { failure, .. } if failures.contains(&failure)),
        "got {event:?}"
    );
}

pub fn a_listener_is_unique_until_closed<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let ip = world.hosts[1].device.local_ip();
    let options = ConnOptions::default();
    let cm = &mut world.hosts[1].cm;
    let listener = cm.listen(SocketAddr::new(ip, 4420), &options).expect("listen");
    match cm.listen(SocketAddr::new(ip, 4420), &options) {
        Err(CmError::Io(error)) => assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse),
        other => panic!("listened twice: {other:?}"),
    }
    cm.close(listener);
    cm.listen(SocketAddr::new(ip, 4420), &options).expect("listen again");
}

pub fn a_disconnect_flushes_both_sides<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let (left, right) = world.connect();
    let buffers = [world.buffer(0, 64), world.buffer(1, 64)];
    world.recv(left, 1, &[buffers[0].sge(0, 64)]);
    world.recv(right, 2, &[buffers[1].sge(0, 64)]);
    let now = world.now();
    world.hosts[0].cm.disconnect(now, left.conn);
    world.expect(0, 1, WcStatus::FLUSHED);
    world.expect(1, 2, WcStatus::FLUSHED);
    for end in [left, right] {
        let event = world.event(end.host);
        assert!(
            matches!(event, CmEvent::Disconnected { conn, confirmed: true } if conn == end.conn),
            "{event:?}"
        );
        world.post(end, 3, Op::Send, &[]);
        world.expect(end.host, 3, WcStatus::FLUSHED);
        world.hosts[end.host].group.release(end.qp);
        world.hosts[end.host].cm.close(end.conn);
    }
    world.settle(Duration::from_millis(5));
    assert!(world.hosts.iter().all(|host| host.events.is_empty() && host.wcs.is_empty()));
}

/// The first command of a host may overtake the message that makes the connection established.
pub fn data_may_come_before_established<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let to = world.listen(1);
    let buffers = [world.buffer(0, 64), world.buffer(1, 64)];
    let left = world.ask(0, to, &ConnOptions::default(), &QP, &params());
    // Pushed before there is a connection: it waits.
    world.post(left, 1, Op::Send, &[buffers[0].sge(0, 64)]);
    let (conn, _) = world.requested(1);
    let right = world.make_qp(1, conn, &QP);
    world.recv(right, 2, &[buffers[1].sge(0, 64)]);
    let now = world.now();
    world.hosts[1].cm.accept(now, conn, &params()).expect("accept");
    world.expect(1, 2, WcStatus::SUCCESS);
    world.expect(0, 1, WcStatus::SUCCESS);
    world.established(left);
    world.established(right);
}

pub fn many_connections_at_once<B: Bench>(bench: B) {
    const COUNT: usize = 256;
    let mut world = World::new(bench);
    let to = world.listen(1);
    let buffers = [world.buffer(0, COUNT * 64), world.buffer(1, COUNT * 64)];
    let small =
        rdma::QpConfig { send_wr: 4, recv_wr: 4, send_sge: 1, recv_sge: 1, inline_bytes: 0 };
    let mut lefts = Vec::new();
    for _ in 0..COUNT {
        lefts.push(world.ask(0, to, &ConnOptions::default(), &small, &params()));
    }
    let mut rights = Vec::new();
    for index in 0..COUNT {
        let (conn, _) = loop {
            match world.event(1) {
                CmEvent::ConnectRequest { conn, params, .. } => break (conn, params),
                CmEvent::Established { .. } => {}
                other => panic!("got {other:?}"),
            }
        };
        let right = world.make_qp(1, conn, &small);
        world.recv(right, index as u64, &[buffers[1].sge(index * 64, 64)]);
        let now = world.now();
        world.hosts[1].cm.accept(now, conn, &params()).expect("accept");
        rights.push(right);
    }
    for (index, &left) in lefts.iter().enumerate() {
        world.send(
            left,
            index as u64,
            Op::Send,
            rdma::SendFlags::NONE,
            &[buffers[0].sge(index * 64, 64)],
        );
    }
    world.flush(lefts[0]);
    for host in [0, 1] {
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..COUNT {
            let wc = world.completion(host);
            assert_eq!(wc.status, WcStatus::SUCCESS);
            assert!(seen.insert(wc.wr_id));
        }
    }
    for end in lefts.into_iter().chain(rights) {
        let now = world.now();
        world.hosts[end.host].cm.disconnect(now, end.conn);
        world.hosts[end.host].group.release(end.qp);
        world.hosts[end.host].cm.close(end.conn);
    }
    world.settle(Duration::from_millis(5));
}
