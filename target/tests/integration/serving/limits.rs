//! Full queues, an empty pool, and aborts.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use feedrail_target::testing::{ANONYMOUS_POOL_BYTES, ANONYMOUS_TRANSFER_BYTES};
use nvme_proto::admin::Abort;
use nvme_proto::identify::{Cns, Identify};
use nvme_proto::log::{GetLogPage, LogId};
use nvme_proto::nvm::{DatasetManagement, DsmAttributes, DsmRange};
use nvme_proto::{AdminCommand, Cid, IntoBytes, Nsid, Qid, Status};

use super::host::Link;
use super::pattern;
use super::world::{NQN, On, World, config, namespaces, read, two_namespaces, write};

#[test]
fn a_full_queue_of_writes_is_served_in_order() {
    let mut world = World::new(&two_namespaces());
    let host = world.add_host();
    let admin = world.admin(host);
    let on = world.io(admin, 1, 128);
    let bytes = pattern(64 * 4096, 5);
    world.hosts[host].put(0, &bytes);
    let cids: Vec<Cid> = (0..64)
        .map(|i| {
            let sgl = world.keyed(on, i * 4096, 4096);
            world.post(on, &write(1, i as u64 * 8, 4096).with_data(sgl), &[])
        })
        .collect();
    for cid in cids {
        assert!(world.response(on, cid).status().is_success());
    }
    assert!(world.read(on, 1, 0, bytes.len()) == bytes);
}

/// A host that sends more commands than its queue has entries waits for receives, and nothing
/// breaks.
#[test]
fn more_commands_than_entries_wait() {
    let mut world = World::slow(&two_namespaces());
    let host = world.add_host();
    let admin = world.admin(host);
    let on = world.io(admin, 1, 4);
    let cids: Vec<Cid> = (0..24)
        .map(|i| {
            let sgl = world.keyed(on, i * 512, 512);
            world.post(on, &read(1, i as u64, 512).with_data(sgl), &[])
        })
        .collect();
    for cid in cids {
        assert!(world.response(on, cid).status().is_success());
    }
}

#[test]
fn requests_wait_for_buffers_in_turn() {
    // Each core has two blocks of twice the transfer size, one of them lent in turn.
    let config = namespaces("max_transfer_bytes = \"256KiB\"\npool_bytes = \"2MiB\"");
    let mut world = World::slow(&config);
    let host = world.add_host();
    let admin = world.admin(host);
    let queues: Vec<On> = (1..=4).map(|qid| world.io(admin, qid, 32)).collect();
    let mut waiting = BTreeSet::new();
    for round in 0..8 {
        for (index, &on) in queues.iter().enumerate() {
            let length = if round % 2 == 0 { 256 * 1024 } else { 512 };
            let sgl = world.keyed(on, (index * 8 + round) * 256 * 1024, length);
            waiting.insert((index, world.post(on, &read(1, 0, length).with_data(sgl), &[])));
        }
    }
    for (index, cid) in waiting {
        assert!(world.response(queues[index], cid).status().is_success());
    }
    world.run_for(Duration::from_secs(1));
    let stats = world.target.stats();
    assert!(stats.iter().map(|group| group.pool.waits).sum::<u64>() > 10);
    assert!(stats.iter().all(|group| group.pool.used_bytes == 0));
}

fn abort(world: &mut World, admin: On, sqid: u16, cid: Cid) -> u32 {
    let abort = Abort { sqid: Qid(sqid), cid };
    world.ok(admin, &abort.to_sqe(), &[]).dw0.get()
}

#[test]
fn a_command_not_yet_begun_is_aborted() {
    let mut world = World::slow(&two_namespaces());
    let host = world.add_host();
    let admin = world.admin(host);
    let on = world.io(admin, 1, 32);
    let sgl = world.keyed(on, 0, 512);
    let cid = world.post(on, &read(1, 0, 512).with_data(sgl), &[]);
    let start = world.now;
    world.run_for(Duration::from_micros(200));
    assert_eq!(abort(&mut world, admin, 1, cid), Abort::DONE);
    let took = world.now - start;
    assert!(took < Duration::from_millis(4), "it did not wait for the medium: {took:?}");
    let cqe = world.response(on, cid);
    assert_eq!(cqe.status().without_flags(), Status::ABORT_REQUESTED);
}

