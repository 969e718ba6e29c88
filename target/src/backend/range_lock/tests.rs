//! Exclusion, order and release of range locks, one step at a time.

use std::ops::Range;

use proptest::prelude::*;

use super::*;

fn lock(table: &Arc<RangeLocks>, access: RangeAccess, pages: Range<u64>) -> RangeLock {
    table.lock(access, pages.start * PAGE_BYTES, (pages.end - pages.start) * PAGE_BYTES)
}

fn has(lock: &mut RangeLock) -> bool {
    lock.advance().is_ok()
}

fn is_free(table: &RangeLocks) -> bool {
    table.locks.iter().all(|lock| lock.load(Ordering::Relaxed) == 0)
}

#[test]
fn writes_exclude_overlaps_and_reads_only_writes() {
    let table = RangeLocks::with(64);
    let mut reads = [(); 3].map(|()| lock(&table, RangeAccess::Shared, 2..4));
    assert!(reads.iter_mut().all(has));
    let mut write = lock(&table, RangeAccess::Exclusive, 3..9);
    assert!(!has(&mut write));
    assert!(has(&mut lock(&table, RangeAccess::Exclusive, 0..2)));
    assert!(
        has(&mut lock(&table, RangeAccess::Exclusive, 4..5)),
        "it waits at page 3 and has none yet"
    );
    drop(reads);
    assert!(has(&mut write));
    for access in [RangeAccess::Shared, RangeAccess::Exclusive] {
        assert!(!has(&mut lock(&table, access, 8..12)));
        assert!(has(&mut lock(&table, access, 9..12)));
    }
    drop(write);
    assert!(is_free(&table));
}

#[test]
fn locks_cover_whole_pages() {
    let table = RangeLocks::with(64);
    let mut write = table.lock(RangeAccess::Exclusive, 4096 + 512, 512);
    assert!(has(&mut write));
    for (offset, length, free) in [(4096, 512, false), (0, 4096, true), (0, 4608, false)] {
        assert_eq!(
            has(&mut table.lock(RangeAccess::Shared, offset, length)),
            free,
            "{offset} {length}"
        );
    }
}

#[test]
fn long_ranges_take_each_lock_once() {
    let table = RangeLocks::with(8);
    for (pages, others) in [(6..10, 2..6), (13..17, 1..5), (7..8, 0..7)] {
        let mut write = lock(&table, RangeAccess::Exclusive, pages.clone());
        assert!(has(&mut write), "{pages:?}");
        assert!(has(&mut lock(&table, RangeAccess::Exclusive, others)), "{pages:?}");
        assert!(
            !has(&mut lock(&table, RangeAccess::Exclusive, pages.end - 1..pages.end)),
            "{pages:?}"
        );
    }
    for pages in [0..8, 3..11, 5..1000, 0..1 << 40] {
        assert!(has(&mut lock(&table, RangeAccess::Exclusive, pages.clone())), "{pages:?}");
        assert!(is_free(&table));
    }
}

#[test]
fn endless_reads_do_not_block_a_write() {
    let table = RangeLocks::with(8);
    let mut before = lock(&table, RangeAccess::Shared, 0..1);
    assert!(has(&mut before));
    let mut write = lock(&table, RangeAccess::Exclusive, 0..4);
    assert!(!has(&mut write));
    let mut after = lock(&table, RangeAccess::Shared, 0..1);
    assert!(!has(&mut after), "it came later");
    drop(before);
    assert!(!has(&mut after));
    assert!(has(&mut write));
    drop(write);
    assert!(has(&mut after));
}

#[test]
fn endless_writes_do_not_block_a_read() {
    let table = RangeLocks::with(8);
    let mut first = lock(&table, RangeAccess::Exclusive, 0..1);
    assert!(has(&mut first));
    let mut second = lock(&table, RangeAccess::Exclusive, 0..1);
    let mut read = lock(&table, RangeAccess::Shared, 0..1);
    let mut third = lock(&table, RangeAccess::Exclusive, 0..1);
    assert!(!has(&mut third), "it draws the lowest number");
    assert!(!has(&mut read) && !has(&mut second));
    drop(first);
    assert!(!has(&mut second) && !has(&mut read));
    assert!(has(&mut third));
    // A reader that tries now queues behind the waiting writers.
    assert!(!has(&mut read));
    drop(third);
    assert!(!has(&mut second));
    assert!(has(&mut read));
}

