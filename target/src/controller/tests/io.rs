//! NVM commands: which are refused, and the byte ranges of the others.

use nvme_proto::nvm::{DatasetManagement, DsmAttributes, DsmRange, Flush, Io, WriteZeroes};
use nvme_proto::{Cid, LbaRange, Nsid, NvmCommand, Psdt, SqeFlags};
use proptest::prelude::*;

use super::*;
use crate::backend::BackendError;
use crate::controller::IoKind;

fn line() -> (Line, Line) {
    let associations = associations();
    let (admin, cntlid) = ready(&associations, Time::ZERO);
    (io_queue(&associations, 1, cntlid, Time::ZERO), admin)
}

fn read(nsid: u32, slba: u64, blocks: u32) -> Sqe {
    NvmCommand::Read(Io::new(Nsid(nsid), slba, blocks)).to_sqe()
}

fn write(nsid: u32, slba: u64, blocks: u32, fua: bool) -> Sqe {
    NvmCommand::Write(Io { fua, ..Io::new(Nsid(nsid), slba, blocks) }).to_sqe()
}

#[test]
fn commands_become_bytes() {
    let (mut line, _admin) = line();
    let (transfer, work) = line.io(read(1, 7, 2)).expect("legal");
    assert_eq!(transfer, Some((TransferDirection::ControllerToHost, 1024)));
    assert_eq!(
        (work.kind, work.offset_bytes, work.length_bytes),
        (IoKind::Read { fua: false }, 7 * 512, 1024)
    );

    let (transfer, work) = line.io(read(3, 7, 2)).expect("legal");
    assert_eq!(transfer, Some((TransferDirection::ControllerToHost, 8192)));
    let bytes = (work.offset_bytes, work.length_bytes);
    assert_eq!((work.kind, bytes), (IoKind::ReadZeros, (7 * 4096, 8192)));

    let (transfer, work) = line.io(write(1, 1, 3, true)).expect("legal");
    assert_eq!(transfer, Some((TransferDirection::HostToController, 1536)));
    assert_eq!((work.kind, work.offset_bytes), (IoKind::Write { fua: true }, 512));

    let range = LbaRange { slba: 0, blocks: 2048 };
    let zeroes =
        WriteZeroes { nsid: Nsid(1), range, deallocate: true, fua: false, limited_retry: false };
    let (transfer, work) = line.io(zeroes.to_sqe()).expect("no data, so no limit but the size");
    assert_eq!((transfer, work.length_bytes), (None, 1 << 20));
    assert_eq!(work.kind, IoKind::WriteZeroes { fua: false, deallocate: true });

    let (transfer, work) =
        line.io(Flush { nsid: Nsid(3) }.to_sqe()).expect("legal on a read-only namespace");
    assert_eq!((transfer, work.kind, work.length_bytes), (None, IoKind::Flush, 0));

    let compare = NvmCommand::Compare(Io::new(Nsid(3), 4, 1));
    let (transfer, work) = line.io(compare.to_sqe()).expect("legal on a read-only namespace");
    assert_eq!(transfer, Some((TransferDirection::HostToController, 4096)));
    assert_eq!(work.kind, IoKind::Compare { fua: false });
}

#[test]
fn wrong_commands_get_their_status() {
    let (mut line, _admin) = line();
    let cases = [
        (read(2, 0, 1), Status::INVALID_NAMESPACE_OR_FORMAT),
        (read(0, 0, 1), Status::INVALID_NAMESPACE_OR_FORMAT),
        (read(u32::MAX, 0, 1), Status::INVALID_NAMESPACE_OR_FORMAT),
        (read(1, 2048, 1), Status::LBA_OUT_OF_RANGE),
        (read(1, 2047, 2), Status::LBA_OUT_OF_RANGE),
        (read(1, u64::MAX, 1), Status::LBA_OUT_OF_RANGE),
        (read(1, u64::MAX - 1, 65_536), Status::LBA_OUT_OF_RANGE),
        (read(1, 0, 129), Status::INVALID_FIELD),
        (read(3, 0, 65_536), Status::INVALID_FIELD),
        (write(3, 0, 1, false), Status::NAMESPACE_IS_WRITE_PROTECTED),
        (Sqe::new(0x0C).with_nsid(Nsid(1)), Status::INVALID_OPCODE),
        (Sqe::new(0xFF).with_nsid(Nsid(1)), Status::INVALID_OPCODE),
        (Flush { nsid: Nsid::ALL }.to_sqe(), Status::INVALID_NAMESPACE_OR_FORMAT),
    ];
    for (sqe, expected) in cases {
        let status = line.refused(sqe);
        assert!(status.is(expected) && status.do_not_retry(), "{sqe:?}: {status}, not {expected}");
    }
    for flags in [
        SqeFlags::new().with_psdt(Psdt::PRP),
        SqeFlags::new().with_psdt(Psdt::SGL_METADATA_SGL),
        SqeFlags::new().with_psdt(Psdt::SGL).with_fuse(1),
    ] {
        let sqe = Sqe { flags, ..read(1, 0, 1) };
        assert!(line.refused(sqe).is(Status::INVALID_FIELD), "{flags:?}");
    }
    // Only the admin queue has properties.
    let get = PropertyGet { property: Property::CSTS, size: PropertySize::FourBytes };
    assert!(line.refused(get.to_sqe()).is(Status::INVALID_OPCODE));
}

