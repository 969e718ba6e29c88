//! Many concurrent operations, sleeping, and rings that end with running operations.
#![expect(unsafe_code, reason = "lends pool memory to operations")]

use std::os::fd::AsRawFd;

use rustix::event::EventfdFlags;

use super::*;
use crate::backend::{ClosingMedium, FilePlace, OpenMode, open_file};
use crate::core_context::pool::{Pool, PoolMemory};

mod cached;
mod gates;

fn uring(pool: &Pool) -> Option<Uring> {
    match Uring::new(Some(pool.range())) {
        Ok((uring, _)) => Some(uring),
        Err(error) => {
            eprintln!("not tested, without io_uring: {error}");
            None
        }
    }
}

fn pool() -> Pool {
    Pool::new(PoolMemory::new(4 << 20, 0).unwrap(), 0, 4, 1 << 20)
}

#[test]
fn operations_beyond_the_queue_share_system_calls() {
    // On a busy machine the kernel may end the operations of an attempt one by one.
    let few = |stats: EngineStats| stats.enters + stats.waits < 500;
    let mut tries = (0..50).map_while(|_| more_operations_than_the_queue());
    assert!(uring(&pool()).is_none() || tries.any(few));
}

/// Reads 1000 blocks concurrently; returns the engine's counters, or `None` without io_uring.
fn more_operations_than_the_queue() -> Option<EngineStats> {
    let mut pool = pool();
    let engine = uring(&pool)?;
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let bytes: Vec<u8> = (0..1024u32).flat_map(|i| [i.to_le_bytes(); 1024].concat()).collect();
    std::fs::write(file.path(), &bytes).unwrap();
    let opened = open_file(FilePlace::named(file.path()), OpenMode::default()).unwrap();
    let mut storage = Storage::new(Box::new(engine));
    storage.reserve(1000);
    let mut buffers: Vec<_> = (0..1000).map(|_| pool.allocate(4096).unwrap()).collect();
    for (tag, buffer) in buffers.iter().enumerate() {
        // SAFETY: the buffers outlive the storage, which waits for its operations.
        let span = unsafe { pool.span(buffer, 0, 4096) };
        let read = Operation::read(tag as u64 * 4096, span);
        let _ = storage.submit(Time::ZERO, tag as u64, &opened.backend, read);
    }
    let mut ended = vec![0; 1000];
    while storage.in_flight() > 0 {
        storage.sleep(&[], None);
        storage.turn(Time::ZERO);
        while let Some(report) = storage.next_report() {
            let StorageReport::Done { tag, result: Ok(()) } = report else { panic!("{report:?}") };
            ended[tag as usize] += 1;
        }
    }
    assert!(ended.iter().all(|&times| times == 1), "each ends exactly once");
    for (tag, buffer) in buffers.iter_mut().enumerate() {
        // SAFETY: all operations have ended.
        let held = unsafe { pool.bytes(buffer) };
        assert_eq!(*held, bytes[tag * 4096..][..4096]);
    }
    let stats = storage.stats();
    assert_eq!((stats.reads, stats.plain), (1000, 0));
    Some(stats)
}

#[test]
fn a_readable_watched_descriptor_ends_a_sleep() {
    let pool = pool();
    let Some(engine) = uring(&pool) else { return };
    let mut storage = Storage::<u64>::new(Box::new(engine));
    let bell = rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let watched = [bell.as_raw_fd()];
    for round in 0..3 {
        storage.sleep(&watched, Some(Duration::from_millis(1)));
        assert!(!storage.was_readable(watched[0]), "{round}");
        rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
        // Without a timeout: only the bell wakes it.
        storage.sleep(&watched, None);
        rustix::io::read(&bell, &mut [0; 8]).unwrap();
        storage.turn(Time::ZERO);
        assert_eq!(storage.in_flight(), 0, "{round}");
        assert_eq!([(); 2].map(|()| storage.was_readable(watched[0])), [true, false], "{round}");
    }
}

#[test]
fn dropping_storage_waits_for_its_operations() {
    let pool_for_ring = pool();
    let Some(engine) = uring(&pool_for_ring) else { return };
    let mut pool = pool_for_ring;
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let mode = OpenMode { writable: true, ..OpenMode::default() };
    let opened = open_file(FilePlace::named(file.path()), mode).unwrap();
    let mut storage = Storage::new(Box::new(engine));
    let mut buffer = pool.allocate(1 << 20).unwrap();
    // SAFETY: no operation is running.
    unsafe { pool.bytes(&mut buffer) }.fill(0x5A);
    // SAFETY: the buffer outlives the storage.
    let span = unsafe { pool.span(&buffer, 0, 1 << 20) };
    let _ = storage.submit(Time::ZERO, 1, &opened.backend, Operation::write(0, span, true));
    let _ = storage.submit(Time::ZERO, 2, &opened.backend, Operation::flush());
    drop(storage);
    assert!(std::fs::read(file.path()).unwrap().iter().all(|&byte| byte == 0x5A));
    pool.release(buffer);
}

#[test]
fn a_file_that_retires_is_closed() {
    let mut pool = pool();
    let Some(engine) = uring(&pool) else { return };
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    file.as_file().set_len(4096).unwrap();
    let mode = OpenMode { writable: true, ..OpenMode::default() };
    let mut storage = Storage::new(Box::new(engine));
    storage.reserve(1);
    let buffer = pool.allocate(4096).unwrap();
    for round in 0..3 {
        // One user at a time: the ring must not keep it open.
        let opened = open_file(FilePlace::named(file.path()), mode).unwrap();
        let closing = ClosingMedium::of(&opened.backend, opened.files);
        // SAFETY: the buffer outlives the storage.
        let span = unsafe { pool.span(&buffer, 0, 4096) };
        let _ = storage.submit(Time::ZERO, round, &opened.backend, Operation::read(0, span));
        assert!(!storage.release_if_idle(&closing), "the read is running");
        while storage.next_report().is_none() {
            storage.sleep(&[], None);
            storage.turn(Time::ZERO);
        }
        assert!(storage.release_if_idle(&closing));
        // A flush comes last, and must not keep it open.
        let _ = storage.submit(Time::ZERO, round, &opened.backend, Operation::flush());
        while storage.next_report().is_none() {
            storage.sleep(&[], None);
            storage.turn(Time::ZERO);
        }
    }
    drop(storage);
    pool.release(buffer);
}

#[test]
fn an_operation_makes_one_call_at_a_time() {
    let visit = Visit { gate: 0, weight: 4096 };
    let decided = |decision| CallEvent::Decided(decision);
    let events = [
        decided(GateDecision::Admitted(None)),
        decided(GateDecision::Admitted(Some(visit))),
        decided(GateDecision::Held),
        CallEvent::Released(visit),
        CallEvent::Returned,
    ];
    let steps = |from: CallProgress| events.map(|event| from.step(event));
    let (between, held) = (CallProgress::Between, CallProgress::Held);
    let [uncounted, counted] = [None, Some(visit)].map(CallProgress::Running);
    assert_eq!(steps(between), [Some(uncounted), Some(counted), Some(held), None, None]);
    assert_eq!(steps(held), [None, None, None, Some(counted), None]);
    for running in [uncounted, counted] {
        assert_eq!(steps(running), [None, None, None, None, Some(between)]);
    }
}