#[test]
fn an_abandoned_wait_blocks_no_operation() {
    let table = RangeLocks::with(8);
    let mut reads = [0..1, 2..3].map(|pages| lock(&table, RangeAccess::Shared, pages));
    assert!(reads.iter_mut().all(has));
    let mut write = lock(&table, RangeAccess::Exclusive, 1..4);
    assert!(!has(&mut write));
    assert!(!has(&mut lock(&table, RangeAccess::Shared, 1..2)), "the write has this page");
    assert!(!has(&mut lock(&table, RangeAccess::Shared, 2..3)), "the write is next at this one");
    drop(write);
    assert!(has(&mut lock(&table, RangeAccess::Shared, 1..3)));
    drop(reads);
    assert!(is_free(&table));
}

#[test]
fn waits_grow_to_a_millisecond() {
    let table = RangeLocks::with(1);
    let mut write = lock(&table, RangeAccess::Exclusive, 0..1);
    assert!(has(&mut write));
    let mut read = lock(&table, RangeAccess::Shared, 0..1);
    let waits: Vec<_> = (0..100).map(|_| read.advance().unwrap_err().as_micros()).collect();
    assert_eq!(waits[..4], [1, 2, 4, 8]);
    assert!(waits[10..].iter().all(|wait| *wait == 1000), "{waits:?}");
}

/// An operation, its locks, and the number of steps that it holds them.
struct Running {
    lock: RangeLock,
    access: RangeAccess,
    pages: Range<u64>,
    steps_left: u32,
}

impl Running {
    fn conflicts_with(&self, other: &Self) -> bool {
        let exclusive = [self.access, other.access].contains(&RangeAccess::Exclusive);
        exclusive && self.pages.start < other.pages.end && other.pages.start < self.pages.end
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    /// Operations arrive, try in any order, give up and end. Concurrent holders of a range are
    /// compatible, and all operations end.
    #[test]
    fn conflicting_ranges_never_overlap_and_all_end(
        arrivals in prop::collection::vec(
            (any::<bool>(), 0u64..24, 1u64..8, 1u32..5, prop::bool::weighted(0.1)), 1..60,
        ),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 400),
    ) {
        let table = RangeLocks::with(16);
        let mut arrivals = arrivals.into_iter();
        let mut running: Vec<Running> = Vec::new();
        let mut picks = picks.into_iter();
        let mut turns = 0;
        loop {
            if let Some((writes, from, pages, steps_left, gives_up)) = arrivals.next() {
                let access = if writes { RangeAccess::Exclusive } else { RangeAccess::Shared };
                let pages = from..from + pages;
                let mut lock = lock(&table, access, pages.clone());
                let _ = lock.advance();
                if !gives_up {
                    running.push(Running { lock, access, pages, steps_left });
                }
            }
            // First some in any order, then each once.
            for _ in 0..4 {
                if let (Some(pick), false) = (picks.next(), running.is_empty()) {
                    let place = pick.index(running.len());
                    let _ = running[place].lock.advance();
                }
            }
            for one in &mut running {
                one.steps_left -= u32::from(has(&mut one.lock));
            }
            let holders: Vec<_> =
                running.iter().filter(|one| !one.lock.is_waiting()).collect();
            for (place, one) in holders.iter().enumerate() {
                prop_assert!(!holders[..place].iter().any(|other| one.conflicts_with(other)));
            }
            running.retain(|one| one.steps_left > 0);
            if running.is_empty() && arrivals.len() == 0 {
                break;
            }
            turns += 1;
            prop_assert!(turns < 60 * 10, "{} are left", running.len());
        }
        prop_assert!(is_free(&table));
    }
}