#[test]
fn a_command_waiting_for_a_buffer_is_aborted() {
    let config = namespaces("max_transfer_bytes = \"256KiB\"\npool_bytes = \"2MiB\"");
    let mut world = World::slow(&config);
    let host = world.add_host();
    let admin = world.admin(host);
    let on = world.io(admin, 1, 32);
    let sgl = world.keyed(on, 0, 256 * 1024);
    let cids: Vec<Cid> =
        (0..4).map(|_| world.post(on, &read(1, 0, 256 * 1024).with_data(sgl), &[])).collect();
    world.run_for(Duration::from_micros(500));
    assert_eq!(abort(&mut world, admin, 1, cids[3]), Abort::DONE);
    let cqe = world.response(on, cids[3]);
    assert_eq!(cqe.status().without_flags(), Status::ABORT_REQUESTED);
    for &cid in &cids[..3] {
        assert!(world.response(on, cid).status().is_success());
    }
}

#[test]
fn unknown_commands_are_not_aborted() {
    let mut world = World::new(&two_namespaces());
    let host = world.add_host();
    let admin = world.admin(host);
    let on = world.io(admin, 1, 32);
    let sgl = world.keyed(on, 0, 512);
    let cid = world.post(on, &read(1, 0, 512).with_data(sgl), &[]);
    world.response(on, cid);
    assert_eq!(abort(&mut world, admin, 1, cid), Abort::NOT_DONE);
    assert_eq!(abort(&mut world, admin, 1, Cid(0xFFFF)), Abort::NOT_DONE);
}

/// A queue to 8 MiB of memory filled with nonzero bytes, and a running Dataset Management command
/// with the most ranges, each of them the whole namespace.
fn zeroing_much() -> (World, On, On, Cid) {
    let mut world = World::new(&config(&format!(
        "[[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n[[subsystem.namespace]]\n\
         kind = \"memory\"\nsize_bytes = \"8MiB\"\nread_only = false\n"
    )));
    let host = world.add_host();
    let admin = world.admin(host);
    let on = world.io(admin, 1, 32);
    for slba in (0..BLOCKS).step_by(2048) {
        world.write(on, 1, slba, &[0xA5; 1 << 20]);
    }
    let ranges = [DsmRange::new(0, BLOCKS as u32); 256];
    let dsm = DatasetManagement {
        nsid: Nsid(1),
        ranges: 256,
        attributes: DsmAttributes::new().with_deallocate(true),
    };
    world.hosts[host].put(0, ranges.as_bytes());
    let sgl = world.keyed(on, 0, 4096);
    let cid = world.post(on, &dsm.to_sqe().with_data(sgl), &[]);
    (world, admin, on, cid)
}

const BLOCKS: u64 = (8 << 20) / 512;

#[test]
fn a_command_that_zeroes_much_lets_others_pass() {
    let (mut world, _, on, dsm) = zeroing_much();
    // Once its ranges have arrived and it is running, a read arrives.
    world.run_for(Duration::from_micros(50));
    let last = world.read(on, 1, BLOCKS - 1, 512);
    assert!(world.take_response(on, dsm).is_none(), "it is not over yet");
    assert!(last == [0; 512] || last == [0xA5; 512], "{last:?}");
    assert!(world.response(on, dsm).status().is_success());
    for slba in (0..BLOCKS).step_by(2048) {
        assert!(world.read(on, 1, slba, 1 << 20) == [0; 1 << 20]);
    }
}

#[test]
fn a_command_that_zeroes_much_is_aborted() {
    let (mut world, admin, on, dsm) = zeroing_much();
    world.run_for(Duration::from_micros(50));
    assert_eq!(abort(&mut world, admin, 1, dsm), Abort::DONE);
    let cqe = world.response(on, dsm);
    assert_eq!(cqe.status().without_flags(), Status::ABORT_REQUESTED);
    world.read(on, 1, 0, 512);
}

/// A host may answer "receiver not ready" for ever, so there is a timeout.
#[test]
fn a_host_that_takes_no_response_is_disconnected() {
    let config = namespaces("max_transfer_bytes = \"256KiB\"\npool_bytes = \"4MiB\"");
    let mut world = World::new(&config);
    let (stubborn, other) = (world.add_host(), world.add_host());
    let stubborn_admin = world.admin(stubborn);
    let stubborn_io = world.io(stubborn_admin, 1, 16);
    // One receive for each entry is posted: exactly this many responses find a place.
    world.hosts[stubborn].post_no_more(stubborn_io.queue);
    let admin = world.admin(other);
    let io = world.io(admin, 1, 64);
    for slot in 0..24 {
        let sgl = world.keyed(stubborn_io, slot * 256 * 1024, 256 * 1024);
        world.post(stubborn_io, &read(1, 0, 256 * 1024).with_data(sgl), &[]);
    }
    world.run_for(Duration::from_secs(1));
    assert_ne!(used(&mut world), 0, "buffers are held");
    assert_eq!(world.read(io, 1, 0, 256 * 1024), vec![0; 256 * 1024]);
    world.wait_down(stubborn_io);
    world.run_for(Duration::from_secs(1));
    assert_eq!(used(&mut world), 0, "every buffer came back");
    assert_eq!(world.read(io, 1, 0, 256 * 1024), vec![0; 256 * 1024]);
    assert_eq!(world.state(stubborn_admin), Link::Up(32));
}

