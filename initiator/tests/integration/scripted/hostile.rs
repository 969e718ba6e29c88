//! Targets that break rules, lie, vanish or come back with another identity.

use std::cell::Cell;
use std::pin::pin;
use std::time::Duration;

use feedrail_initiator::{ControllerOptions, Error, ErrorFamily, ErrorKind, Grant, RegionSlice};
use nvme_proto::identify::{Flbas, NamespaceList, Sgls};
use nvme_proto::log::DiscoveryEntry;
use nvme_proto::rdma_cm::{Reject, RejectStatus};
use nvme_proto::{AdminOpcode, Cid, Cqe, IntoBytes, LbaFormat, Nsid, NvmOpcode, Status};
use rdma::sim::SimConfig;

use super::fake::{Action, Seen, ip, pattern, set_file};
use super::world::{World, read_range};

fn is_read(seen: &Seen) -> bool {
    !seen.qid.is_admin() && !seen.sqe.is_fabrics() && seen.sqe.opcode == NvmOpcode::READ.0
}

/// A script that treats the first `count` reads differently.
fn first_reads(
    count: usize,
    act: impl Fn(&Seen) -> Action + 'static,
) -> Box<dyn FnMut(&Seen) -> Action> {
    let left = Cell::new(count);
    Box::new(move |seen| {
        if is_read(seen) && left.get() > 0 {
            left.set(left.get() - 1);
            return act(seen);
        }
        Action::Normal
    })
}

/// A read that meets a broken rule is done again over a new connection.
fn survives(act: impl Fn(&Seen) -> Action + 'static, violation: bool) {
    let mut world = World::new(64);
    let (_controller, namespace) = world.open();
    world.fake.script = first_reads(1, act);
    let outcome = world.read(&namespace, 512, 1024, Grant::Persistent);
    outcome.result.unwrap();
    assert!(outcome.slice.bytes().iter().enumerate().all(|(i, &b)| b == pattern(512 + i)));
    let counters = world.host.counters();
    assert_eq!((counters.reconnects, counters.connections_lost), (1, 1));
    assert_eq!(counters.protocol_violations, u64::from(violation));
}

#[test]
fn a_response_for_no_command_ends_the_association() {
    survives(|seen| Action::Answer(Cqe::success(Cid(seen.sqe.cid().0 ^ 1))), true);
    survives(|_| Action::Answer(Cqe::success(Cid(0xFFFF))), true);
}

#[test]
fn a_stale_response_ends_the_association() {
    survives(
        |seen| Action::Answer(Cqe::success(Cid(seen.sqe.cid().0.wrapping_sub(1 << 10)))),
        true,
    );
}

#[test]
fn a_response_of_wrong_length_ends_the_association() {
    survives(|_| Action::Bytes(vec![0; 15]), true);
    survives(|_| Action::Bytes(Vec::new()), true);
    survives(|_| Action::Bytes(vec![0; 17]), false);
}

#[test]
fn reconnects_to_a_misbehaving_target_are_spaced() {
    let mut world = World::new(64);
    let (_controller, namespace) = world.open();
    world.fake.script = first_reads(usize::MAX, |_| Action::Bytes(vec![0; 15]));
    world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap_err();
    // Thirty seconds; soon two seconds apart, or a little less.
    let lost = world.host.counters().connections_lost;
    assert!((18..=26).contains(&lost), "{lost}");
}

#[test]
fn a_disconnect_is_survived() {
    survives(|_| Action::Disconnect, false);
}

#[test]
fn a_response_that_comes_twice_ends_the_association() {
    let mut world = World::new(64);
    let (_controller, namespace) = world.open();
    let reads = Cell::new(Vec::new());
    world.fake.script = Box::new(move |seen| {
        let mut cids = reads.take();
        if is_read(seen) {
            cids.push(seen.sqe.cid());
        }
        // Answers the second read with the identifier of the first.
        let again = (is_read(seen) && cids.len() == 2).then(|| cids[0]);
        reads.set(cids);
        again.map_or(Action::Normal, |cid| Action::Answer(Cqe::success(cid)))
    });
    for at in 0..3u64 {
        let outcome = world.read(&namespace, at * 512, 512, Grant::Persistent);
        outcome.result.unwrap();
        assert!(
            outcome
                .slice
                .bytes()
                .iter()
                .enumerate()
                .all(|(i, &b)| b == pattern(at as usize * 512 + i))
        );
    }
    assert_eq!(world.host.counters().protocol_violations, 1);
}

