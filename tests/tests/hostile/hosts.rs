//! Hosts that break every rule, beside a well-behaved one: it must not be affected, and the
//! daemon's memory must stay bounded.

use std::net::SocketAddr;

use feedrail_target::testing::{PEER_MESSAGES, PEER_MESSAGES_PERIOD, UNCONNECTED_PER_ADDRESS};
use feedrail_tests::hostile::{HostileHost, QueueKey, Witness, read, write};
use feedrail_tests::process::{
    Daemon, DaemonOptions, Vitals, eventually, feedrail, loopback_address, write_configuration,
};
use nvme_proto::rdma_cm::{ConnectRequest, RejectStatus};
use nvme_proto::{Cid, Cntlid, IntoBytes, Qid, Sgl, Sqe, Status};
use raw_peers::RawLinkState;
use rdma::soft::Faults;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const CONNECTIONS: u64 = 128;
const POOL_BYTES: u64 = 8 << 20;
const ENTRIES: u16 = 64;
/// Memory that one connection may make the daemon allocate, in bytes: for each entry a command, its
/// in-capsule data, a response and bookkeeping.
const CONNECTION_BYTES: u64 = ENTRIES as u64 * (2 * 4096 + 2048);
/// Memory of the namespaces, and slack of the allocator.
const SLACK_BYTES: u64 = 48 << 20;
/// Lines that are not about hosts, in each period of those that are.
const OTHER_LINES: u64 = 50;
/// The namespace whose every operation takes a while.
const SLOW: u32 = 2;

struct Scene {
    daemon: Daemon,
    witness: Witness,
    before: Vitals,
    _folder: TempDir,
}

/// Time after which the daemon gives up a host that takes no response.
const HOST_TIMEOUT_MS: u64 = 2_000;
/// Timeout of a host whose connection must stay, on a machine however busy.
const LONG_HOST_TIMEOUT_MS: u64 = 120_000;

fn serve(host_timeout_ms: u64) -> (Daemon, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let configuration = format!(
        r#"
        [limits]
        connections = {CONNECTIONS}
        queue_depth = {ENTRIES}
        pool_bytes = {POOL_BYTES}
        max_transfer_bytes = "256KiB"
        host_timeout_ms = {host_timeout_ms}

        [[port]]
        address = "{address}:4420"

        [[subsystem]]
        nqn = "nqn.2026-01.org.example:hostile"
        allow_any_host = true

        [[subsystem.namespace]]
        kind = "memory"
        size_bytes = "16MiB"

        [[subsystem.namespace]]
        kind = "memory"
        size_bytes = "1MiB"
        [subsystem.namespace.faults]
        delay_us = 100000
        "#,
        address = loopback_address(),
    );
    let path = write_configuration(folder.path(), &configuration);
    (DaemonOptions::default().arg("--config").arg(path).start(), folder)
}

impl Scene {
    fn new() -> Self {
        Self::with_host_timeout(HOST_TIMEOUT_MS)
    }

    fn with_host_timeout(host_timeout_ms: u64) -> Self {
        let (daemon, folder) = serve(host_timeout_ms);
        let witness = Witness::start(&daemon);
        let before = daemon.vitals();
        Self { daemon, witness, before, _folder: folder }
    }

    fn connections(&self) -> u64 {
        self.daemon.stats()["connections"].as_u64().unwrap()
    }

    fn wait_for_peace(&self) {
        eventually("only the witness is connected", || self.connections() == Witness::CONNECTIONS);
    }

    /// Whatever happened, the witness continues and the daemon is as small as its configuration
    /// says.
    #[track_caller]
    fn all_is_well(mut self) -> Value {
        let seen = self.witness.rounds();
        eventually("the witness continues", || self.witness.rounds() >= seen + 2);
        self.witness.finish();
        let stats = self.daemon.stats();
        let grown = self.daemon.vitals().resident_bytes.saturating_sub(self.before.resident_bytes);
        let bound = POOL_BYTES + CONNECTIONS * CONNECTION_BYTES + SLACK_BYTES;
        assert!(grown <= bound, "the daemon grew by {grown} bytes, more than {bound}");
        let uptime_ms = u128::from(stats["uptime_ms"].as_u64().unwrap());
        let periods = uptime_ms / PEER_MESSAGES_PERIOD.as_millis() + 1;
        let allowed = periods as u64 * (u64::from(PEER_MESSAGES) + OTHER_LINES);
        let lines = self.daemon.log().lines().count() as u64;
        assert!(lines <= allowed, "{lines} lines in {uptime_ms} ms");
        stats
    }
}

