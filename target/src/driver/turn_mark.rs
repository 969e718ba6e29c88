//! Whether threads get anywhere: each marks the beginning of its turns and of its sleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The mark of one thread, which only that thread writes: odd in a turn, even while it sleeps.
#[derive(Debug, Default)]
pub(crate) struct TurnMark(AtomicU64);

/// Looks at the marks of several threads.
#[derive(Debug)]
pub(crate) struct TurnWatch {
    /// Each with its value at the last look.
    marks: Vec<(Arc<TurnMark>, u64)>,
}

impl TurnMark {
    /// The thread begins a turn.
    pub(crate) fn begin_turn(&self) {
        let mark = self.0.load(Ordering::Relaxed);
        self.0.store((mark + 1) | 1, Ordering::Relaxed);
    }

    /// The thread sleeps until there is something to do, or has ended.
    pub(crate) fn sleep(&self) {
        let mark = self.0.load(Ordering::Relaxed);
        self.0.store(mark.next_multiple_of(2), Ordering::Relaxed);
    }
}

impl TurnWatch {
    pub(crate) fn new(marks: impl IntoIterator<Item = Arc<TurnMark>>) -> Self {
        Self { marks: marks.into_iter().map(|mark| (mark, 0)).collect() }
    }

    /// Whether each thread sleeps or has begun another turn since the last look.
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