#[test]
fn a_target_cannot_use_keys_of_another() {
    let mut world = World::new(64);
    let (_first, namespace) = world.open();
    let mut slice = world.read(&namespace, 0, 512, Grant::Persistent).slice;
    slice.fill(0xEE);
    let seen = world.fake.seen.iter().rfind(|seen| is_read(seen)).unwrap();
    let stolen = seen.sqe;
    let (_second, other) = world.open();
    world.fake.script =
        first_reads(1, move |seen| Action::Instead(stolen.with_cid(seen.sqe.cid())));
    world.read(&other, 512, 512, Grant::Persistent).result.unwrap();
    assert!(slice.bytes().iter().all(|&byte| byte == 0xEE));
    assert_eq!(world.host.counters().connections_lost, 1);
}

#[test]
fn an_error_status_is_the_range_s_result() {
    let mut world = World::new(64);
    let (_controller, namespace) = world.open();
    let status = Status::UNRECOVERED_READ_ERROR.with_dnr();
    world.fake.script = first_reads(1, move |_| Action::Fail(status));
    let outcome = world.read(&namespace, 0, 512, Grant::Persistent);
    let error = outcome.result.unwrap_err();
    assert_eq!((error.status(), error.family()), (Some(status), ErrorFamily::Peer));
    let text = error.to_string();
    assert!(text.contains("512 bytes at 0") && text.contains("10.0.0.2:4420"), "{text}");
    assert_eq!(world.host.counters().retries, 0);
    world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap();
}

#[test]
fn one_bad_block_costs_its_range_only() {
    let mut world = World::new(1024);
    let (_controller, namespace) = world.open();
    world.fake.script = Box::new(|seen| {
        let bad = is_read(seen) && seen.sqe.cdw10.get() == 300;
        if bad { Action::Fail(Status::UNRECOVERED_READ_ERROR.with_dnr()) } else { Action::Normal }
    });
    let slices = RegionSlice::allocate(1024 * 512, Grant::Persistent).unwrap().chunks(512);
    let ranges: Vec<_> =
        slices.enumerate().map(|(i, s)| read_range(&namespace, i as u64 * 512, s)).collect();
    let reading = world.host.read_many(ranges);
    let failed: Vec<usize> = world
        .run(reading)
        .iter()
        .enumerate()
        .filter(|(_, outcome)| outcome.result.is_err())
        .map(|(i, _)| i)
        .collect();
    assert_eq!(failed, [300]);
}

#[test]
fn a_transient_status_is_retried_within_bounds() {
    let mut world = World::new(64);
    let (_controller, namespace) = world.open();
    world.fake.script = first_reads(3, |_| Action::Fail(Status::NAMESPACE_NOT_READY));
    world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap();
    assert_eq!(world.host.counters().retries, 3);
    world.fake.script = first_reads(usize::MAX, |_| Action::Fail(Status::NAMESPACE_NOT_READY));
    let error = world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap_err();
    assert!(error.status().is_some_and(|status| status.is(Status::NAMESPACE_NOT_READY)));
}

#[test]
fn an_unanswered_command_ends_at_its_deadline() {
    let options = ControllerOptions::new().io_timeout(Duration::from_secs(3));
    let mut world = World::with(1, SimConfig::default(), 64, options);
    let (_controller, namespace) = world.open();
    world.fake.script = first_reads(1, |_| Action::DataOnly);
    let start = world.now;
    let outcome = world.read(&namespace, 0, 512, Grant::Persistent);
    let error = outcome.result.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TimedOut { .. }), "{error}");
    let waited = world.now - start;
    assert!(waited >= Duration::from_secs(3) && waited < Duration::from_secs(8), "{waited:?}");
    // It was told to abort, which it did not do; so the slice came back when the queues were down.
    let counters = world.host.counters();
    assert_eq!((counters.aborts, counters.timeouts, counters.connections_lost), (1, 1, 1));
    world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap();
}

