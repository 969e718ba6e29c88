//! Limits of hosts and namespaces, in virtual time.

use std::time::Duration;

use feedrail_target::config::{QosLimits, QosOverride};
use feedrail_target::stepped::{LiveChange, Stop};
use nvme_proto::admin::Abort;
use nvme_proto::nvm::Flush;
use nvme_proto::{AdminCommand, Cid, Nqn, Nsid, NvmCommand, Qid, Status};
use rdma::Time;

use super::host::Link;
use super::pattern;
use super::world::{NQN, On, World, config, read, write};

const FIRST: &str = "nqn.2026-01.io.feedrail:host0";

/// A memory namespace of 8 MiB (1) and a null namespace (2), with tables for the hosts and keys for
/// the first namespace.
fn limited(of_hosts: &str, of_namespace: &str) -> World {
    World::new(&config(&format!(
        "[[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n{of_hosts}\n\
         [[subsystem.namespace]]\nkind = \"memory\"\nsize_bytes = \"8MiB\"\nread_only = false\n{of_namespace}\n\
         [[subsystem.namespace]]\nkind = \"null\"\nsize_bytes = \"1TiB\"\nread_only = false\n"
    )))
}

/// Limit of the first host.
fn first_host(limits: &str) -> String {
    format!("[[subsystem.host]]\nnqn = \"{FIRST}\"\n{limits}\n")
}

fn ios(count: u64) -> QosLimits {
    QosLimits { rw_ios: count.try_into().unwrap(), ..QosLimits::default() }
}

fn nqn() -> Nqn {
    NQN.parse().unwrap()
}

/// Posts reads of one length from a namespace.
fn post_reads(world: &mut World, on: On, nsid: u32, count: usize, length: usize) -> Vec<Cid> {
    let sgl = world.keyed(on, 0, length);
    (0..count).map(|_| world.post(on, &read(nsid, 0, length).with_data(sgl), &[])).collect()
}

/// Takes the responses that have arrived; all must have this status.
fn arrived(world: &mut World, on: On, cids: &mut Vec<Cid>, status: Status) -> usize {
    let before = cids.len();
    cids.retain(|cid| match world.take_response(on, *cid) {
        Some(cqe) => {
            assert_eq!(cqe.status().without_flags(), status, "{cqe:?}");
            false
        }
        None => true,
    });
    before - cids.len()
}

fn wait_for(world: &mut World, on: On, mut cids: Vec<Cid>, status: Status) -> Time {
    world.run_until("all responses", |world| {
        arrived(world, on, &mut cids, status);
        cids.is_empty()
    });
    world.now
}

fn admin_and_queue(world: &mut World, entries: u16) -> (On, On) {
    let host = world.add_host();
    let admin = world.admin(host);
    (admin, world.io(admin, 1, entries))
}

#[test]
fn one_host_is_limited_and_another_is_not() {
    let mut world = limited(&first_host("rw_ios_per_sec = 1000"), "");
    let (admin, slow) = admin_and_queue(&mut world, 128);
    let second = world.io(admin, 2, 128);
    let (_, fast) = admin_and_queue(&mut world, 128);
    let bytes = pattern(4096, 3);
    world.write(fast, 1, 0, &bytes);
    let start = world.now;
    let mut reads = [slow, second].map(|on| post_reads(&mut world, on, 1, 100, 4096));
    let of_fast = post_reads(&mut world, fast, 1, 100, 4096);
    let done = wait_for(&mut world, fast, of_fast, Status::SUCCESS);
    assert!(done < start + Duration::from_millis(5), "{done:?}");
    world.run_for(Duration::from_millis(100));
    let nanos = (world.now.as_nanos() - start.as_nanos()) as usize;
    let counts = [0, 1].map(|at| {
        let on = [slow, second][at];
        arrived(&mut world, on, &mut reads[at], Status::SUCCESS)
    });
    let most = nanos / 1_000_000 + 11 + 2;
    let passed: usize = counts.iter().sum();
    assert!(passed <= most && passed >= nanos / 1_000_000, "{passed} of {most}");
    assert!(counts[0].abs_diff(counts[1]) <= 12, "its queues take turns: {counts:?}");
    let [of_slow, of_second] = reads;
    wait_for(&mut world, slow, of_slow, Status::SUCCESS);
    let end = wait_for(&mut world, second, of_second, Status::SUCCESS);
    let took = end.as_nanos() - start.as_nanos();
    assert!((180_000_000..200_000_000).contains(&took), "200 reads at 1,000 in a second: {took}");
    assert!(world.hosts[slow.host].get(0, 4096) == bytes, "the right bytes");
}

