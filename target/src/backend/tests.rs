//! Each medium behaves the same on each engine.
#![expect(unsafe_code, reason = "lends pool memory to operations")]

use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use rdma::Time;
use tempfile::{NamedTempFile, TempDir};

use super::decorator::{Delay, Fault, FaultPlan, Tear};
use super::*;
use crate::backend::Span;
use crate::core_context::pool::{Buffer, Pool, PoolMemory};
use crate::storage::{Engine, Inline, Storage, StorageReport, Submitted, Uring};

mod cached;
mod decorators;
mod loop_device;
mod memory;
mod range_locks;

const BLOCK: usize = 1 << 20;

/// Storage with a pool that runs one operation at a time.
struct Rig {
    now: Time,
    // Dropped before the pool, since it waits for running operations.
    storage: Storage<u64>,
    pool: Pool,
}

impl Rig {
    fn new(engine: Box<dyn Engine>, pool: Pool) -> Self {
        let mut storage = Storage::new(engine);
        storage.reserve(16);
        Self { now: Time::ZERO, storage, pool }
    }

    /// A rig for each engine that this machine has.
    fn each() -> Vec<Self> {
        let pool = || Pool::new(PoolMemory::new(4 * BLOCK, 0).unwrap(), 0, 4, BLOCK);
        let mut rigs = vec![Self::new(Box::new(Inline::new()), pool())];
        let ring_pool = pool();
        match Uring::new(Some(ring_pool.range())) {
            Ok((uring, _)) => rigs.push(Self::new(Box::new(uring), ring_pool)),
            Err(error) => eprintln!("without io_uring: {error}"),
        }
        rigs
    }

    fn run(&mut self, backend: &Arc<dyn Backend>, what: Operation) -> Result<(), BackendError> {
        match self.storage.submit(self.now, 7, backend, what) {
            Submitted::Over(result) => result,
            Submitted::UnderWay(_) => self.finish(),
        }
    }

    fn finish(&mut self) -> Result<(), BackendError> {
        loop {
            self.storage.turn(self.now);
            match self.storage.next_report() {
                Some(StorageReport::Done { tag, result }) => {
                    assert_eq!(tag, 7);
                    return result;
                }
                Some(StorageReport::NotCancelled { .. }) => {}
                None => match self.storage.deadline() {
                    Some(at) => self.now = at,
                    None => self.storage.sleep(&[], Some(Duration::from_secs(10))),
                },
            }
        }
    }

    fn buffer(&mut self, fill: &[u8]) -> Buffer {
        let mut buffer = self.pool.allocate(fill.len() as u32).unwrap();
        // SAFETY: nothing was started on it.
        unsafe { self.pool.bytes(&mut buffer) }.copy_from_slice(fill);
        buffer
    }