#[test]
fn an_aborted_command_that_ends_keeps_the_connection() {
    let options = ControllerOptions::new().io_timeout(Duration::from_secs(3));
    let mut world = World::with(1, SimConfig::default(), 64, options);
    let (_controller, namespace) = world.open();
    world.fake.script = first_reads(1, |_| Action::Ignore);
    let slice = RegionSlice::allocate(512, Grant::Persistent).unwrap();
    let mut reading = pin!(namespace.read(0, slice));
    assert!(world.run_within(reading.as_mut(), Duration::from_millis(3500)).is_none());
    assert_eq!(world.host.counters().aborts, 1);
    world.fake.complete_ignored(Status::ABORT_REQUESTED);
    let outcome = world.run(reading);
    assert!(matches!(outcome.result.unwrap_err().kind(), ErrorKind::TimedOut { .. }));
    assert_eq!(world.host.counters().connections_lost, 0);
}

#[test]
fn an_unanswered_keep_alive_ends_the_association() {
    let mut world = World::new(64);
    let (_controller, namespace) = world.open();
    world.fake.script = Box::new(|seen| {
        let keep_alive = seen.qid.is_admin() && seen.sqe.opcode == AdminOpcode::KEEP_ALIVE.0;
        if keep_alive { Action::Ignore } else { Action::Normal }
    });
    world.pass(Duration::from_secs(9));
    assert_eq!(world.host.counters().connections_lost, 1);
    world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap();
}

#[test]
fn a_connect_without_an_answer_says_what_to_look_at() {
    let options = ControllerOptions::new().connect_timeout(Duration::from_secs(2));
    let mut world = World::with(1, SimConfig::default(), 64, options);
    world.network.cut(ip(1), ip(2));
    let start = world.now;
    let error = world.connect().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unreachable(_)), "{error}");
    assert!(error.to_string().contains("UDP port 4791"), "{error}");
    assert!(world.now - start <= Duration::from_millis(2100), "{:?}", world.now - start);
    world.network.heal(ip(1), ip(2));
    world.fake.script = Box::new(|_| Action::Ignore);
    let error = world.connect().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ConnectionLost(_)), "{error}");
    assert!(error.to_string().contains("answers no commands"), "{error}");
}

/// A target that acknowledges what it is sent, and answers nothing.
#[test]
fn silence_ends_a_connection_as_soon_as_asked_for() {
    for (options, most) in [
        (ControllerOptions::new().loss_timeout(Duration::from_millis(300)), 900),
        (ControllerOptions::new().silence_timeout(Duration::from_millis(100)), 200),
    ] {
        let mut world = World::with(1, SimConfig::default(), 64, options);
        let (_controller, namespace) = world.open();
        world.pass(Duration::from_secs(1));
        assert_eq!(world.host.counters().keep_alives, 0);
        let is_keep_alive =
            |seen: &Seen| seen.qid.is_admin() && seen.sqe.opcode == AdminOpcode::KEEP_ALIVE.0;
        world.fake.script = Box::new(move |seen| match is_read(seen) || is_keep_alive(seen) {
            true => Action::Ignore,
            false => Action::Normal,
        });
        let start = world.now;
        let slice = RegionSlice::allocate(512, Grant::Persistent).unwrap();
        let mut reading = pin!(namespace.read(0, slice));
        while world.host.counters().connections_lost == 0 {
            assert!(world.run_within(reading.as_mut(), Duration::from_millis(1)).is_none());
        }
        assert!(world.now - start <= Duration::from_millis(most), "{:?}", world.now - start);
        // What is slow but answers is not cut off.
        world.fake.script = Box::new(|seen| match is_read(seen) {
            true => Action::Ignore,
            false => Action::Normal,
        });
        assert!(world.run_within(reading.as_mut(), Duration::from_millis(250)).is_none());
        let before = world.host.counters();
        assert!(world.run_within(reading.as_mut(), Duration::from_secs(4)).is_none());
        let after = world.host.counters();
        assert_eq!(after.connections_lost, before.connections_lost);
        assert!(after.keep_alives > before.keep_alives + 5);
        world.fake.script = Box::new(|_| Action::Normal);
        world.fake.complete_ignored(Status::ABORT_REQUESTED);
        world.run(reading).result.unwrap();
    }
}

