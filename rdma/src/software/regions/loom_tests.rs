//! Every interleaving of dropping memory and touching it.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use crate::software::section::Sections;
use crate::software::sync::{AtomicU32, Ordering as KeyOrdering};

/// A key, a section around its use, and memory that says whether it is still there.
#[test]
fn memory_is_not_touched_once_it_was_retired() {
    loom::model(|| {
        let sections = Arc::new(Sections::new(1));
        let key = Arc::new(AtomicU32::new(7));
        let mapped = Arc::new(AtomicBool::new(true));
        let group = {
            let (sections, key, mapped) = (sections.clone(), key.clone(), mapped.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    let section = sections.enter(0);
                    if key.load(KeyOrdering::Acquire) == 7 {
                        assert!(mapped.load(Ordering::Relaxed), "touched after retirement");
                    }
                    drop(section);
                }
            })
        };
        key.store(0, KeyOrdering::Relaxed);
        sections.wait();
        mapped.store(false, Ordering::Relaxed);
        group.join().unwrap();
    });
}

/// A window is freed while its owner binds it: no key survives.
#[test]
fn a_freed_window_does_not_come_back() {
    loom::model(|| {
        let sections = Arc::new(Sections::new(1));
        let window = Arc::new(AtomicU32::new(1));
        let key = Arc::new(AtomicU32::new(0));
        let group = {
            let (sections, window, key) = (sections.clone(), window.clone(), key.clone());
            thread::spawn(move || {
                let _section = sections.enter(0);
                if window.load(KeyOrdering::Acquire) == 1 {
                    key.store(9, KeyOrdering::Release);
                }
            })
        };
        window.store(0, KeyOrdering::Relaxed);
        sections.wait();
        key.store(0, KeyOrdering::Relaxed);
        sections.wait();
        group.join().unwrap();
        assert_eq!(key.load(KeyOrdering::Relaxed), 0);
    });
}

/// Two groups: the one that drops a region in between its own sections waits for the other only.
#[test]
fn simultaneous_drops_in_two_groups_do_not_deadlock() {
    loom::model(|| {
        let sections = Arc::new(Sections::new(2));
        let other = {
            let sections = sections.clone();
            thread::spawn(move || {
                drop(sections.enter(1));
                sections.wait();
            })
        };
        drop(sections.enter(0));
        sections.wait();
        other.join().unwrap();
    });
}
