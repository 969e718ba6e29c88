//! Every interleaving of operations on ranges that overlap.

use loom::cell::UnsafeCell;
use loom::thread;

use super::*;

/// Attempts of an operation before it gives up. Unlimited attempts would never end in interleavings
/// that never schedule the holder.
const TRIES: u32 = 2;

/// Pages that loom watches: it fails when one is changed while another thread accesses it.
struct Pages([UnsafeCell<u32>; 2]);

/// Runs an operation from page `first` to the last one.
fn operate(table: &Arc<RangeLocks>, pages: &Pages, (access, first): (RangeAccess, u64)) {
    let length = (2 - first) * PAGE_BYTES;
    let mut lock = table.lock(access, first * PAGE_BYTES, length);
    if (0..TRIES).all(|_| lock.advance().is_err()) {
        return;
    }
    for page in &pages.0[first as usize..] {
        match access {
            RangeAccess::Shared => page.with(|_| {}),
            RangeAccess::Exclusive => page.with_mut(|_| {}),
        }
    }
}

/// Runs operations concurrently. Afterwards nothing is locked and no operation waits.
fn race(here: (RangeAccess, u64), there: [(RangeAccess, u64); 2]) {
    loom::model(move || {
        let table = RangeLocks::with(2);
        let pages = Arc::new(Pages([UnsafeCell::new(0), UnsafeCell::new(0)]));
        let threads = there.map(|operation| {
            let (table, pages) = (Arc::clone(&table), Arc::clone(&pages));
            thread::spawn(move || operate(&table, &pages, operation))
        });
        operate(&table, &pages, here);
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(table.locks.iter().all(|lock| lock.load(Ordering::Relaxed) == 0));
    });
}

#[test]
fn a_write_has_its_pages_alone() {
    race((RangeAccess::Exclusive, 0), [(RangeAccess::Exclusive, 0), (RangeAccess::Shared, 1)]);
}

#[test]
fn reads_beside_each_other_keep_a_write_off() {
    race((RangeAccess::Shared, 0), [(RangeAccess::Exclusive, 1), (RangeAccess::Shared, 0)]);
}