#[test]
fn a_cut_network_fails_within_the_deadline() {
    let options = ControllerOptions::new().io_timeout(Duration::from_secs(20));
    let mut world = World::with(1, SimConfig::default(), 64, options);
    let (_controller, namespace) = world.open();
    world.network.cut(ip(1), ip(2));
    let start = world.now;
    let error = world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap_err();
    assert!(world.now - start < Duration::from_secs(25));
    assert!(matches!(error.kind(), ErrorKind::Lost { .. } | ErrorKind::TimedOut { .. }), "{error}");
    assert!(error.to_string().contains("10.0.0.2:4420"), "{error}");
    world.network.heal(ip(1), ip(2));
    let outcome = world.read(&namespace, 0, 512, Grant::Persistent);
    outcome.result.unwrap();
}

#[test]
fn a_lost_target_fails_commands_until_it_returns() {
    let options = ControllerOptions::new().loss_timeout(Duration::from_secs(5));
    let mut world = World::with(1, SimConfig::default(), 64, options);
    let (controller, namespace) = world.open();
    world.fake.reject = Some(Reject::new(RejectStatus::NO_RESOURCES).as_bytes().to_vec());
    world.fake.disconnect_all(world.now);
    let error = world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Lost { .. }), "{error}");
    assert!(error.to_string().contains("no resources"), "{error}");
    assert!(controller.limits().is_err());
    let before = world.now;
    world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap_err();
    let identifying = controller.identify();
    world.run(identifying).unwrap_err();
    assert_eq!(world.now, before);
    world.pass(Duration::from_secs(600));
    world.fake.reject = None;
    world.pass(Duration::from_secs(3));
    world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap();
    controller.limits().unwrap();
}

#[test]
fn a_replaced_namespace_is_an_error() {
    let changes: [fn(&mut World); 5] = [
        |world| world.fake.uuid = [8; 16],
        |world| world.fake.namespace.nsze.set(63),
        |world| world.fake.namespace.eui64 = [1; 8],
        |world| set_file(&mut world.fake.namespace, 64 * 512 - 1, "other"),
        |world| world.fake.namespace.nsze.set(0),
    ];
    for change in changes {
        let mut world = World::new(64);
        let (controller, namespace) = world.open();
        world.fake.script = first_reads(1, |_| Action::Disconnect);
        change(&mut world);
        let outcome = world.read(&namespace, 0, 512, Grant::Persistent);
        let error = outcome.result.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Changed(_)), "{error}");
        assert!(outcome.slice.bytes().iter().all(|&b| b == 0));
        let error = world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Changed(_)), "{error}");
        // The controller is as good as before.
        let identifying = controller.identify();
        world.run(identifying).unwrap();
    }
}

#[test]
fn a_write_that_is_interrupted_is_written_again() {
    let mut world = World::new(64);
    let (_controller, namespace) = world.open();
    let left = Cell::new(2);
    world.fake.script = Box::new(move |seen| {
        let write = !seen.qid.is_admin() && seen.sqe.opcode == NvmOpcode::WRITE.0;
        if write && left.get() > 0 {
            left.set(left.get() - 1);
            return Action::Disconnect;
        }
        Action::Normal
    });
    world.write(&namespace, 700, &[0xAB; 9000]).result.unwrap();
    assert!(world.fake.disk()[700..9700] == [0xAB; 9000]);
    let disk = world.fake.disk();
    assert!((0..700).chain(9700..64 * 512).all(|i| disk[i] == pattern(i)));
    assert_eq!(world.host.counters().reconnects, 2);
}

#[test]
fn an_abandoned_read_frees_its_memory_later() {
    let mut world = World::new(64);
    let (_controller, namespace) = world.open();
    let slice = RegionSlice::allocate(32 * 512, Grant::Persistent).unwrap();
    let reading = namespace.read(0, slice);
    world.step();
    drop(reading);
    world.pass(Duration::from_secs(1));
    let counters = world.host.counters();
    assert_eq!((counters.ranges, counters.ranges_failed, counters.direct_steps), (0, 1, 1));
    world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap();
}

