//! Detection of stuck threads: each thread marks the start of its turns and its sleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counter of one thread, which only that thread writes: odd during a turn, even while it sleeps.
#[derive(Debug, Default)]
pub(crate) struct TurnMark(AtomicU64);

/// Watch of several threads, by their marks.
#[derive(Debug)]
pub(crate) struct TurnWatch {
    /// Marks of the threads, each with its value at the last check.
    marks: Vec<(Arc<TurnMark>, u64)>,
}

impl TurnMark {
    /// Marks the start of a turn. Turns may follow each other without a sleep.
    pub(crate) fn begin_turn(&self) {
        let mark = self.0.load(Ordering::Relaxed);
        self.0.store((mark + 1) | 1, Ordering::Relaxed);
    }

    /// Marks that the thread sleeps until there is work, or has ended.
    pub(crate) fn sleep(&self) {
        let mark = self.0.load(Ordering::Relaxed);
        self.0.store(mark.next_multiple_of(2), Ordering::Relaxed);
    }
}

impl TurnWatch {
    pub(crate) fn new(marks: impl IntoIterator<Item = Arc<TurnMark>>) -> Self {
        Self { marks: marks.into_iter().map(|mark| (mark, 0)).collect() }
    }

    /// Whether each thread sleeps or has begun a further turn since the last check (is not stuck).
    pub(crate) fn all_go_on(&mut self) -> bool {
        let mut all = true;
        for (mark, seen) in &mut self.marks {
            let now = mark.0.load(Ordering::Relaxed);
            let before = std::mem::replace(seen, now);
            all &= now.is_multiple_of(2) || now != before;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_without_end_is_noticed() {
        let marks = [Arc::<TurnMark>::default(), Arc::default()];
        let mut watch = TurnWatch::new(marks.clone());
        assert!(watch.all_go_on(), "both sleep");
        marks[0].begin_turn();
        assert!(watch.all_go_on(), "it has just begun");
        assert!(!watch.all_go_on());
        marks[1].begin_turn();
        marks[1].sleep();
        assert!(!watch.all_go_on(), "the other one does not help");
        marks[0].begin_turn();
        assert!(watch.all_go_on(), "the next turn");
        marks[0].sleep();
        marks[0].sleep();
        assert!(watch.all_go_on() && watch.all_go_on());
    }
}