#[test]
fn hosts_of_a_namespace_take_turns_and_others_do_not_wait() {
    let mut world = limited("", "r_mbytes_per_sec = 10");
    let (_, deep) = admin_and_queue(&mut world, 128);
    let (_, flat) = admin_and_queue(&mut world, 128);
    let mut of_deep = post_reads(&mut world, deep, 1, 100, 128 << 10);
    world.run_for(Duration::from_millis(20));
    let of_flat = post_reads(&mut world, flat, 1, 8, 128 << 10);
    let others = post_reads(&mut world, deep, 2, 8, 4096);
    let start = world.now;
    let done = wait_for(&mut world, deep, others, Status::SUCCESS);
    assert!(done < start + Duration::from_millis(5), "another namespace has no limit");
    arrived(&mut world, deep, &mut of_deep, Status::SUCCESS);
    let left = of_deep.len();
    let done = wait_for(&mut world, flat, of_flat, Status::SUCCESS);
    // 80 reads pass in a second; the other host has every second one.
    assert!(done < start + Duration::from_millis(230), "{:?}", done - start);
    arrived(&mut world, deep, &mut of_deep, Status::SUCCESS);
    let passed = left - of_deep.len();
    assert!((6..=10).contains(&passed), "{passed}");
    let bytes = pattern(1 << 20, 9);
    let before = world.now;
    world.write(flat, 1, 0, &bytes);
    assert!(world.now < before + Duration::from_millis(50), "writes have no limit");
}

#[test]
fn a_waiting_write_has_no_buffer_and_is_aborted() {
    let mut world = limited(&first_host("w_mbytes_per_sec = 1"), "");
    let (admin, on) = admin_and_queue(&mut world, 32);
    let sgl = world.keyed(on, 0, 1 << 20);
    let cids: Vec<Cid> =
        (0..4).map(|_| world.post(on, &write(1, 0, 1 << 20).with_data(sgl), &[])).collect();
    world.run_for(Duration::from_millis(100));
    assert!(world.take_response(on, cids[0]).is_some(), "the first goes into debt");
    let stats = world.target.stats();
    assert_eq!(stats.iter().map(|group| group.pool.used_bytes).sum::<u64>(), 0);
    let start = world.now;
    for cid in [cids[1], cids[3]] {
        let abort = Abort { sqid: Qid(1), cid };
        assert_eq!(world.ok(admin, &abort.to_sqe(), &[]).dw0.get(), Abort::DONE);
        let cqe = world.response(on, cid);
        assert_eq!(cqe.status().without_flags(), Status::ABORT_REQUESTED);
    }
    world.ok(admin, &AdminCommand::KeepAlive.to_sqe(), &[]);
    let took = world.now - start;
    assert!(took < Duration::from_millis(5), "admin commands do not wait: {took:?}");
    wait_for(&mut world, on, vec![cids[2]], Status::SUCCESS);
    assert!(world.now - start < Duration::from_secs(3));
}

#[test]
fn commands_without_data_of_a_medium_do_not_wait() {
    let mut world = limited(&first_host("rw_ios_per_sec = 1000"), "");
    let (_, on) = admin_and_queue(&mut world, 128);
    let cids = post_reads(&mut world, on, 1, 60, 512);
    let start = world.now;
    let flush = NvmCommand::Flush(Flush { nsid: Nsid(1) }).to_sqe();
    for _ in 0..20 {
        world.ok(on, &flush, &[]);
    }
    assert!(world.now - start < Duration::from_millis(5));
    wait_for(&mut world, on, cids, Status::SUCCESS);
}

