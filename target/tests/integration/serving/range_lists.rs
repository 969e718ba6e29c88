//! Read Ranges: what is read, where it goes, and the status of each mistake.

use std::time::Duration;

use nvme_proto::admin::Abort;
use nvme_proto::identify::{Cns, Identify, IdentifyController, RangeListOffer};
use nvme_proto::log::{CommandEffects, EffectsLog, GetLogPage, LogId};
use nvme_proto::nvm::{ListedRange, ReadRanges};
use nvme_proto::{AdminCommand, Cqe, FromBytes, IntoBytes, Nsid, NvmOpcode, Qid, Sgl, Sqe, Status};
use rdma::sim::SimConfig;

use super::pattern;
use super::world::{NQN, On, World, config, namespaces, two_namespaces};

/// Fill of the host's memory before a command.
const UNTOUCHED: u8 = 0xEE;

fn one_queue(mut world: World) -> (World, On, On) {
    let host = world.add_host();
    let admin = world.admin(host);
    let io = world.io(admin, 1, 32);
    (world, admin, io)
}

fn list(ranges: &[(u64, u32)]) -> Vec<ListedRange> {
    ranges.iter().map(|&(offset, length)| ListedRange::new(offset, length)).collect()
}

fn bytes_of(list: &[ListedRange]) -> u32 {
    list.iter().map(|range| range.length_bytes.get()).sum()
}

fn command(nsid: u32, list: &[ListedRange]) -> ReadRanges {
    let (ranges, length_bytes) = (list.len() as u32, bytes_of(list));
    ReadRanges { nsid: Nsid(nsid), ranges, length_bytes }
}

impl World {
    fn read_ranges(&mut self, on: On, nsid: u32, list: &[ListedRange]) -> Cqe {
        let length = bytes_of(list) as usize;
        self.hosts[on.host].fill(0, length + 8, UNTOUCHED);
        let sqe = command(nsid, list).to_sqe().with_data(self.keyed(on, 0, length));
        self.ok(on, &sqe, list.as_bytes())
    }

    fn refused(&mut self, on: On, sqe: Sqe, data: &[u8]) -> Status {
        let keyed = self.keyed(on, 0, 1 << 20);
        self.status(on, &sqe.with_data(keyed), data)
    }

    /// Every buffer is free once its host has acknowledged the response.
    fn expect_no_buffers(&mut self) {
        self.run_for(Duration::from_millis(10));
        assert!(self.target.stats().iter().all(|core| core.pool.used_bytes == 0));
    }

    /// Returns the data of an Identify or a Get Log Page.
    fn asked(&mut self, admin: On, command: &AdminCommand) -> Vec<u8> {
        let sqe = command.to_sqe().with_data(self.keyed(admin, 0, 4096));
        self.ok(admin, &sqe, &[]);
        self.hosts[admin.host].get(0, 4096)
    }
}

/// The bytes of the ranges, one after the other.
fn gathered(content: &[u8], list: &[ListedRange]) -> Vec<u8> {
    let of = |range: &ListedRange| {
        let start = range.offset_bytes.get() as usize;
        &content[start..start + range.length_bytes.get() as usize]
    };
    list.iter().flat_map(of).copied().collect()
}

#[test]
fn ranges_arrive_one_after_the_other() {
    let (mut world, _, on) = one_queue(World::new(&two_namespaces()));
    let content = pattern(1 << 20, 5);
    world.write(on, 1, 0, &content);
    for ranges in [
        list(&[(0, 8)]),
        list(&[(8, 512), (0, 16), (0, 16), ((1 << 20) - 8, 8)]),
        (0..128).map(|i| ListedRange::new(i * 4104 % 1_000_000 / 8 * 8, 2048)).collect(),
    ] {
        let cqe = world.read_ranges(on, 1, &ranges);
        assert_eq!(cqe.result(), ranges.len() as u64);
        let length = bytes_of(&ranges) as usize;
        let got = world.hosts[on.host].get(0, length + 8);
        assert!(got[..length] == gathered(&content, &ranges), "{} ranges", ranges.len());
        assert_eq!(got[length..], [UNTOUCHED; 8], "no more than the ranges");
    }
    world.expect_no_buffers();
}

