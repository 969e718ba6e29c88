//! Commands and their data: successes, and the status of each mistake.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use feedrail_target::backend::{Backend, BackendError, Step};
use feedrail_target::backend::{Operation, OperationKind};
use feedrail_target::testing::{Delay, Fault, FaultPlan};
use nvme_proto::fabrics::{Disconnect, PropertyGet, PropertySize};
use nvme_proto::feature::{AsyncEventConfig, Feature, SetFeatures, WriteProtection};
use nvme_proto::nvm::{DatasetManagement, DsmAttributes, DsmRange, Flush, Io, WriteZeroes};
use nvme_proto::registers::Property;
use nvme_proto::{
    AdminCommand, Cid, Cntlid, IntoBytes, LbaRange, Nsid, NvmCommand, Sgl, SglDescriptor, Sqe,
    SqeFlags, Status,
};
use rdma::Time;

use super::host::Link;
use super::pattern;
use super::world::{On, World, io, read, two_namespaces, write};

fn one_queue() -> (World, On) {
    let mut world = World::new(&two_namespaces());
    let host = world.add_host();
    let admin = world.admin(host);
    let io = world.io(admin, 1, 32);
    (world, io)
}

#[test]
fn written_content_is_read_back() {
    let (mut world, on) = one_queue();
    for (slba, length) in [(0, 512), (1, 4096), (100, 65_536), (0, 1 << 20)] {
        let bytes = pattern(length, slba as u32);
        world.write(on, 1, slba, &bytes);
        assert!(world.read(on, 1, slba, length) == bytes, "{length} bytes at {slba}");
    }
    assert_eq!(world.read(on, 2, 0, 4096), vec![0; 4096]);
}

#[test]
fn data_in_the_capsule_is_written() {
    let (mut world, on) = one_queue();
    let bytes = pattern(4096, 1);
    let in_capsule = Sgl::InCapsule { offset: 0, length: 4096 };
    world.ok(on, &write(1, 8, 4096).with_data(in_capsule), &bytes);
    assert!(world.read(on, 1, 8, 4096) == bytes);
    // Data not at the start of the capsule's data is copied, and works.
    let shifted = Sgl::InCapsule { offset: 24, length: 512 };
    let data = [&[0xAA; 24][..], &bytes[..512]].concat();
    world.ok(on, &write(1, 100, 512).with_data(shifted), &data);
    assert!(world.read(on, 1, 100, 512) == bytes[..512]);
    assert_eq!(world.read(on, 1, 101, 512), vec![0; 512]);
}

#[test]
fn a_wrong_descriptor_costs_the_command_only() {
    let (mut world, on) = one_queue();
    let mut unknown = SglDescriptor::NO_DATA.as_bytes().to_vec();
    unknown[15] = 0x5A;
    let unknown: SglDescriptor = nvme_proto::FromBytes::read_from_bytes(&unknown).unwrap();
    let in_capsule = |offset, length| Sgl::InCapsule { offset, length };
    let short = world.keyed(on, 0, 511);
    let cases: Vec<(Sqe, &[u8], Status)> = vec![
        (write(1, 0, 512).with_data(short), &[], Status::DATA_SGL_LENGTH_INVALID),
        (read(1, 0, 512).with_data(short), &[], Status::DATA_SGL_LENGTH_INVALID),
        (read(1, 0, 512), &[], Status::DATA_SGL_LENGTH_INVALID),
        (write(1, 0, 512).with_data(unknown), &[], Status::SGL_DESCRIPTOR_TYPE_INVALID),
        (write(1, 0, 512).with_data(in_capsule(0, 512)), &[0; 511], Status::SGL_OFFSET_INVALID),
        (write(1, 0, 512).with_data(in_capsule(1, 512)), &[0; 512], Status::SGL_OFFSET_INVALID),
        (
            write(1, 0, 512).with_data(in_capsule(0, 511)),
            &[0; 511],
            Status::DATA_SGL_LENGTH_INVALID,
        ),
        (
            read(1, 0, 512).with_data(in_capsule(0, 512)),
            &[0; 512],
            Status::SGL_DESCRIPTOR_TYPE_INVALID,
        ),
        (
            write(1, 0, 512).with_data(Sgl::LastSegment { offset: 0, length: 16 }),
            &[0; 16],
            Status::SGL_DESCRIPTOR_TYPE_INVALID,
        ),
    ];
    for (sqe, data, status) in cases {
        assert_eq!(world.status(on, &sqe, data), status, "{sqe:?}");
    }
    let mut prp = read(1, 0, 512).with_data(world.keyed(on, 0, 512));
    prp.flags = SqeFlags::new();
    assert_eq!(world.status(on, &prp, &[]), Status::INVALID_FIELD);
    assert_eq!(world.read(on, 1, 0, 512), vec![0; 512], "nothing was written");
}

