//! Files whose operations lock their ranges.
#![expect(unsafe_code, reason = "lends pool memory to operations")]

use super::*;

/// One core writes 16 blocks, each time with another byte, while another core reads them.
#[test]
fn a_block_of_a_file_is_never_half_written() {
    use std::sync::atomic::{AtomicBool, Ordering};

    const READS: u32 = 10_000;
    const BYTES: usize = 64 << 10;
    let (_file, backend) = buffered(&[0; BYTES]);
    let tried_first = file_with(&[0; BYTES]);
    let mode = OpenMode { cache: CachePolicy::Use, ..WRITABLE };
    let tried_first = open_file(FilePlace::named(tried_first.path()), mode).unwrap().backend;
    let engines = 0..Rig::each().len();
    for (backend, engine) in [backend, tried_first]
        .iter()
        .flat_map(|backend| engines.clone().map(move |at| (backend, at)))
    {
        let over = AtomicBool::new(false);
        let torn = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut rig = Rig::each().swap_remove(engine);
                for fill in (0..=u8::MAX).cycle() {
                    rig.write(backend, 0, &[fill; BYTES], false).unwrap();
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let mut rig = Rig::each().swap_remove(engine);
            let mut torn = 0;
            for _ in 0..READS {
                let bytes = rig.read(backend, 0, BYTES).unwrap();
                let is_torn = |block: &&[u8]| block.iter().any(|byte| *byte != block[0]);
                torn += bytes.chunks(4096).filter(is_torn).count();
            }
            over.store(true, Ordering::Relaxed);
            torn
        });
        assert_eq!(torn, 0, "of 16 blocks, read {READS} times");
    }
}

/// Whether a step is a wait for others.
pub(super) fn waits(step: &Step) -> bool {
    matches!(step, Step::WaitUntil(_))
}

#[test]
fn operations_wait_for_the_writer_of_their_page() {
    let (_file, backend) = buffered(&[1; 16_384]);
    let backend = &*backend;
    let mut rig = Rig::each().remove(0);
    let buffer = rig.buffer(&[2; 4096]);
    // SAFETY: no call is really made.
    let span = || unsafe { rig.pool.span(&buffer, 0, 4096) };
    let changes: [(Operation, i32); 4] = [
        (Operation::write(0, span(), false), 4096),
        (Operation::write_zeroes(0, 4096, false, false), 0),
        (Operation::write_zeroes(0, 4096, false, true), 0),
        (Operation::deallocate(0, 4096), 0),
    ];
    for (mut change, result) in changes {
        assert!(matches!(backend.start(Time::ZERO, &mut change), Step::Call(_)));
        let mut read = Operation::read(0, span());
        let mut write = Operation::write(0, span(), false);
        assert!(waits(&backend.start(Time::ZERO, &mut read)));
        assert!(waits(&backend.start(Time::ZERO, &mut write)));
        let others = [Operation::flush(), Operation::read(4096, span())];
        for mut other in others {
            assert!(matches!(backend.start(Time::ZERO, &mut other), Step::Call(_)), "{other:?}");
        }
        assert!(waits(&backend.resume(Time::ZERO, &mut read, 0)));
        assert!(matches!(backend.resume(Time::ZERO, &mut change, result), Step::Done(Ok(()))));
        drop(change);
        assert!(waits(&backend.resume(Time::ZERO, &mut write, 0)), "the read came before it");
        assert!(matches!(backend.resume(Time::ZERO, &mut read, 0), Step::Call(_)));
        assert!(matches!(backend.resume(Time::ZERO, &mut read, 4096), Step::Done(Ok(()))));
        drop(read);
        assert!(matches!(
            backend.resume(Time::ZERO, &mut write, 0),
            Step::Call(SystemCall::Write { .. })
        ));
    }
}

/// Whether a read of a block waits while a write of it is running.
fn locks_ranges(backend: &dyn Backend) -> bool {
    let mut rig = Rig::each().remove(0);
    let buffer = rig.buffer(&[2; 4096]);
    // SAFETY: no call is really made.
    let span = || unsafe { rig.pool.span(&buffer, 0, 4096) };
    // Nothing is written, so the file may be read-only.
    let mut write = Operation::write(0, span(), false);
    assert!(matches!(backend.start(Time::ZERO, &mut write), Step::Call(_)));
    waits(&backend.start(Time::ZERO, &mut Operation::read(0, span())))
}

#[test]
fn only_writable_buffered_files_have_locks() {
    // Recent kernels take direct I/O there, and use the page cache.
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = rustix::fs::memfd_create("feedrail-test", flags).unwrap();
    rustix::fs::ftruncate(&file, 8192).unwrap();
    let path = std::path::PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    assert!(locks_ranges(&*open_file(FilePlace::named(&path), WRITABLE).unwrap().backend));
    assert!(!locks_ranges(&*open_file(FilePlace::named(&path), READ_ONLY).unwrap().backend));
}

#[test]
fn no_operation_waits_for_durability_alone() {
    let (_file, backend) = buffered(&[1; 8192]);
    let backend = &*backend;
    let mut rig = Rig::each().remove(0);
    let buffer = rig.buffer(&[2; 4096]);
    // SAFETY: no call is really made.
    let span = || unsafe { rig.pool.span(&buffer, 0, 4096) };
    let mut write = Operation::write(0, span(), true);
    assert!(matches!(backend.start(Time::ZERO, &mut write), Step::Call(_)));
    let synced = backend.resume(Time::ZERO, &mut write, 4096);
    assert!(matches!(synced, Step::Call(SystemCall::Sync { .. })), "{synced:?}");
    let mut read = Operation::read(0, span());
    assert!(matches!(backend.start(Time::ZERO, &mut read), Step::Call(_)));
}

#[test]
fn a_waiting_operation_is_cancelled_at_once() {
    for mut rig in Rig::each() {
        let (_file, backend) = buffered(&[1; 8192]);
        let mut holder = Operation::write_zeroes(0, 8192, false, false);
        assert!(matches!(backend.start(Time::ZERO, &mut holder), Step::Call(_)));
        let zeroes = Operation::write_zeroes(4096, 4096, false, false);
        let submitted = rig.storage.submit(rig.now, 7, &backend, zeroes);
        let Submitted::UnderWay(key) = submitted else { panic!("{submitted:?}") };
        for _ in 0..20 {
            rig.now = rig.storage.deadline().unwrap();
            rig.storage.turn(rig.now);
            assert!(rig.storage.next_report().is_none());
        }
        rig.storage.cancel(key);
        assert_eq!(rig.finish(), Err(BackendError::Cancelled));
        assert_eq!(rig.storage.in_flight(), 0);
        drop(holder);
        assert_eq!(rig.read(&backend, 0, 8192).unwrap(), [1; 8192], "and has left nothing locked");
    }
}

#[test]
fn dropping_storage_ends_waits_and_releases_locks() {
    for mut rig in Rig::each() {
        let (_file, backend) = buffered(&[1; 8192]);
        let submit = |rig: &mut Rig| {
            let zeroes = Operation::write_zeroes(0, 8192, false, false);
            rig.storage.submit(rig.now, 7, &backend, zeroes)
        };
        let submitted = [submit(&mut rig), submit(&mut rig)];
        assert!(submitted.iter().all(|one| matches!(one, Submitted::UnderWay(_))));
        rig.storage.abandon();
        let mut later = Operation::write_zeroes(0, 8192, false, false);
        assert!(matches!(backend.start(Time::ZERO, &mut later), Step::Call(_)));
    }
}