#[test]
fn a_target_that_restarts_is_back_soon() {
    let mut world = World::new(64);
    let (_controller, namespace) = world.open();
    world.pass(Duration::from_secs(10));
    world.fake.reject = Some(Reject::new(RejectStatus::NO_RESOURCES).as_bytes().to_vec());
    world.fake.disconnect_all(world.now);
    world.pass(Duration::from_millis(300));
    world.fake.reject = None;
    let began = world.now;
    world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap();
    assert!(world.now - began < Duration::from_millis(450), "{:?}", world.now - began);
}

fn refused(prepare: impl FnOnce(&mut World)) -> Error {
    let mut world = World::new(64);
    prepare(&mut world);
    let error = world.connect().unwrap_err();
    assert!(error.to_string().contains("10.0.0.2:4420"), "{error}");
    // Nothing is left behind, and nothing is tried again.
    world.pass(Duration::from_secs(60));
    assert!(!world.fake.is_connected());
    error
}

#[test]
fn controllers_that_cannot_be_used_are_refused() {
    for prepare in [
        (|world| world.fake.identify.ioccsz.set(3)) as fn(&mut World),
        |world| world.fake.identify.iorcsz.set(0),
        |world| world.fake.identify.sgls = Sgls::new(),
        |world| world.fake.identify.mdts = 200,
        |world| world.fake.cap.set_mqes_z(0),
    ] {
        let error = refused(prepare);
        assert!(matches!(error.family(), ErrorFamily::Peer | ErrorFamily::Undecodable), "{error}");
    }
}

#[test]
fn rejections_say_why() {
    for (private, text) in [
        (Reject::new(RejectStatus::NO_RESOURCES).as_bytes().to_vec(), "no resources"),
        (Reject::new(RejectStatus::INVALID_HSQSIZE).as_bytes().to_vec(), "HSQSIZE"),
        (Reject::new(RejectStatus(77)).as_bytes().to_vec(), "0x4d"),
        (Vec::new(), ""),
    ] {
        let error = refused(|world| world.fake.reject = Some(private));
        assert!(matches!(error.kind(), ErrorKind::Rejected(_)), "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[test]
fn nobody_there_is_an_error_within_the_deadline() {
    let mut world = World::new(64);
    world.network.cut(ip(1), ip(2));
    let start = world.now;
    world.connect().unwrap_err();
    assert!(world.now - start <= Duration::from_secs(11));
}

#[test]
fn refused_connects_say_why() {
    let error = refused(|world| {
        world.fake.script = Box::new(|seen| {
            let connect = seen.sqe.is_fabrics()
                && seen.sqe.fabrics_type() == nvme_proto::FabricsType::CONNECT;
            if connect {
                Action::Fail(Status::CONNECT_INVALID_HOST.with_dnr())
            } else {
                Action::Normal
            }
        });
    });
    assert!(error.to_string().contains("host NQN"), "{error}");
}

#[test]
fn an_administrative_command_without_an_answer_ends() {
    let mut world = World::new(64);
    let (controller, _namespace) = world.open();
    world.fake.script = Box::new(|seen| {
        let identify = seen.qid.is_admin() && seen.sqe.opcode == AdminOpcode::IDENTIFY.0;
        if identify { Action::Ignore } else { Action::Normal }
    });
    let identifying = controller.identify();
    let start = world.now;
    let error = world.run(identifying).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Lost { .. }), "{error}");
    assert!(world.now - start < Duration::from_secs(20));
}

#[test]
fn only_commands_without_effects_are_sent_again() {
    let mut world = World::new(64);
    let (controller, namespace) = world.open();
    let disconnect_at = |opcode: u8| {
        let done = Cell::new(false);
        move |seen: &Seen| match seen.sqe.opcode == opcode && !done.replace(true) {
            true => Action::Disconnect,
            false => Action::Normal,
        }
    };
    world.fake.script = Box::new(disconnect_at(AdminOpcode::IDENTIFY.0));
    let identifying = controller.identify();
    world.run(identifying).unwrap();
    assert_eq!(world.host.counters().reconnects, 1);

    world.fake.script = Box::new(disconnect_at(NvmOpcode::FLUSH.0));
    let flushing = namespace.flush();
    let error = world.run(flushing).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ConnectionLost(_)), "{error}");
}