#[test]
fn ranges_are_checked() {
    let (mut world, on) = one_queue();
    let keyed = world.keyed(on, 0, 2 << 20);
    let last = (1 << 20) / 512 - 1;
    let status = |world: &mut World, sqe: Sqe| world.status(on, &sqe.with_data(keyed), &[]);
    assert_eq!(status(&mut world, read(1, last, 512)), Status::SUCCESS);
    assert_eq!(status(&mut world, read(1, last, 1024)), Status::LBA_OUT_OF_RANGE);
    assert_eq!(status(&mut world, read(1, u64::MAX, 512)), Status::LBA_OUT_OF_RANGE);
    assert_eq!(status(&mut world, read(9, 0, 512)), Status::INVALID_NAMESPACE_OR_FORMAT);
    assert_eq!(status(&mut world, read(2, 0, (1 << 20) + 512)), Status::INVALID_FIELD, "MDTS");
}

#[test]
fn compare_zeroes_deallocate_and_flush() {
    let (mut world, on) = one_queue();
    let bytes = pattern(8192, 3);
    world.write(on, 1, 16, &bytes);
    let compare = NvmCommand::Compare(io(1, 16, 8192)).to_sqe();
    world.hosts[on.host].put(0, &bytes);
    let keyed = world.keyed(on, 0, 8192);
    world.ok(on, &compare.with_data(keyed), &[]);
    world.hosts[on.host].put(8191, &[bytes[8191] ^ 1]);
    assert_eq!(world.status(on, &compare.with_data(keyed), &[]), Status::COMPARE_FAILURE);
    let in_capsule = Sgl::InCapsule { offset: 0, length: 512 };
    let compare = NvmCommand::Compare(io(1, 16, 512)).to_sqe().with_data(in_capsule);
    world.ok(on, &compare, &bytes[..512]);
    assert_eq!(world.status(on, &compare, &bytes[1..513]), Status::COMPARE_FAILURE);
    // A medium that always reads as zeros.
    let compare = NvmCommand::Compare(io(2, 16, 512)).to_sqe().with_data(in_capsule);
    assert_eq!(world.status(on, &compare, &bytes[..512]), Status::COMPARE_FAILURE);
    world.ok(on, &compare, &[0; 512]);

    world.ok(on, &Flush { nsid: Nsid(1) }.to_sqe(), &[]);
    let zeroes = WriteZeroes {
        nsid: Nsid(1),
        range: LbaRange { slba: 16, blocks: 2 },
        deallocate: true,
        fua: true,
        limited_retry: false,
    };
    world.ok(on, &zeroes.to_sqe(), &[]);
    let range = DsmRange::new;
    let ranges = [range(20, 1), range(0, 0), range(24, 8)];
    let dsm = DatasetManagement {
        nsid: Nsid(1),
        ranges: 3,
        attributes: DsmAttributes::new().with_deallocate(true),
    };
    // As kernels send it: a whole page with three valid ranges.
    let mut page = vec![0xFF; 4096];
    page[..48].copy_from_slice(ranges.as_bytes());
    world.hosts[on.host].put(0, &page);
    let keyed = world.keyed(on, 0, 4096);
    world.ok(on, &dsm.to_sqe().with_data(keyed), &[]);
    let mut wanted = bytes;
    wanted[..1024].fill(0);
    wanted[4 * 512..5 * 512].fill(0);
    wanted[8 * 512..].fill(0);
    assert!(world.read(on, 1, 16, 8192) == wanted);
}