    fn read(
        &mut self,
        backend: &Arc<dyn Backend>,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, BackendError> {
        let mut buffer = self.buffer(&vec![0xEE; length]);
        // SAFETY: the buffer is kept until the operation ends.
        let span = unsafe { self.pool.span(&buffer, 0, length as u32) };
        let result = self.run(backend, Operation::read(offset, span));
        // SAFETY: the operation has ended.
        let bytes = unsafe { self.pool.bytes(&mut buffer) }.to_vec();
        self.pool.release(buffer);
        result.map(|()| bytes)
    }

    fn write(
        &mut self,
        backend: &Arc<dyn Backend>,
        offset: u64,
        bytes: &[u8],
        durable: bool,
    ) -> Result<(), BackendError> {
        let buffer = self.buffer(bytes);
        // SAFETY: the buffer is kept until the operation ends.
        let span = unsafe { self.pool.span(&buffer, 0, bytes.len() as u32) };
        let result = self.run(backend, Operation::write(offset, span, durable));
        self.pool.release(buffer);
        result
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn file_with(bytes: &[u8]) -> NamedTempFile {
    // In the source folder, since a tmpfs may lack direct I/O.
    let mut file = NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    file.write_all(bytes).unwrap();
    file
}

const WRITABLE: OpenMode<'_> =
    OpenMode { writable: true, lba_shift: None, cache: CachePolicy::Bypass };
const READ_ONLY: OpenMode<'_> = OpenMode { writable: false, ..WRITABLE };

#[test]
fn a_file_reads_back_with_a_zero_tail() {
    for size in [1usize, 511, 512, 513, 18_071, BLOCK - 1] {
        let bytes = pattern(size);
        let file = file_with(&bytes);
        let opened = open_file(FilePlace::named(file.path()), READ_ONLY).unwrap();
        assert_eq!(opened.exact_bytes, size as u64);
        let lba = 1usize << opened.lba_shift;
        let padded = size.next_multiple_of(lba);
        for mut rig in Rig::each() {
            let mut wanted = bytes.clone();
            wanted.resize(padded, 0);
            assert!(rig.read(&opened.backend, 0, padded).unwrap() == wanted, "{size}");
            let last = rig.read(&opened.backend, (padded - lba) as u64, lba).unwrap();
            assert_eq!(last, wanted[padded - lba..]);
        }
        assert_eq!(file.as_file().metadata().unwrap().len(), size as u64, "never modified");
    }
}

#[test]
fn bytes_appended_later_read_as_zeros() {
    let mut file = file_with(&pattern(700));
    let opened = open_file(FilePlace::named(file.path()), READ_ONLY).unwrap();
    file.write_all(&[9; 5000]).unwrap();
    for mut rig in Rig::each() {
        let length = 700usize.next_multiple_of(1 << opened.lba_shift);
        let bytes = rig.read(&opened.backend, 0, length).unwrap();
        assert_eq!(bytes[..700], pattern(700));
        assert!(bytes[700..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn a_file_that_shrank_is_an_error() {
    for (was, is) in [(8192, 4096), (8192, 0), (8192, 5000), (8192, 8191), (700, 512), (700, 1)] {
        let file = file_with(&pattern(was));
        let opened = open_file(FilePlace::named(file.path()), READ_ONLY).unwrap();
        file.as_file().set_len(is).unwrap();
        for mut rig in Rig::each() {
            let length = was.next_multiple_of(1 << opened.lba_shift);
            let result = rig.read(&opened.backend, 0, length);
            assert_eq!(result, Err(BackendError::Shrunk), "{was} -> {is}");
        }
    }
}

#[test]
fn a_written_file_holds_the_bytes() {
    for mut rig in Rig::each() {
        let file = file_with(&vec![1; 64 * 1024]);
        let opened = open_file(FilePlace::named(file.path()), WRITABLE).unwrap();
        let backend = &opened.backend;
        rig.write(backend, 4096, &pattern(8192), false).unwrap();
        rig.write(backend, 61_440, &pattern(4096), true).unwrap();
        rig.run(backend, Operation::flush()).unwrap();
        let held = std::fs::read(file.path()).unwrap();
        assert_eq!(held.len(), 64 * 1024);
        assert_eq!(held[4096..12_288], pattern(8192));
        assert_eq!(held[61_440..], pattern(4096));
        assert!(held[..4096].iter().all(|&byte| byte == 1));
    }
}

#[test]
fn zeroed_ranges_read_as_zeros_without_truncation() {
    for (durable, deallocate) in [(false, false), (true, false), (false, true), (true, true)] {
        for mut rig in Rig::each() {
            let file = file_with(&pattern(256 * 1024));
            let opened = open_file(FilePlace::named(file.path()), WRITABLE).unwrap();
            let zeroes = Operation::write_zeroes(4096, 131_072, durable, deallocate);
            rig.run(&opened.backend, zeroes).unwrap();
            rig.run(&opened.backend, Operation::deallocate(196_608, 4096)).unwrap();
            let bytes = rig.read(&opened.backend, 0, 256 * 1024).unwrap();
            let wanted = pattern(256 * 1024);
            assert_eq!(bytes[..4096], wanted[..4096]);
            assert!(bytes[4096..135_168].iter().all(|&byte| byte == 0));
            assert_eq!(bytes[135_168..196_608], wanted[135_168..196_608]);
            assert!(bytes[196_608..200_704].iter().all(|&byte| byte == 0));
            assert_eq!(bytes[200_704..], wanted[200_704..]);
        }
    }
}

/// A file in the page cache.
fn buffered(bytes: &[u8]) -> (NamedTempFile, Arc<dyn Backend>) {
    let file = file_with(bytes);
    let open = std::fs::File::options().read(true).write(true).open(file.path()).unwrap();
    let backend = FileBackend::new(open.into(), bytes.len() as u64, None).with_range_locks();
    (file, Arc::new(backend))
}

fn is_write_back_failure(step: &Step) -> bool {
    matches!(step, Step::Done(Err(BackendError::WriteBackFailed)))
}

#[test]
fn nothing_is_written_after_a_failed_write_back() {
    let zeroes = || Operation::write_zeroes(0, 4096, true, false);
    let failures = || -> [(Operation, &[i32]); 3] {
        [
            (Operation::flush(), &[-libc::ENOSPC]),
            (Operation::flush(), &[-libc::EINTR, -libc::EIO]),
            (zeroes(), &[0, -libc::EIO]),
        ]
    };
    let direct = || {
        let file = file_with(&[1; 8192]);
        let backend = FileBackend::new(file.reopen().unwrap().into(), 8192, Some(4096));
        (file, Arc::new(backend) as Arc<dyn Backend>)
    };
    let each = failures().map(|failure| (failure, buffered(&[1; 8192])));
    let each = each.into_iter().chain(failures().map(|failure| (failure, direct())));
    for ((operation, returned), (_file, backend)) in each {
        let backend = &*backend;
        let mut beside = Operation::flush();
        assert!(matches!(backend.start(Time::ZERO, &mut beside), Step::Call(_)));
        let steps = results(backend, operation, returned);
        let last = steps.last().unwrap();
        assert!(matches!(last, Step::Done(Err(_))) && !is_write_back_failure(last), "{steps:?}");
        // The kernel tells only one of several calls.
        assert!(is_write_back_failure(&backend.resume(Time::ZERO, &mut beside, 0)));
        for later in [Operation::flush(), zeroes(), Operation::deallocate(0, 4096)] {
            let steps = results(backend, later, &[]);
            assert!(is_write_back_failure(&steps[0]), "{steps:?}");
        }
    }
}

#[test]
fn durable_buffered_writes_are_synced() {
    let (_file, backend) = buffered(&[1; 8192]);
    let mut rig = Rig::each().remove(0);
    let buffer = rig.buffer(&[2; 4096]);
    // SAFETY: no call is really made, and each span is dropped before the next is used.
    let span = || unsafe { rig.pool.span(&buffer, 0, 4096) };
    // No room for the write itself: nothing that was acknowledged is lost.
    let steps = results(&*backend, Operation::write(0, span(), true), &[-libc::ENOSPC]);
    assert!(matches!(steps[0], Step::Call(SystemCall::Write { durable: false, .. })), "{steps:?}");
    assert!(matches!(steps[1], Step::Done(Err(BackendError::OutOfSpace(_)))), "{steps:?}");
    let steps = results(&*backend, Operation::write(0, span(), true), &[4096, -libc::EIO]);
    assert!(matches!(steps[1], Step::Call(SystemCall::Sync { .. })), "{steps:?}");
    assert!(matches!(steps[2], Step::Done(Err(BackendError::Medium(_)))), "{steps:?}");
    let steps = results(&*backend, Operation::write(0, span(), false), &[]);
    assert!(is_write_back_failure(&steps[0]), "{steps:?}");
    let steps = results(&*backend, Operation::read(0, span()), &[4096]);
    assert!(matches!(steps[1], Step::Done(Ok(()))), "{steps:?}");
}

#[test]
fn a_cut_file_is_not_extended() {
    let direct = || {
        let file = file_with(&vec![1; 64 << 10]);
        let backend = open_file(FilePlace::named(file.path()), WRITABLE).unwrap().backend;
        (file, backend)
    };
    for mut rig in Rig::each() {
        for (file, backend) in [direct(), buffered(&vec![1; 64 << 10])] {
            let length = || file.as_file().metadata().unwrap().len();
            file.as_file().set_len(16 << 10).unwrap();
            let shrunk = Err(BackendError::Shrunk);
            assert_eq!(rig.write(&backend, 32 << 10, &[2; 4096], false), shrunk);
            let zeroes = Operation::write_zeroes(60 << 10, 4096, false, false);
            assert_eq!(rig.run(&backend, zeroes), shrunk);
            assert_eq!(length(), 16 << 10);
            // Another process extends it again: the bytes that were cut off stay lost.
            file.as_file().set_len(64 << 10).unwrap();
            rig.now = rig.now + Duration::from_millis(1);
            assert_eq!(rig.read(&backend, 32 << 10, 4096).unwrap_err(), BackendError::Shrunk);
            assert_eq!(rig.write(&backend, 32 << 10, &[2; 4096], false), shrunk);
            assert_eq!(rig.read(&backend, 8 << 10, 8192).unwrap(), vec![1; 8192]);
            rig.write(&backend, 8 << 10, &[3; 4096], true).unwrap();
            rig.run(&backend, Operation::flush()).unwrap();
        }
    }
}

#[test]
fn a_cut_that_a_read_finds_stops_writes() {
    let (file, backend) = buffered(&[1; 8192]);
    for mut rig in Rig::each() {
        file.as_file().set_len(4096).unwrap();
        assert_eq!(rig.read(&backend, 0, 8192), Err(BackendError::Shrunk));
        file.as_file().set_len(8192).unwrap();
        assert_eq!(rig.write(&backend, 4096, &[2; 4096], false), Err(BackendError::Shrunk));
    }
}

/// Runs a backend's steps by hand, with the results that a file system would give.
fn results(backend: &dyn Backend, mut operation: Operation, results: &[i32]) -> Vec<Step> {
    let mut steps = vec![backend.start(Time::ZERO, &mut operation)];
    for &result in results {
        steps.push(backend.resume(Time::ZERO, &mut operation, result));
    }
    steps
}

#[test]
fn zeros_are_written_without_zero_range() {
    let file = file_with(&pattern(256 * 1024));
    let opened = open_file(FilePlace::named(file.path()), WRITABLE).unwrap();
    let zeroes = Operation::write_zeroes(0, 131_072, true, true);
    let refused = -libc::EOPNOTSUPP;
    let steps = results(&*opened.backend, zeroes, &[refused, refused, 65_536, 65_536, 0]);
    assert!(matches!(steps[0], Step::Call(SystemCall::Fallocate { mode: 3, .. })), "{steps:?}");
    assert!(matches!(steps[1], Step::Call(SystemCall::Fallocate { mode: 0x11, .. })), "{steps:?}");
    assert!(matches!(steps[2], Step::Call(SystemCall::Write { offset: 0, .. })), "{steps:?}");
    assert!(matches!(steps[3], Step::Call(SystemCall::Write { offset: 65_536, .. })), "{steps:?}");
    assert!(matches!(steps[4], Step::Call(SystemCall::Sync { .. })), "{steps:?}");
    assert!(matches!(steps[5], Step::Done(Ok(()))), "{steps:?}");
    // The file system is not asked again; returning the space silently does nothing.
    let again = results(&*opened.backend, Operation::write_zeroes(0, 512, false, true), &[]);
    assert!(matches!(again[0], Step::Call(SystemCall::Write { .. })), "{again:?}");
    let trim = results(&*opened.backend, Operation::deallocate(0, 512), &[]);
    assert!(matches!(trim[0], Step::Done(Ok(()))), "{trim:?}");
}

#[test]
fn two_refused_holes_do_not_rule_out_zero_range() {
    let (_file, backend) = buffered(&[1; 16_384]);
    let zeroes = |offset| Operation::write_zeroes(offset, 4096, false, true);
    let (mut one, mut other) = (zeroes(0), zeroes(8192));
    for operation in [&mut one, &mut other] {
        assert!(matches!(backend.start(Time::ZERO, operation), Step::Call(_)));
    }
    for operation in [&mut one, &mut other] {
        let step = backend.resume(Time::ZERO, operation, -libc::EOPNOTSUPP);
        assert!(matches!(step, Step::Call(SystemCall::Fallocate { mode: 0x11, .. })), "{step:?}");
    }
    let later = results(&*backend, zeroes(4096), &[]);
    assert!(matches!(later[0], Step::Call(SystemCall::Fallocate { mode: 0x11, .. })), "{later:?}");
}

#[test]
fn short_interrupted_and_failed_calls() {
    let file = file_with(&pattern(16_384));
    let opened = open_file(FilePlace::named(file.path()), WRITABLE).unwrap();
    let backend = &*opened.backend;
    let mut rig = Rig::each().remove(0);
    let buffer = rig.buffer(&[0; 16_384]);
    // SAFETY: no call is really made, and each span is dropped before the next is used.
    let span = || unsafe { rig.pool.span(&buffer, 0, 16_384) };

    let steps = results(backend, Operation::read(0, span()), &[4096, -libc::EINTR, 12_288]);
    assert!(matches!(steps[1], Step::Call(SystemCall::Read { offset: 4096, .. })), "{steps:?}");
    assert!(matches!(steps[2], Step::Call(SystemCall::Read { offset: 4096, .. })), "{steps:?}");
    assert!(matches!(steps[3], Step::Done(Ok(()))), "{steps:?}");

    let steps = results(backend, Operation::write(0, span(), true), &[8192, 8192]);
    assert!(
        matches!(steps[1], Step::Call(SystemCall::Write { offset: 8192, durable: true, .. })),
        "{steps:?}"
    );
    assert!(matches!(steps[2], Step::Done(Ok(()))), "{steps:?}");

    for (errno, error) in [
        (libc::ENOSPC, BackendError::from_errno(libc::ENOSPC)),
        (libc::EIO, BackendError::from_errno(libc::EIO)),
        (libc::ECANCELED, BackendError::Cancelled),
        (libc::EROFS, BackendError::from_errno(libc::EROFS)),
    ] {
        let steps = results(backend, Operation::write(0, span(), false), &[-errno]);
        assert!(matches!(steps[1], Step::Done(Err(got)) if got == error), "{steps:?}");
    }
    let steps = results(backend, Operation::write(0, span(), false), &[0]);
    assert!(matches!(steps[1], Step::Done(Err(BackendError::Medium(_)))), "no progress is no loop");
}

#[test]
fn unfit_media_are_refused_with_a_reason() {
    let folder = TempDir::new().unwrap();
    let text = |path: &std::path::Path, mode| {
        open_file(FilePlace::named(path), mode).unwrap_err().to_string()
    };
    assert!(text(folder.path(), READ_ONLY).contains("is a directory"));
    assert!(text(&folder.path().join("none"), READ_ONLY).contains("No such file"));

    let odd = file_with(&pattern(1000));
    let message = text(odd.path(), OpenMode { lba_shift: Some(9), ..WRITABLE });
    assert!(message.contains("`truncate -s 1024 "), "{message}");
    let empty = file_with(&[]);
    assert!(text(empty.path(), READ_ONLY).contains("is empty"));
    let not_block = open_block(odd.path(), READ_ONLY).unwrap_err().to_string();
    assert!(not_block.contains("is not a block device"), "{not_block}");

    let fifo = folder.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    assert!(text(&fifo, READ_ONLY).contains("is not a regular file"));

    if !rustix::process::geteuid().is_root() {
        std::fs::set_permissions(odd.path(), PermissionsExt::from_mode(0o000)).unwrap();
        assert!(text(odd.path(), READ_ONLY).contains("must be allowed to open it"));
    }
    assert!(open_null(1000, READ_ONLY).is_err());
    assert!(open_memory(0, READ_ONLY).is_err());
    assert!(open_memory(1000, READ_ONLY).is_err());
}

/// Endless interruptions fail the command and do not block a core for ever.
#[test]
fn endless_interruptions_end_in_an_error() {
    let file = file_with(&[0; 4096]);
    let backend = open_file(FilePlace::named(file.path()), WRITABLE).unwrap().backend;
    let mut pool = Pool::new(PoolMemory::new(BLOCK, 0).unwrap(), 0, 1, BLOCK);
    let buffer = pool.allocate(4096).unwrap();
    // SAFETY: no system call is made, and the operations are gone before the buffer.
    let span = || unsafe { pool.span(&buffer, 0, 4096) };
    let operations: [fn(Span) -> Operation; 5] = [
        |span| Operation::read(0, span),
        |span| Operation::write(0, span, true),
        |_| Operation::flush(),
        |_| Operation::write_zeroes(0, 4096, true, true),
        |_| Operation::deallocate(0, 4096),
    ];
    for (operation, errno) in
        operations.iter().flat_map(|one| [(one, libc::EINTR), (one, libc::EAGAIN)])
    {
        let mut operation = operation(span());
        let mut step = backend.start(Time::ZERO, &mut operation);
        let mut calls = 0;
        while let Step::Call(_) = step {
            calls += 1;
            assert!(calls < 10_000, "{operation:?} never ends");
            step = backend.resume(Time::ZERO, &mut operation, -errno);
        }
        assert!(
            matches!(step, Step::Done(Err(BackendError::Medium(_)))),
            "{operation:?}: {step:?}"
        );
        assert!(calls > 100, "it was patient: {calls}");
    }
    pool.release(buffer);
}

#[test]
fn interruptions_between_which_something_is_done_are_borne() {
    let file = file_with(&[0; 4096]);
    file.as_file().set_len(1 << 30).unwrap();
    let backend = open_file(FilePlace::named(file.path()), WRITABLE).unwrap().backend;
    let mut zeroes = Operation::write_zeroes(0, 1 << 30, false, false);
    // The file system makes no zeros: they are written, a page at a time.
    let mut step = match backend.start(Time::ZERO, &mut zeroes) {
        Step::Call(SystemCall::Fallocate { .. }) => {
            backend.resume(Time::ZERO, &mut zeroes, -libc::EOPNOTSUPP)
        }
        other => panic!("{other:?}"),
    };
    for call in 0..10_000 {
        assert!(matches!(step, Step::Call(SystemCall::Write { .. })), "{call}: {step:?}");
        let result = if call % 500 == 0 { 4096 } else { -libc::EINTR };
        step = backend.resume(Time::ZERO, &mut zeroes, result);
    }
}

#[test]
fn null_reads_zeros_over_old_data() {
    let opened = open_null(1 << 40, WRITABLE).unwrap();
    for mut rig in Rig::each() {
        rig.write(&opened.backend, 0, &pattern(4096), true).unwrap();
        assert_eq!(rig.read(&opened.backend, 1 << 39, 4096).unwrap(), vec![0; 4096]);
        rig.run(&opened.backend, Operation::flush()).unwrap();
    }
}

#[test]
fn one_turn_resumes_a_bounded_number_of_operations() {
    let mut rig = Rig::each().remove(0);
    let backend = open_memory(1 << 20, WRITABLE).unwrap().backend;
    for tag in 0..100 {
        let zeroes = Operation::write_zeroes(0, 4096, false, false);
        assert!(matches!(
            rig.storage.submit(rig.now, tag, &backend, zeroes),
            Submitted::UnderWay(_)
        ));
    }
    rig.now = rig.storage.deadline().unwrap();
    let (mut turns, mut ended) = (0, 0);
    while rig.storage.turn(rig.now) {
        turns += 1;
        ended += std::iter::from_fn(|| rig.storage.next_report()).count();
    }
    assert_eq!((ended, rig.storage.in_flight()), (100, 0));
    assert!(turns > 5, "{turns}");
}