/// Occasional responses do not entitle a host to keep the buffers of all others.
#[test]
fn a_host_that_takes_responses_slowly_is_disconnected() {
    let config = namespaces("max_transfer_bytes = \"256KiB\"\npool_bytes = \"4MiB\"");
    let mut world = World::new(&config);
    let host = world.add_host();
    let admin = world.admin(host);
    let on = world.io(admin, 1, 16);
    world.hosts[host].post_no_more(on.queue);
    for slot in 0..24 {
        let sgl = world.keyed(on, slot * 4096, 4096);
        world.post(on, &read(1, 0, 4096).with_data(sgl), &[]);
    }
    for _ in 0..2 {
        world.run_for(Duration::from_secs(9));
        assert_ne!(used(&mut world), 0, "buffers are held");
        world.hosts[host].take_one_more(on.queue);
    }
    world.run_for(Duration::from_secs(3));
    assert_eq!(world.state(on), Link::Down, "two timeouts have passed");
    world.run_for(Duration::from_secs(1));
    assert_eq!(used(&mut world), 0);
}

/// All reads of zeros share one buffer, so they neither wait for one nor hold one.
#[test]
fn a_read_of_zeros_needs_no_buffer() {
    let config = namespaces("max_transfer_bytes = \"256KiB\"\npool_bytes = \"2MiB\"");
    let mut world = World::new(&config);
    let host = world.add_host();
    let admin = world.admin(host);
    let on = world.io(admin, 1, 32);
    world.write(on, 1, 0, &[0xA5; 256 * 1024]);
    for slot in 0..24 {
        let sgl = world.keyed(on, slot * 256 * 1024, 256 * 1024);
        world.post(on, &read(2, 0, 256 * 1024).with_data(sgl), &[]);
    }
    world.run_for(Duration::from_micros(100));
    assert_eq!(used(&mut world), 0);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.read(on, 2, 7, 256 * 1024), vec![0; 256 * 1024]);
    let waits: u64 = world.target.stats().iter().map(|group| group.pool.waits).sum();
    assert_eq!(waits, 0);
}

fn used(world: &mut World) -> u64 {
    world.target.stats().iter().map(|group| group.pool.used_bytes).sum()
}

/// A host that asks for much and accepts nothing keeps at most its share of the buffers busy, over
/// any number of connections.
#[test]
fn a_stalled_host_does_not_starve_others() {
    let config = namespaces("max_transfer_bytes = \"256KiB\"\npool_bytes = \"4MiB\"");
    let mut world = World::slow(&config);
    let (greedy, other) = (world.add_host(), world.add_host());
    let greedy_admin = world.admin(greedy);
    let greedy_ios: Vec<On> = (1..=8).map(|qid| world.io(greedy_admin, qid, 32)).collect();
    let admin = world.admin(other);
    let io = world.io(admin, 1, 64);
    for slot in 0..20 {
        for &on in &greedy_ios {
            let sgl = world.keyed(on, slot * 256 * 1024, 256 * 1024);
            world.post(on, &read(2, 0, 256 * 1024).with_data(sgl), &[]);
        }
    }
    // All commands have arrived, and their media operations are running.
    world.run_for(Duration::from_millis(2));
    world.network.cut("10.0.0.1".parse().unwrap(), "10.0.1.1".parse().unwrap());
    world.run_for(Duration::from_millis(10));
    assert_ne!(used(&mut world), 0, "the greedy host's buffers are held");
    let start = world.now;
    for _ in 0..5 {
        assert_eq!(world.read(io, 1, 0, 256 * 1024), vec![0; 256 * 1024]);
    }
    let took = world.now - start;
    assert!(took < Duration::from_secs(1), "five reads of five milliseconds took {took:?}");
    assert_eq!(world.target.associations().controllers().len(), 2, "long before it is given up");
}