/// Reads of 128 KiB each, at places of their own.
fn post_reads(host: &mut HostileHost, queue: QueueKey, count: usize) -> Vec<Cid> {
    let post = |slot| {
        let sgl = host.keyed(slot % 32 * (128 << 10), 128 << 10);
        host.post(queue, &read(1, 0, 128 << 10).with_data(sgl), &[])
    };
    (0..count).map(post).collect()
}

#[test]
fn connections_without_connect_are_ended() {
    let scene = Scene::new();
    let mut host = HostileHost::new(None);
    let queues: Vec<QueueKey> =
        (0..8).map(|_| host.link(scene.daemon.address(), 0, 32, 0)).collect();
    for &queue in &queues {
        assert!(matches!(host.settle(queue), RawLinkState::Up(_)));
    }
    for queue in queues {
        host.wait_down(queue);
    }
    scene.wait_for_peace();
    scene.all_is_well();
}

#[test]
fn hosts_without_receives_are_disconnected() {
    let scene = Scene::new();
    let mut host = HostileHost::new(None);
    let association = host.associate(&scene.daemon, ENTRIES);
    let queues: Vec<QueueKey> = (2..5)
        .map(|qid| host.add_queue(&scene.daemon, association.cntlid, qid, ENTRIES, 0))
        .collect();
    for &queue in &queues {
        post_reads(&mut host, queue, 32);
    }
    for &queue in &queues {
        host.wait_down(queue);
    }
    scene.daemon.wait_for_log("did not take its responses");
    host.disconnect_all();
    scene.wait_for_peace();
    let stats = scene.all_is_well();
    assert_eq!(stats["pool"]["used_bytes"], 0, "every buffer came back");
}

#[test]
fn commands_beyond_the_queue_wait_their_turn() {
    let scene = Scene::new();
    let mut host = HostileHost::new(None);
    let queue = host.associate(&scene.daemon, 16).io;
    for _ in 0..4 {
        for cid in post_reads(&mut host, queue, 64) {
            let response = host.response(queue, cid).expect("the connection stays");
            assert!(response.status().is_success(), "{response:?}");
        }
    }
    assert!(scene.all_is_well()["network"]["rnr_naks_sent"].as_u64().unwrap() > 0);
}

/// Commands with a wrong descriptor, range or capsule, and the expected status of each.
fn lies(host: &HostileHost) -> Vec<(Sqe, Vec<u8>, Status)> {
    let in_capsule = |offset, length| Sgl::InCapsule { offset, length };
    let keyed = |length| host.keyed(0, length);
    let last = (16 << 20) / 512 - 1;
    vec![
        (write(1, 0, 512).with_data(keyed(511)), vec![], Status::DATA_SGL_LENGTH_INVALID),
        (read(1, 0, 512).with_data(keyed(0)), vec![], Status::DATA_SGL_LENGTH_INVALID),
        (
            write(1, 9000, 512).with_data(in_capsule(0, 512)),
            vec![0; 511],
            Status::SGL_OFFSET_INVALID,
        ),
        (
            write(1, 9000, 512).with_data(in_capsule(u64::from(u32::MAX), 512)),
            vec![0; 512],
            Status::SGL_OFFSET_INVALID,
        ),
        (
            read(1, 0, 512).with_data(in_capsule(0, 512)),
            vec![0; 512],
            Status::SGL_DESCRIPTOR_TYPE_INVALID,
        ),
        (read(1, 0, 1 << 20).with_data(keyed(1 << 20)), vec![], Status::INVALID_FIELD),
        (read(1, last, 1024).with_data(keyed(1024)), vec![], Status::LBA_OUT_OF_RANGE),
        (read(1, u64::MAX, 512).with_data(keyed(512)), vec![], Status::LBA_OUT_OF_RANGE),
        (read(7, 0, 512).with_data(keyed(512)), vec![], Status::INVALID_NAMESPACE_OR_FORMAT),
    ]
}