#[test]
fn a_range_that_would_wait_ends_the_list() {
    // The memory has no bytes that begin within its words.
    let (mut world, _, on) = one_queue(World::new(&two_namespaces()));
    let content = pattern(4096, 6);
    world.write(on, 1, 0, &content);
    let ranges = list(&[(64, 8), (0, 16), (3, 8), (0, 8)]);
    assert_eq!(world.read_ranges(on, 1, &ranges).result(), 2);
    let got = world.hosts[on.host].get(0, 24);
    assert!(got == gathered(&content, &ranges[..2]));
    // The null medium has no cache, so that nothing of it is read.
    for (nsid, ranges) in [(1, list(&[(3, 8), (0, 8)])), (2, list(&[(0, 512), (0, 512)]))] {
        assert_eq!(world.read_ranges(on, nsid, &ranges).result(), 0);
        assert_eq!(world.hosts[on.host].get(0, 8), [UNTOUCHED; 8]);
    }
}

#[test]
fn each_mistake_has_a_status_and_costs_the_command_only() {
    let (mut world, _, on) = one_queue(World::new(&two_namespaces()));
    let good = list(&[(0, 8), (8, 16)]);
    let sqe = command(1, &good).to_sqe();
    let status =
        |world: &mut World, sqe, list: &[ListedRange]| world.refused(on, sqe, list.as_bytes());
    assert_eq!(status(&mut world, sqe, &good), Status::SUCCESS);
    assert_eq!(world.refused(on, sqe, &good.as_bytes()[..31]), Status::INVALID_FIELD, "no list");
    assert_eq!(world.refused(on, sqe, &[]), Status::INVALID_FIELD, "no list");
    let other = command(9, &good).to_sqe();
    assert_eq!(status(&mut world, other, &good), Status::INVALID_NAMESPACE_OR_FORMAT);
    for (bad, expected) in [
        (list(&[(0, 8), (0, 0)]), Status::INVALID_FIELD),
        (list(&[(0, 8), (1 << 20, 8)]), Status::LBA_OUT_OF_RANGE),
        (list(&[((1 << 20) - 4, 8)]), Status::LBA_OUT_OF_RANGE),
        (list(&[(u64::MAX, 8)]), Status::LBA_OUT_OF_RANGE),
        (list(&[(0, (256 << 10) + 8)]), Status::INVALID_FIELD),
        (list(&[(0, 8); 129]), Status::INVALID_FIELD),
    ] {
        let sqe = command(1, &bad).to_sqe();
        assert_eq!(status(&mut world, sqe, &bad), expected, "{:?}", bad[0]);
    }
    let sum = ReadRanges { length_bytes: 25, ..command(1, &good) }.to_sqe();
    assert_eq!(status(&mut world, sum, &good), Status::INVALID_FIELD, "another sum");
    let none = ReadRanges { length_bytes: 0, ..command(1, &good) }.to_sqe();
    assert_eq!(status(&mut world, none, &good), Status::INVALID_FIELD, "no bytes");
    let short = sqe.with_data(world.keyed(on, 0, 23));
    assert_eq!(world.status(on, &short, good.as_bytes()), Status::DATA_SGL_LENGTH_INVALID);
    let in_capsule = sqe.with_data(Sgl::InCapsule { offset: 0, length: 32 });
    let refused = world.status(on, &in_capsule, good.as_bytes());
    assert_eq!(refused, Status::SGL_DESCRIPTOR_TYPE_INVALID);
    assert_eq!(world.read_ranges(on, 1, &good).result(), 2, "the queue still works");
}

#[test]
fn a_controller_says_that_it_has_the_command() {
    let (mut world, admin, _) = one_queue(World::new(&two_namespaces()));
    let identify = AdminCommand::Identify(Identify::new(Cns::CONTROLLER));
    let identify = world.asked(admin, &identify);
    let identify = IdentifyController::read_from_bytes(&identify).unwrap();
    let offer = RangeListOffer { ranges: 128, bytes: 256 << 10 };
    assert_eq!(identify.range_list_offer(), Some(offer));
    let page = AdminCommand::GetLogPage(GetLogPage::new(LogId::EFFECTS, 4096));
    let page = world.asked(admin, &page);
    let effects = EffectsLog::read_from_bytes(&page).unwrap().io(NvmOpcode::READ_RANGES);
    assert_eq!(effects, CommandEffects::SUPPORTED);
}