/// Each core has the fewest possible blocks, and there are always small reads that end at different
/// times.
#[test]
fn small_reads_do_not_starve_a_large_one() {
    const LARGE: usize = 256 * 1024;
    let config = namespaces("max_transfer_bytes = \"256KiB\"\npool_bytes = \"2MiB\"");
    let mut world = World::slow(&config);
    let (a, b) = (world.add_host(), world.add_host());
    let admin = world.admin(a);
    // Queues on both cores.
    let small: Vec<On> = (1..=2).map(|qid| world.io(admin, qid, 32)).collect();
    let admin = world.admin(b);
    let on = world.io(admin, 1, 32);
    let mut waiting = VecDeque::new();
    for (slot, &queue) in (0..64).zip(small.iter().cycle()) {
        waiting.push_back((queue, post_small(&mut world, queue, slot)));
        world.run_for(Duration::from_micros(100));
    }
    let start = world.now;
    let sgl = world.keyed(on, 1 << 20, LARGE);
    let large = world.post(on, &read(1, 0, LARGE).with_data(sgl), &[]);
    while world.take_response(on, large).is_none() {
        assert!(world.now - start < Duration::from_millis(100), "twenty times the time of a read");
        world.run_for(Duration::from_micros(50));
        for _ in 0..waiting.len() {
            let (queue, cid) = waiting.pop_front().unwrap();
            let cid = match world.take_response(queue, cid) {
                Some(_) => post_small(&mut world, queue, waiting.len()),
                None => cid,
            };
            waiting.push_back((queue, cid));
        }
    }
}

fn post_small(world: &mut World, on: On, slot: usize) -> Cid {
    let sgl = world.keyed(on, slot % 64 * 4096, 512);
    world.post(on, &read(1, 0, 512).with_data(sgl), &[])
}

/// A host on no allow-list may use the discovery service, under as many names as it invents.
#[test]
fn discovery_takes_no_buffers_from_hosts() {
    let mut world = World::new(&config(&format!(
        "[[subsystem]]\nnqn = \"{NQN}\"\nallowed_hosts = [\"nqn.2026-01.io.feedrail:host0\"]\n\
         [[subsystem.namespace]]\nkind = \"memory\"\nsize_bytes = \"4MiB\"\nread_only = false\n"
    )));
    let (friend, stranger) = (world.add_host(), world.add_host());
    let admin = world.admin(friend);
    let io = world.io(admin, 1, 64);
    let lines: Vec<On> = (0..60).map(|number| world.discover(stranger, number)).collect();
    for &on in &lines {
        // It accepts only the responses that it has receives for.
        world.hosts[stranger].post_no_more(on.queue);
        for _ in 0..24 {
            let sgl = world.keyed(on, 0, 64 << 10);
            let page = GetLogPage::new(LogId::ERROR, 64 << 10);
            let sqe = AdminCommand::GetLogPage(page).to_sqe().with_data(sgl);
            world.post(on, &sqe, &[]);
        }
    }
    world.run_for(Duration::from_millis(5));
    for &on in &lines {
        for _ in 0..32 {
            let sgl = world.keyed(on, 0, 64 << 10);
            let page = GetLogPage::new(LogId::ERROR, 64 << 10);
            let sqe = AdminCommand::GetLogPage(page).to_sqe().with_data(sgl);
            world.post(on, &sqe, &[]);
        }
    }
    world.run_for(Duration::from_millis(200));
    assert_ne!(used(&mut world), 0, "the discovery host holds its share");
    let most = (world.target.stats().len() * ANONYMOUS_POOL_BYTES) as u64;
    assert!(used(&mut world) <= most, "{}", used(&mut world));
    let start = world.now;
    for _ in 0..5 {
        world.read(io, 1, 0, 1 << 20);
    }
    let again = world.admin(friend);
    world.io(again, 1, 64);
    let took = world.now - start;
    assert!(took < Duration::from_secs(1), "five reads and two connections took {took:?}");
}

#[test]
fn discovery_transfers_are_bounded_by_mdts() {
    let mut world = World::new(&two_namespaces());
    let host = world.add_host();
    let on = world.discover(host, 1);
    let identify = Identify::new(Cns::CONTROLLER);
    let sqe = AdminCommand::Identify(identify).to_sqe().with_data(world.keyed(on, 0, 4096));
    world.ok(on, &sqe, &[]);
    let mdts = world.hosts[host].get(77, 1)[0];
    assert_eq!(4096_u32 << mdts, ANONYMOUS_TRANSFER_BYTES);
    for (bytes, expected) in [
        (ANONYMOUS_TRANSFER_BYTES + 4, Status::INVALID_FIELD),
        (ANONYMOUS_TRANSFER_BYTES, Status::SUCCESS),
    ] {
        world.hosts[host].fill(0, bytes as usize, 0xEE);
        let page = AdminCommand::GetLogPage(GetLogPage::new(LogId::DISCOVERY, bytes.into()));
        let sqe = page.to_sqe().with_data(world.keyed(on, 0, bytes as usize));
        assert_eq!(world.status(on, &sqe, &[]), expected, "{bytes}");
    }
    // Zeros follow the page, not the bytes of the buffer's last use.
    let data = world.hosts[host].get(0, ANONYMOUS_TRANSFER_BYTES as usize);
    assert!(data[4096..ANONYMOUS_TRANSFER_BYTES as usize].iter().all(|byte| *byte == 0));
}