/// Hosts of SPDK abandon their event requests silently when they detach.
#[test]
fn an_event_requests_id_may_be_reused() {
    let mut world = World::new(&two_namespaces());
    let host = world.add_host();
    let admin = world.admin(host);
    let get = PropertyGet { property: Property::CSTS, size: PropertySize::FourBytes };
    // More often than the queue has entries.
    for _ in 0..100 {
        let cid = world.post(admin, &AdminCommand::AsyncEventRequest.to_sqe(), &[]);
        world.hosts[host].send(admin.queue, &get.to_sqe().with_cid(cid), &[]);
        assert!(world.response(admin, cid).status().is_success());
    }
    // Any other command keeps its CID.
    let set = Feature::NamespaceWriteProtection(WriteProtection::None);
    let set = SetFeatures { nsid: Nsid(1), save: false, feature: set }.to_sqe();
    world.ok(admin, &set, &[]);
    // A host gets no event through an abandoned request.
    let config = AsyncEventConfig::new().with_namespace_attribute(true);
    let set = Feature::AsyncEventConfig(config);
    let set = SetFeatures { nsid: Nsid(0), save: false, feature: set }.to_sqe();
    world.ok(admin, &set, &[]);
    let request = world.post(admin, &AdminCommand::AsyncEventRequest.to_sqe(), &[]);
    let other = world.add_host();
    let other_admin = world.admin(other);
    let set = Feature::NamespaceWriteProtection(WriteProtection::Protected);
    let set = SetFeatures { nsid: Nsid(1), save: false, feature: set }.to_sqe();
    world.ok(other_admin, &set, &[]);
    assert!(world.response(admin, request).status().is_success());
}

#[test]
fn a_long_admin_queue_connects() {
    let mut world = World::new(&two_namespaces());
    let host = world.add_host();
    for asked in [128, 256] {
        let (admin, link) = world.link(host, 0, 256);
        assert_eq!(link, Link::Up(128));
        assert!(world.nvme_connect(admin, Cntlid::DYNAMIC, asked).status().is_success());
        let get = PropertyGet { property: Property::CSTS, size: PropertySize::FourBytes };
        let cids: Vec<_> = (0..200).map(|_| world.post(admin, &get.to_sqe(), &[])).collect();
        for cid in cids {
            assert!(world.response(admin, cid).status().is_success());
        }
    }
}

#[test]
fn an_id_in_flight_is_refused() {
    let mut world = World::slow(&two_namespaces());
    let host = world.add_host();
    let admin = world.admin(host);
    let on = world.io(admin, 1, 32);
    let sqe = read(1, 0, 512).with_data(world.keyed(on, 0, 512)).with_cid(Cid(77));
    world.hosts[host].send(on.queue, &sqe, &[]);
    world.hosts[host].send(on.queue, &sqe, &[]);
    let first = world.response(on, Cid(77));
    assert_eq!(first.status().without_flags(), Status::COMMAND_ID_CONFLICT);
    let second = world.response(on, Cid(77));
    assert!(second.status().is_success(), "{second:?}");
    // Afterwards it is free again.
    world.hosts[host].send(on.queue, &sqe, &[]);
    assert!(world.response(on, Cid(77)).status().is_success());
}

/// A medium that records its operations.
#[derive(Debug)]
struct Journal {
    inner: Arc<dyn Backend>,
    kinds: Arc<Mutex<Vec<OperationKind>>>,
}

impl Backend for Journal {
    fn start(&self, now: Time, operation: &mut Operation) -> Step {
        self.kinds.lock().unwrap().push(operation.kind());
        self.inner.start(now, operation)
    }

    fn resume(&self, now: Time, operation: &mut Operation, result: i32) -> Step {
        self.inner.resume(now, operation, result)
    }
}

#[test]
fn forced_reads_come_from_the_medium() {
    let kinds = Arc::new(Mutex::new(Vec::new()));
    for delay in [Duration::ZERO, Duration::from_millis(1)] {
        let mut config = two_namespaces();
        let mut protected = config.subsystems[0].namespaces[0].clone();
        (protected.nsid, protected.settings.writable, protected.uuid) =
            (Nsid(3), false, uuid::Uuid::max());
        config.subsystems[0].namespaces.push(protected);
        let mut world = World::with(&config, 1, rdma::sim::SimConfig::default(), &|_, inner| {
            let inner: Arc<dyn Backend> = Arc::new(Delay::new(inner, delay));
            Arc::new(Journal { inner, kinds: Arc::clone(&kinds) })
        });
        let host = world.add_host();
        let admin = world.admin(host);
        let on = world.io(admin, 1, 32);
        let bytes = pattern(4096, 1);
        world.write(on, 1, 8, &bytes);
        let keyed = world.keyed(on, 0, 4096);
        let forced = |nsid| Io { fua: true, ..io(nsid, 8, 4096) };
        let asked = |world: &mut World, command: NvmCommand| {
            kinds.lock().unwrap().clear();
            world.ok(on, &command.to_sqe().with_data(keyed), &[]);
            kinds.lock().unwrap().clone()
        };
        let both = [OperationKind::Flush, OperationKind::Read];
        assert_eq!(asked(&mut world, NvmCommand::Compare(forced(1))), both);
        world.hosts[host].fill(0, 4096, 0xEE);
        assert_eq!(asked(&mut world, NvmCommand::Read(forced(1))), both);
        assert!(world.hosts[host].get(0, 4096) == bytes);
        // A read-only medium has no unfinished writes.
        assert_eq!(asked(&mut world, NvmCommand::Read(forced(3))), [OperationKind::Read]);
        assert_eq!(asked(&mut world, NvmCommand::Read(io(1, 8, 4096))), [OperationKind::Read]);
    }
}