#[test]
fn opening_a_namespace_ends_despite_disconnects() {
    let mut world = World::new(64);
    let controller = world.connect().unwrap();
    let times = Cell::new(0);
    world.fake.script = Box::new(move |seen| {
        let identify = seen.qid.is_admin() && seen.sqe.opcode == AdminOpcode::IDENTIFY.0;
        // What CNS 00h asks for; it is answered over the next connection.
        if !identify || seen.sqe.cdw10.get() & 0xFF != 0 {
            return Action::Normal;
        }
        times.set(times.get() + 1);
        if times.get() % 2 == 1 { Action::Disconnect } else { Action::Normal }
    });
    let opening = controller.namespace(Nsid(1));
    let error = world.run(opening).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ConnectionLost(_)), "{error}");
    assert_eq!(error.nsid(), Some(Nsid(1)));

    world.fake.script = Box::new(|_| Action::Normal);
    let opening = controller.namespace(Nsid(1));
    world.run(opening).unwrap();
}

#[test]
fn namespaces_that_cannot_be_are_refused() {
    for prepare in [
        (|world| world.fake.namespace.nsze.set(0)) as fn(&mut World),
        |world| world.fake.namespace.nsze.set(u64::MAX),
        |world| world.fake.namespace.lbaf[0].lbads = 31,
        |world| world.fake.namespace.lbaf[0].lbads = 3,
        |world| {
            world.fake.namespace.lbaf[0] =
                LbaFormat { ms: 8.into(), lbads: 9, ..Default::default() }
        },
        |world| world.fake.namespace.flbas = Flbas::new().with_index_low(5),
    ] {
        let mut world = World::new(64);
        prepare(&mut world);
        let controller = world.connect().unwrap();
        let opening = controller.namespace(nvme_proto::Nsid(1));
        world.run(opening).unwrap_err();
    }
}

#[test]
fn the_record_count_of_discovery_is_checked() {
    let mut world = World::new(1);
    world.fake.discovery = vec![DiscoveryEntry::blank(); 70];
    let discovering = world.host.discover(World::target().address);
    assert_eq!(world.run(discovering).unwrap().entries.len(), 70);
    world.fake.numrec = Some(u64::MAX);
    let discovering = world.host.discover(World::target().address);
    world.run(discovering).unwrap_err();
}

#[test]
fn an_ever_changing_discovery_log_is_an_error() {
    let mut world = World::new(1);
    world.fake.restless = true;
    let discovering = world.host.discover(World::target().address);
    let error = world.run(discovering).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Protocol(_)), "{error}");
}

#[test]
fn loss_and_reordering_change_no_byte() {
    for seed in 0..20 {
        let config = SimConfig {
            loss_ppm: 50_000,
            duplication_ppm: 20_000,
            reordering_ppm: 50_000,
            ..SimConfig::default()
        };
        let options = ControllerOptions::new().io_queues(2);
        let mut world = World::with(seed, config, 512, options);
        let (_controller, namespace) = world.open();
        let mut model = world.fake.disk();
        for i in 0..10usize {
            let (offset, length) = (i * 20_011 % 200_000, 1 + i * 5_003);
            let bytes = vec![i as u8; length];
            world.write(&namespace, offset as u64, &bytes).result.unwrap();
            model[offset..offset + length].copy_from_slice(&bytes);
            let outcome = world.read(&namespace, offset as u64 / 2, 30_000, Grant::PerCommand);
            outcome.result.unwrap();
            assert!(
                outcome.slice.bytes()[..] == model[offset / 2..offset / 2 + 30_000],
                "seed {seed}"
            );
        }
        assert!(world.fake.disk()[..] == model[..], "seed {seed}");
    }
}

#[test]
fn an_endless_list_of_namespaces_ends() {
    let mut world = World::new(64);
    let controller = world.connect().unwrap();
    // Empty, and yet its last place says that more follow.
    let nsids = (0..1024).map(|at| Nsid(if at == 1023 { 9 } else { 0 }));
    *world.fake.active = NamespaceList::new(nsids);
    let listing = controller.active_namespaces();
    assert_eq!(world.run(listing).unwrap(), []);
    let asked = world.fake.count(|seen| {
        seen.qid.is_admin() && !seen.sqe.is_fabrics() && seen.sqe.cdw10.get() & 0xFF == 2
    });
    assert_eq!(asked, 1);
}
