//! Reads of files through the page cache, past it, and mixed.

use std::fs::File;

use rustix::fs::Advice;

use super::range_locks::waits;
use super::*;

/// All policies of a configuration, with room for the files of tests.
fn policies(room: &Arc<CacheRoom>) -> [CachePolicy<'_>; 3] {
    [CachePolicy::Bypass, CachePolicy::Use, CachePolicy::WhileRoom(room)]
}

fn room() -> Arc<CacheRoom> {
    Arc::new(CacheRoom::of(Some(1 << 40)))
}

fn opened(file: &NamedTempFile, writable: bool, cache: CachePolicy<'_>) -> OpenedBackend {
    open_file(FilePlace::named(file.path()), OpenMode { writable, lba_shift: None, cache }).unwrap()
}

/// Evicts the file from the page cache, as far as the kernel complies.
fn evict(file: &File) {
    file.sync_all().unwrap();
    rustix::fs::fadvise(file, 0, None, Advice::DontNeed).unwrap();
}

#[test]
fn all_ways_read_the_same_bytes() {
    let room = room();
    for size in [1, 4095, 300_001, BLOCK - 512] {
        let bytes = pattern(size);
        let padded = [&bytes[..], &vec![0; size.next_multiple_of(512) - size]].concat();
        for (cache, writable) in
            policies(&room).into_iter().flat_map(|one| [(one, false), (one, true)])
        {
            let file = file_with(if writable { &padded } else { &bytes });
            let backend = opened(&file, writable, cache).backend;
            for mut rig in Rig::each() {
                for (offset, length) in [
                    (0, padded.len()),
                    (0, 512),
                    (padded.len() - 512, 512),
                    (padded.len() / 1024 * 512, 512),
                ] {
                    let read = rig.read(&backend, offset as u64, length).unwrap();
                    assert!(
                        read == padded[offset..][..length],
                        "{size} {cache:?} {offset} {length}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_file_in_the_page_cache_has_any_offset() {
    let bytes = pattern(300_001);
    let file = file_with(&bytes);
    let backend = opened(&file, false, CachePolicy::Use).backend;
    for mut rig in Rig::each() {
        for (offset, length) in [(1, 1), (4095, 2), (77, 262_144), (99, 299_902)] {
            assert!(
                rig.read(&backend, offset as u64, length).unwrap() == bytes[offset..][..length]
            );
        }
    }
}

#[test]
fn hot_files_are_read_from_the_page_cache() {
    let room = room();
    let bytes = pattern(BLOCK);
    for cache in policies(&room) {
        let file = file_with(&bytes);
        let opened = opened(&file, false, cache);
        for mut rig in Rig::each() {
            assert!(rig.read(&opened.backend, 0, BLOCK).unwrap() == bytes);
            let before = rig.storage.stats();
            assert!(rig.read(&opened.backend, 0, BLOCK).unwrap() == bytes);
            let after = rig.storage.stats();
            let cached = after.cached_read_bytes - before.cached_read_bytes;
            let from_medium = (after.buffered_read_bytes + after.direct_read_bytes)
                - (before.buffered_read_bytes + before.direct_read_bytes);
            let expected = match cache {
                CachePolicy::Bypass => (0, BLOCK as u64),
                CachePolicy::Use | CachePolicy::WhileRoom(_) => (BLOCK as u64, 0),
            };
            assert_eq!((cached, from_medium), expected, "{cache:?} {}", opened.access);
            let files = if opened.access == IoMode::CachedReads { 2 } else { 1 };
            assert_eq!(opened.files.len(), files, "those that leave the rings with it");
        }
    }
}

#[test]
fn what_the_page_cache_lacks_comes_from_the_medium() {
    let room = room();
    let bytes = pattern(BLOCK);
    for cache in [CachePolicy::Use, CachePolicy::WhileRoom(&room)] {
        let file = file_with(&bytes);
        let backend = opened(&file, false, cache).backend;
        for mut rig in Rig::each() {
            // The kernel may keep a page that it is using.
            let missed = (0..100).any(|_| {
                evict(file.as_file());
                assert!(rig.read(&backend, 0, BLOCK).unwrap() == bytes);
                rig.storage.stats().buffered_read_bytes > 0
            });
            assert!(missed, "{cache:?}");
            assert_eq!(rig.storage.stats().direct_read_bytes, 0, "{cache:?}");
        }
    }
}

#[test]
fn reads_see_what_was_written() {
    let room = room();
    for cache in policies(&room) {
        let file = file_with(&pattern(BLOCK));
        let backend = opened(&file, true, cache).backend;
        for mut rig in Rig::each() {
            for (round, durable) in [(1, false), (2, true), (3, false)] {
                let bytes = vec![round; 8192];
                rig.read(&backend, 0, 65_536).unwrap();
                rig.write(&backend, 4096, &bytes, durable).unwrap();
                assert!(rig.read(&backend, 4096, 8192).unwrap() == bytes, "{cache:?} {round}");
                rig.run(&backend, Operation::write_zeroes(8192, 4096, durable, false)).unwrap();
                let read = rig.read(&backend, 4096, 8192).unwrap();
                assert!(read[..4096] == bytes[..4096] && read[4096..] == [0; 4096], "{cache:?}");
                rig.run(&backend, Operation::flush()).unwrap();
            }
        }
    }
}

#[test]
fn a_file_that_was_cut_fails_the_same_in_each_way() {
    let room = room();
    for cache in policies(&room) {
        for engine in 0..Rig::each().len() {
            let file = file_with(&pattern(65_536));
            let opened = opened(&file, false, cache);
            let mut rig = Rig::each().swap_remove(engine);
            rig.read(&opened.backend, 0, 65_536).unwrap();
            file.as_file().set_len(10_000).unwrap();
            for offset in [32_768, 8192] {
                let failed = rig.read(&opened.backend, offset, 8192);
                assert_eq!(failed, Err(BackendError::Shrunk), "{cache:?} {offset}");
            }
            assert!(rig.read(&opened.backend, 0, 8192).unwrap() == pattern(65_536)[..8192]);
            assert!(opened.health.shrank(), "{cache:?}");
        }
    }
}

/// Steps a read of a file by hand, with the results of its calls.
struct ByHand {
    backend: Arc<dyn Backend>,
    rig: Rig,
    buffer: Buffer,
}

impl ByHand {
    fn new(file: &NamedTempFile, cache: CachePolicy<'_>) -> Self {
        let mut rig = Rig::each().remove(0);
        let buffer = rig.buffer(&[0; 16_384]);
        Self { backend: opened(file, false, cache).backend, rig, buffer }
    }

    fn read(&self, returned: &[i32]) -> Vec<Step> {
        // SAFETY: no call is really made, and each span is dropped before the next is used.
        let span = unsafe { self.rig.pool.span(&self.buffer, 0, 16_384) };
        results(&*self.backend, Operation::read(0, span), returned)
    }
}

#[test]
fn the_rest_of_a_try_goes_to_the_ring() {
    let room = room();
    let file = file_with(&pattern(16_384));
    for cache in [CachePolicy::Use, CachePolicy::WhileRoom(&room)] {
        let by_hand = ByHand::new(&file, cache);
        let steps = by_hand.read(&[16_384]);
        assert!(matches!(steps[..], [Step::ReadCached(_), Step::Done(Ok(()))]), "{steps:?}");
        let steps = by_hand.read(&[5000, 11_384]);
        assert!(matches!(steps[0], Step::ReadCached(read) if !read.file.direct), "{steps:?}");
        let Step::Call(SystemCall::Read { file, offset, part }) = steps[1] else {
            panic!("{steps:?}")
        };
        assert_eq!((file.direct, offset, part.length()), (false, 5000, 11_384), "{cache:?}");
        assert!(matches!(steps[2], Step::Done(Ok(()))), "{steps:?}");
        for errno in [libc::EAGAIN, libc::EINTR, libc::EIO] {
            let steps = by_hand.read(&[-errno, -libc::EIO]);
            assert!(
                matches!(steps[1], Step::Call(SystemCall::Read { offset: 0, .. })),
                "{errno} {steps:?}"
            );
            assert!(matches!(steps[2], Step::Done(Err(BackendError::Medium(_)))), "{steps:?}");
        }
    }
}

#[test]
fn a_file_system_that_refuses_a_try_is_not_asked_again() {
    let file = file_with(&pattern(16_384));
    for errno in [libc::EOPNOTSUPP, libc::ENOSYS] {
        let by_hand = ByHand::new(&file, CachePolicy::Use);
        let steps = by_hand.read(&[-errno, 16_384]);
        assert!(matches!(steps[0], Step::ReadCached(_)), "{steps:?}");
        assert!(matches!(steps[1..], [Step::Call(_), Step::Done(Ok(()))]), "{steps:?}");
        let steps = by_hand.read(&[16_384]);
        assert!(matches!(steps[..], [Step::Call(_), Step::Done(Ok(()))]), "{steps:?}");
    }
}

#[test]
fn reads_go_past_the_cache_while_memory_lacks() {
    let room = Arc::new(CacheRoom::of(Some(1 << 20)));
    let file = file_with(&pattern(16_384));
    if opened(&file, false, CachePolicy::Bypass).access != IoMode::Direct {
        return eprintln!("not tested, without direct I/O");
    }
    let by_hand = ByHand::new(&file, CachePolicy::WhileRoom(&room));
    room.found(16_383);
    let steps = by_hand.read(&[16_384]);
    let Step::Call(SystemCall::Read { file: past, .. }) = steps[0] else { panic!("{steps:?}") };
    assert!(past.direct);
    room.found(1 << 20);
    // A read that has begun keeps its path.
    // SAFETY: no call is really made.
    let span = unsafe { by_hand.rig.pool.span(&by_hand.buffer, 0, 16_384) };
    let mut read = Operation::read(0, span);
    assert!(matches!(by_hand.backend.start(Time::ZERO, &mut read), Step::ReadCached(_)));
    room.found(0);
    let step = by_hand.backend.resume(Time::ZERO, &mut read, 5000);
    let Step::Call(SystemCall::Read { file: through, offset: 5000, .. }) = step else {
        panic!("{step:?}")
    };
    assert!(!through.direct && through.id != past.id);
}

#[test]
fn only_files_that_are_read_and_fit_have_room() {
    let file = file_with(&pattern(16_384));
    let (large, small) = (CacheRoom::of(Some(1 << 20)), CacheRoom::of(Some(16_384)));
    let access = |room: CacheRoom, writable| {
        opened(&file, writable, CachePolicy::WhileRoom(&Arc::new(room))).access
    };
    let bypass = opened(&file, false, CachePolicy::Bypass).access;
    if bypass != IoMode::Direct {
        return eprintln!("not tested, without direct I/O");
    }
    assert_eq!(access(small, false), IoMode::Direct);
    assert_eq!(access(CacheRoom::of(Some(1 << 20)), true), IoMode::Direct);
    assert_eq!(access(large, false), IoMode::CachedReads);
}

#[test]
fn a_block_that_is_written_is_not_tried() {
    let file = file_with(&[1; 16_384]);
    let backend = opened(&file, true, CachePolicy::Use).backend;
    let mut rig = Rig::each().remove(0);
    let buffer = rig.buffer(&[2; 4096]);
    // SAFETY: no call is really made.
    let span = || unsafe { rig.pool.span(&buffer, 0, 4096) };
    let mut write = Operation::write(0, span(), false);
    assert!(matches!(backend.start(Time::ZERO, &mut write), Step::Call(_)));
    let mut read = Operation::read(0, span());
    assert!(waits(&backend.start(Time::ZERO, &mut read)));
    assert!(matches!(
        backend.start(Time::ZERO, &mut Operation::read(4096, span())),
        Step::ReadCached(_)
    ));
    assert!(matches!(backend.resume(Time::ZERO, &mut write, 4096), Step::Done(Ok(()))));
    drop(write);
    assert!(matches!(backend.resume(Time::ZERO, &mut read, 0), Step::ReadCached(_)));
}