#[test]
fn deallocation_is_all_or_nothing() {
    let (mut line, _admin) = line();
    let attributes = DsmAttributes::new().with_deallocate(true);
    let dsm = |nsid, ranges| DatasetManagement { nsid: Nsid(nsid), ranges, attributes }.to_sqe();
    let (transfer, work) = line.io(dsm(1, 3)).expect("legal");
    assert_eq!(transfer, Some((TransferDirection::HostToController, 48)));
    let ranges = [DsmRange::new(0, 8), DsmRange::new(5, 0), DsmRange::new(2040, 8)];
    line.queue.check_ranges(&work, ranges.as_bytes()).expect("inside");
    let mut passed = 0;
    let next = || line.queue.next_range(&work, ranges.as_bytes(), &mut passed);
    let bytes: Vec<_> = std::iter::from_fn(next).collect();
    assert_eq!(bytes, [(0, 4096), (2040 * 512, 4096)]);
    for outside in [DsmRange::new(2041, 8), DsmRange::new(u64::MAX, 2)] {
        let ranges = [DsmRange::new(0, 8), outside];
        let status = line.queue.check_ranges(&work, ranges.as_bytes()).expect_err("outside");
        assert!(status.is(Status::LBA_OUT_OF_RANGE));
        // The next range is found without another pass over all of them.
        let next = line.queue.next_range(&work, ranges.as_bytes(), &mut 0);
        assert_eq!(next, Some((0, 4096)));
    }
    assert!(line.refused(dsm(3, 1)).is(Status::NAMESPACE_IS_WRITE_PROTECTED));
    let hint = DatasetManagement { nsid: Nsid(1), ranges: 1, attributes: DsmAttributes::new() };
    let done = line.queue.parse(Time::ZERO, &hint.to_sqe()).expect_err("nothing to do");
    assert_eq!(done, CommandOutcome::SUCCESS);
}

#[test]
fn storage_errors_are_not_held_against_hosts() {
    let (mut line, admin) = line();
    let associations = Arc::clone(&line.queue.associations);
    let (_, work) = line.io(read(1, 9, 1)).expect("legal");
    let error = BackendError::from_errno(libc::EIO);
    assert!(!line.queue.finish_io(Cid(1), &work, Err(error)).status.is_success());
    associations.storage_failed(Time::ZERO, work.namespace, work.kind, &"read", error);
    line.close();
    admin.close();
    assert_eq!(associations.peer_errors().worst(9), []);
    let failed = associations.inventory().storage_errors(9);
    assert_eq!((failed.len(), failed[0].nsid, failed[0].read_errors), (1, 1, 1));
    assert_eq!(failed[0].nqn, SUBSYSTEM);
}

#[test]
fn storage_errors_become_status_and_are_counted() {
    let (mut line, mut admin) = line();
    let (_, read) = line.io(read(1, 9, 1)).expect("legal");
    let (_, write) = line.io(write(1, 9, 1, false)).expect("legal");
    let cases = [
        (read, BackendError::from_errno(libc::EIO), Status::UNRECOVERED_READ_ERROR),
        (write, BackendError::from_errno(libc::EIO), Status::WRITE_FAULT),
        (read, BackendError::Shrunk, Status::UNRECOVERED_READ_ERROR),
        (write, BackendError::from_errno(libc::ENOSPC), Status::CAPACITY_EXCEEDED),
        (write, BackendError::from_errno(libc::EROFS), Status::NAMESPACE_IS_WRITE_PROTECTED),
        (write, BackendError::from_errno(libc::EOPNOTSUPP), Status::INVALID_OPCODE),
        (read, BackendError::Cancelled, Status::ABORT_REQUESTED),
        (read, BackendError::from_errno(libc::EINVAL), Status::INTERNAL_ERROR),
    ];
    for (work, error, expected) in cases {
        let status = line.queue.finish_io(Cid(1), &work, Err(error)).status;
        assert!(status.is(expected), "{error}: {status}");
    }
    let mut page = [0; 512];
    let get = nvme_proto::log::GetLogPage::new(nvme_proto::log::LogId::SMART, 512);
    assert!(admin.control(get.to_sqe(), &mut page).expect("done").status().is_success());
    let smart: nvme_proto::log::SmartLog =
        nvme_proto::FromBytes::read_from_bytes(&page).expect("its size");
    assert_eq!((smart.media_errors.get(), smart.error_log_entries.get()), (3, 8));
    assert_eq!(line.queue.associations.inventory().io_stats().failed, 8);
}

proptest! {
    /// A command that passes lies within the namespace and the transfer limit.
    #[test]
    fn accepted_ranges_are_inside(nsid in 1_u32..4, slba in prop_oneof![0_u64..3000, any::<u64>()], blocks in 1_u32..=65_536) {
        let (mut line, _admin) = line();
        if let Ok((transfer, work)) = line.io(read(nsid, slba, blocks)) {
            let namespace = line.queue.associations.inventory().namespace(work.namespace);
            let namespace = namespace.expect("it is exported");
            let size = namespace.size_blocks << namespace.lba_shift;
            prop_assert!(work.offset_bytes + work.length_bytes <= size);
            prop_assert_eq!(transfer.map(|(_, length)| u64::from(length)), Some(work.length_bytes));
            prop_assert!(work.length_bytes <= 65_536);
        }
    }
}