#[test]
fn the_offer_is_as_large_as_a_capsule() {
    for (in_capsule, ranges) in [(1024, Some(64)), (16, Some(1)), (0, None)] {
        let limits =
            format!("in_capsule_data_bytes = {in_capsule}\nmax_transfer_bytes = \"64KiB\"");
        let (mut world, admin, on) = one_queue(World::new(&namespaces(&limits)));
        let identify = AdminCommand::Identify(Identify::new(Cns::CONTROLLER));
        let identify = world.asked(admin, &identify);
        let identify = IdentifyController::read_from_bytes(&identify).unwrap();
        let offer = ranges.map(|ranges| RangeListOffer { ranges, bytes: 64 << 10 });
        assert_eq!(identify.range_list_offer(), offer);
        // A list of more bytes than a transfer has.
        let long = list(&[(0, 40 << 10), (0, 40 << 10)]);
        let data = if in_capsule >= 32 { long.as_bytes() } else { &[] };
        assert_eq!(world.refused(on, command(1, &long).to_sqe(), data), Status::INVALID_FIELD);
    }
}

#[test]
fn a_list_takes_the_quota_of_its_ranges() {
    let of_host = format!(
        "[[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
         [[subsystem.host]]\nnqn = \"nqn.2026-01.io.feedrail:host0\"\nrw_ios_per_sec = 1000\n\
         [[subsystem.namespace]]\nkind = \"memory\"\nsize_bytes = \"1MiB\"\nread_only = false\n"
    );
    let (mut world, admin, on) = one_queue(World::new(&config(&of_host)));
    let ranges = list(&[(0, 8); 100]);
    let start = world.now;
    for _ in 0..3 {
        assert_eq!(world.read_ranges(on, 1, &ranges).result(), 100);
    }
    let took = world.now - start;
    let expected = Duration::from_millis(185)..Duration::from_millis(210);
    assert!(expected.contains(&took), "200 I/Os at 1,000 in a second, behind 100: {took:?}");
    // The next one waits, and is aborted.
    let sqe = command(1, &ranges).to_sqe().with_data(world.keyed(on, 0, 800));
    let cid = world.post(on, &sqe, ranges.as_bytes());
    world.run_for(Duration::from_millis(10));
    let abort = Abort { sqid: Qid(1), cid };
    assert_eq!(world.ok(admin, &abort.to_sqe(), &[]).dw0.get() & 1, 0, "it is aborted");
    assert_eq!(world.response(on, cid).status().without_flags(), Status::ABORT_REQUESTED);
}

/// The lists of two hosts are more than a turn reads, and more than there are buffers.
#[test]
fn lists_of_several_hosts_share_turns_and_buffers() {
    let limits = "pool_bytes = \"8MiB\"\nmax_transfer_bytes = \"256KiB\"";
    let mut world =
        World::with(&namespaces(limits), 3, SimConfig::default(), &|_, backend| backend);
    let content = pattern(1 << 20, 7);
    let queues: Vec<On> = (0..2)
        .map(|_| {
            let host = world.add_host();
            let admin = world.admin(host);
            world.io(admin, 1, 32)
        })
        .collect();
    for (at, piece) in content.chunks(256 << 10).enumerate() {
        world.write(queues[0], 1, at as u64 * 512, piece);
    }
    let ranges: Vec<_> = (0..64).map(|i| ListedRange::new(i * 15_000 / 8 * 8, 2048)).collect();
    let length = bytes_of(&ranges) as usize;
    let expected = gathered(&content, &ranges);
    let mut sent = Vec::new();
    for on in &queues {
        for at in 0..16 {
            let place = at % 4 * length;
            let sqe = command(1, &ranges).to_sqe().with_data(world.keyed(*on, place, length));
            sent.push((*on, world.post(*on, &sqe, ranges.as_bytes())));
        }
    }
    for (on, cid) in sent {
        let cqe = world.response(on, cid);
        assert!(cqe.status().is_success() && cqe.result() == 64, "{cqe:?}");
    }
    for on in queues {
        for at in 0..4 {
            assert!(world.hosts[on.host].get(at * length, length) == expected);
        }
    }
    world.expect_no_buffers();
}