#[test]
fn wrong_lengths_end_the_command_or_connection() {
    let scene = Scene::new();
    let mut host = HostileHost::new(None);
    let queue = host.associate(&scene.daemon, 32).io;
    for (sqe, capsule, status) in lies(&host) {
        assert_eq!(host.status(queue, &sqe, &capsule), Some(status), "{sqe:?}");
    }
    host.send(queue, &[0; 63]);
    host.wait_down(queue);
    let queue = host.associate(&scene.daemon, 32).io;
    host.send(queue, &[0; 64 + 4097]);
    host.wait_down(queue);
    let queue = host.associate(&scene.daemon, 32).io;
    let nowhere = Sgl::Keyed { address: 0x1000, length: 4096, key: 0xDEAD_BEEF, invalidate: false };
    host.post(queue, &write(1, 9000, 4096).with_data(nowhere), &[]);
    host.wait_down(queue);
    // It has its admin queues still.
    host.disconnect_all();
    scene.wait_for_peace();
    let culprits = scene.all_is_well()["peer_errors"].to_string();
    assert!(culprits.contains("commands_failed"), "{culprits}");
}

#[test]
fn malformed_connection_requests_are_refused_with_bounded_logging() {
    let scene = Scene::new();
    let to = scene.daemon.address();
    let request = |qid, receive, send| ConnectRequest::new(Qid(qid), Cntlid(0), receive, send);
    let mut format = request(0, 32, 32).as_bytes().to_vec();
    format[0] = 1;
    let cases = [
        (format, RejectStatus::INVALID_RECFMT),
        (request(1000, 32, 32).as_bytes().to_vec(), RejectStatus::INVALID_QID),
        (request(1, 256, 256).as_bytes().to_vec(), RejectStatus::INVALID_HSQSIZE),
        (request(0, 0, 32).as_bytes().to_vec(), RejectStatus::INVALID_HRQSIZE),
    ];
    for _ in 0..5 {
        let mut host = HostileHost::new(None);
        for round in 0..60 {
            let (private, status) = &cases[round % cases.len()];
            let queue = host.dial_with(to, private, 0);
            assert_eq!(host.settle(queue), RawLinkState::Rejected(*status), "{private:?}");
        }
    }
    let stats = scene.all_is_well();
    assert_eq!(stats["connections_rejected"], 300);
}

#[test]
fn a_command_id_in_flight_is_a_conflict() {
    let scene = Scene::new();
    let mut host = HostileHost::new(None);
    let queue = host.associate(&scene.daemon, 32).io;
    let sqe = read(SLOW, 0, 512).with_data(host.keyed(0, 512)).with_cid(Cid(0x7777));
    host.send(queue, sqe.as_bytes());
    host.send(queue, sqe.as_bytes());
    let mut status = || host.response(queue, Cid(0x7777)).unwrap().status().without_flags();
    assert_eq!(status(), Status::COMMAND_ID_CONFLICT);
    assert_eq!(status(), Status::SUCCESS);
    scene.all_is_well();
}

#[test]
fn damaged_packets_count_as_lost() {
    let scene = Scene::new();
    let damage = Faults { sent_corruption_ppm: 1000, seed: 5, ..Faults::default() };
    let mut host = HostileHost::new(Some(damage));
    let queue = host.associate(&scene.daemon, 32).io;
    let first = Witness::AREA_BYTES / 512;
    let failures =
        |scene: &Scene| scene.daemon.stats()["network"]["icrc_failures"].as_u64().unwrap();
    for round in 0..200 {
        let bytes = vec![round as u8; 64 << 10];
        host.put(0, &bytes);
        let sgl = host.keyed(0, 64 << 10);
        let wrote = host.status(queue, &write(1, first, 64 << 10).with_data(sgl), &[]);
        assert_eq!(wrote, Some(Status::SUCCESS));
        let sgl = host.keyed(64 << 10, 64 << 10);
        let got = host.status(queue, &read(1, first, 64 << 10).with_data(sgl), &[]);
        assert_eq!(got, Some(Status::SUCCESS));
        assert!(host.get(64 << 10, 64 << 10) == bytes);
    }
    assert!(failures(&scene) > 0, "no packet was damaged");
    scene.all_is_well();
}