#[test]
fn a_forced_read_fails_with_its_flush() {
    /// Medium with a cache that cannot be flushed.
    #[derive(Debug)]
    struct NoFlush(Arc<dyn Backend>);

    impl Backend for NoFlush {
        fn start(&self, now: Time, operation: &mut Operation) -> Step {
            match operation.kind() {
                OperationKind::Flush => Step::Done(Err(BackendError::from_errno(libc::EIO))),
                _ => self.0.start(now, operation),
            }
        }

        fn resume(&self, now: Time, operation: &mut Operation, result: i32) -> Step {
            self.0.resume(now, operation, result)
        }
    }

    let network = rdma::sim::SimConfig::default();
    let mut world =
        World::with(&two_namespaces(), 1, network, &|_, inner| Arc::new(NoFlush(inner)));
    let host = world.add_host();
    let admin = world.admin(host);
    let on = world.io(admin, 1, 32);
    let forced = NvmCommand::Read(Io { fua: true, ..io(1, 0, 512) }).to_sqe();
    let keyed = world.keyed(on, 0, 512);
    assert_eq!(world.status(on, &forced.with_data(keyed), &[]), Status::UNRECOVERED_READ_ERROR);
    assert_eq!(world.status(on, &read(1, 0, 512).with_data(keyed), &[]), Status::SUCCESS);
}

#[test]
fn disconnect_is_answered_last() {
    let mut world = World::slow(&two_namespaces());
    let host = world.add_host();
    let admin = world.admin(host);
    let (on, other) = (world.io(admin, 1, 32), world.io(admin, 2, 32));
    let reads = (0..4).map(|slot| world.keyed(on, slot * 4096, 4096)).collect::<Vec<_>>();
    let mut sent: Vec<Cid> = reads
        .into_iter()
        .map(|keyed| world.post(on, &read(1, 0, 4096).with_data(keyed), &[]))
        .collect();
    sent.push(world.post(on, &Disconnect.to_sqe(), &[]));
    world.wait_down(on);
    let responses = world.hosts[host].responses(on.queue);
    assert!(responses.iter().all(|cqe| cqe.status().is_success()), "{responses:?}");
    assert_eq!(responses.iter().map(|cqe| cqe.cid()).collect::<Vec<_>>(), sent);
    world.read(other, 1, 0, 4096);
    // An idle queue ends as well.
    world.ok(other, &Disconnect.to_sqe(), &[]);
    world.wait_down(other);
}

#[test]
fn a_medium_error_has_its_status() {
    for (error, on_read, on_write) in [
        (BackendError::from_errno(libc::EIO), Status::UNRECOVERED_READ_ERROR, Status::WRITE_FAULT),
        (
            BackendError::from_errno(libc::ENOSPC),
            Status::UNRECOVERED_READ_ERROR,
            Status::CAPACITY_EXCEEDED,
        ),
    ] {
        let plan =
            FaultPlan { ranges: std::iter::once(4096..8192).collect(), ..FaultPlan::new(error) };
        let mut world =
            World::with(&two_namespaces(), 1, rdma::sim::SimConfig::default(), &|_, backend| {
                Arc::new(Fault::new(backend, plan.clone()))
            });
        let host = world.add_host();
        let admin = world.admin(host);
        let on = world.io(admin, 1, 32);
        let keyed = world.keyed(on, 0, 4096);
        if error == BackendError::from_errno(libc::EIO) {
            assert_eq!(world.status(on, &read(1, 8, 4096).with_data(keyed), &[]), on_read);
        }
        assert_eq!(world.status(on, &write(1, 8, 4096).with_data(keyed), &[]), on_write);
        assert_eq!(world.status(on, &write(1, 0, 4096).with_data(keyed), &[]), Status::SUCCESS);
    }
}