#[test]
fn a_host_that_leaves_makes_no_other_wait() {
    let mut world = limited("", "rw_ios_per_sec = 1000");
    let (_, gone) = admin_and_queue(&mut world, 128);
    let (_, stays) = admin_and_queue(&mut world, 128);
    post_reads(&mut world, gone, 1, 100, 4096);
    let cids = post_reads(&mut world, stays, 1, 20, 4096);
    world.run_for(Duration::from_millis(5));
    let now = world.now;
    world.hosts[gone.host].disconnect(now, gone.queue);
    let done = wait_for(&mut world, stays, cids, Status::SUCCESS);
    assert!(done - now < Duration::from_millis(30), "{:?}", done - now);
    world.wait_down(gone);
    world.run_for(Duration::from_millis(300));
    assert!(world.target.stats().iter().all(|group| group.pool.used_bytes == 0));
    // Its slots are free again.
    let admin = world.admin(gone.host);
    let again = world.io(admin, 1, 128);
    let cids = post_reads(&mut world, again, 2, 100, 4096);
    wait_for(&mut world, again, cids, Status::SUCCESS);
}

#[test]
fn commands_on_a_removed_namespace_fail() {
    let mut world = limited(&first_host("rw_ios_per_sec = 1000"), "r_mbytes_per_sec = 1");
    let (_, on) = admin_and_queue(&mut world, 128);
    let mut cids = post_reads(&mut world, on, 1, 100, 128 << 10);
    world.run_for(Duration::from_millis(50));
    arrived(&mut world, on, &mut cids, Status::SUCCESS);
    assert!(cids.len() > 90);
    let start = world.now;
    world.target.change(&nqn(), LiveChange::ToggleNamespace(Nsid(1))).unwrap();
    let done = wait_for(&mut world, on, cids, Status::INVALID_NAMESPACE_OR_FORMAT);
    assert!(done < start + Duration::from_millis(5), "{:?}", done - start);
}

#[test]
fn limits_of_connected_hosts_change() {
    let mut world = limited("[subsystem.each_host]\nrw_ios_per_sec = 1000", "");
    let (_, on) = admin_and_queue(&mut world, 128);
    let mut cids = post_reads(&mut world, on, 1, 120, 512);
    world.run_for(Duration::from_millis(20));
    let count = arrived(&mut world, on, &mut cids, Status::SUCCESS);
    assert!((20..=34).contains(&count), "{count}");
    let start = world.now;
    world.target.change(&nqn(), LiveChange::LimitEachHost(ios(0))).unwrap();
    let done = wait_for(&mut world, on, cids, Status::SUCCESS);
    assert!(done < start + Duration::from_millis(5), "{:?}", done - start);
    // A limit of the namespace comes at run time, to a target that had none.
    let limits = QosOverride { rw_ios: Some(2000.try_into().unwrap()), ..QosOverride::default() };
    world.target.change(&nqn(), LiveChange::LimitNamespace(Nsid(1), limits)).unwrap();
    let start = world.now;
    let cids = post_reads(&mut world, on, 1, 120, 512);
    let done = wait_for(&mut world, on, cids, Status::SUCCESS);
    let took = done - start;
    assert!((Duration::from_millis(47)..Duration::from_millis(60)).contains(&took), "{took:?}");
    assert_eq!(world.state(on), Link::Up(128));
}

#[test]
fn a_target_that_drains_waits_for_no_quota() {
    let mut world = limited(&first_host("rw_ios_per_sec = 1000"), "r_mbytes_per_sec = 1");
    let (_, on) = admin_and_queue(&mut world, 128);
    let mut cids = post_reads(&mut world, on, 1, 100, 128 << 10);
    world.run_for(Duration::from_millis(50));
    arrived(&mut world, on, &mut cids, Status::SUCCESS);
    let start = world.now;
    world.target.stop(Stop::Drain);
    world.run_until("the target ends", |world| world.target.is_over());
    assert!(world.now - start < Duration::from_millis(100), "{:?}", world.now - start);
    arrived(&mut world, on, &mut cids, Status::SUCCESS);
    assert!(cids.is_empty(), "{} are unanswered", cids.len());
}