#[test]
fn half_open_connections_are_bounded() {
    let scene = Scene::new();
    let mut host = HostileHost::new(None);
    host.request_and_abandon(scene.daemon.address(), 2000);
    let nameless = 2 * UNCONNECTED_PER_ADDRESS as u64;
    assert!(scene.connections() <= nameless + Witness::CONNECTIONS);
    let mut other = HostileHost::new(None);
    other.associate(&scene.daemon, 32);
    other.disconnect_all();
    // Those that were taken are given up in the end.
    scene.wait_for_peace();
    scene.all_is_well();
}

#[test]
fn connections_are_counted_over_all_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let addresses = [loopback_address(), loopback_address()].map(|ip| SocketAddr::new(ip, 4420));
    let configuration = format!(
        r#"
        [limits]
        connections = 3
        connections_per_host = 2
        [[port]]
        address = "{}"
        [[port]]
        address = "{}"
        [[subsystem]]
        nqn = "nqn.2026-01.org.example:hostile"
        allow_any_host = true
        [[subsystem.namespace]]
        kind = "null"
        size_bytes = "1MiB"
        "#,
        addresses[0], addresses[1],
    );
    let path = write_configuration(folder.path(), &configuration);
    let daemon = DaemonOptions::default().arg("--config").arg(path).start();
    let link = |host: &mut HostileHost, address: usize| {
        let queue = host.link(addresses[address], 0, 32, usize::MAX);
        if matches!(host.state(queue), RawLinkState::Up(_)) {
            let response = host.nvme_connect(&daemon, queue, 0, Cntlid::DYNAMIC, 32);
            assert!(response.status().is_success(), "{response:?}");
        }
        host.state(queue)
    };
    let up = RawLinkState::Up(32);
    let refused = RawLinkState::Rejected(RejectStatus::NO_RESOURCES);
    let [mut first, mut second] = [HostileHost::new(None), HostileHost::new(None)];
    assert_eq!([0, 1, 0].map(|address| link(&mut first, address)), [up, up, refused]);
    assert_eq!([1, 0, 1].map(|address| link(&mut second, address)), [up, refused, refused]);
    first.disconnect_all();
    eventually("there is room again", || daemon.stats()["connections"] == 1);
    assert_eq!(link(&mut second, 0), up);
}

#[test]
fn vanished_hosts_are_detected() {
    let scene = Scene::new();
    let busy = [
        "--rw",
        "randread",
        "--bs",
        "64k",
        "--iodepth",
        "16",
        "--runtime",
        "100",
        "--keep-alive-tmo",
        "1",
    ];
    for signal in [Signal::KILL, Signal::STOP] {
        let reads = || scene.daemon.stats()["io"]["reads"].as_u64().unwrap();
        let before = scene.connections();
        let perf = feedrail(["perf"]).args(scene.daemon.options()).args(busy).start();
        eventually("it is connected", || scene.connections() > before);
        let seen = reads();
        eventually("it reads", || reads() > seen);
        let pid = Pid::from_raw(perf.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
        scene.wait_for_peace();
        perf.kill();
    }
    scene.all_is_well();
}

#[test]
fn changing_memory_in_use_harms_only_its_host() {
    let scene = Scene::with_host_timeout(LONG_HOST_TIMEOUT_MS);
    let mut host = HostileHost::new(None);
    let queue = host.associate(&scene.daemon, 32).io;
    let first = Witness::AREA_BYTES / 512;
    for round in 0..20u8 {
        let cids: Vec<Cid> = (0..8)
            .map(|slot| {
                let sgl = host.keyed(slot * (256 << 10), 256 << 10);
                host.post(queue, &write(1, first, 256 << 10).with_data(sgl), &[])
            })
            .collect();
        for cid in cids {
            host.fill(0, 2 << 20, round);
            let response = host.response(queue, cid).expect("the connection stays");
            assert!(response.status().is_success(), "{response:?}");
        }
    }
    // And then the key is void while the target uses it.
    let sgl = host.keyed(0, 256 << 10);
    for _ in 0..8 {
        host.post(queue, &write(SLOW, 0, 256 << 10).with_data(sgl), &[]);
    }
    host.withdraw_memory();
    host.wait_down(queue);
    scene.daemon.wait_for_log("reading host memory");
    host.disconnect_all();
    scene.wait_for_peace();
    scene.all_is_well();
}
