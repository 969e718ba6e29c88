//! Which controllers a turn looks at: those to which something happened, and those whose time has
//! come. The others cost nothing, however many there are.

use std::collections::{BTreeSet, VecDeque};

use rdma::Time;

/// Controllers that a turn has to look at, by their numbers in the engine.
#[derive(Default)]
pub(crate) struct ReadyList {
    stirred: VecDeque<usize>,
    timers: BTreeSet<(Time, usize)>,
    /// The entry of each controller, indexed by its number.
    entries: Vec<ReadyEntry>,
}

/// The place of a controller in the lists.
#[derive(Clone, Copy, Default)]
struct ReadyEntry {
    is_stirred: bool,
    timer: Option<Time>,
}

impl ReadyList {
    /// Something happened to a controller.
    pub(crate) fn mark_ready(&mut self, controller: usize) {
        let entry = self.entry(controller);
        if !std::mem::replace(&mut entry.is_stirred, true) {
            self.stirred.push_back(controller);
        }
    }

    /// The next controller to which something happened.
    pub(crate) fn next_stirred(&mut self) -> Option<usize> {
        let controller = self.stirred.pop_front()?;
        self.entry(controller).is_stirred = false;
        Some(controller)
    }

    /// When a controller is to be looked at, even if nothing happens to it.
    pub(crate) fn set_timer(&mut self, controller: usize, time: Option<Time>) {
        let old = std::mem::replace(&mut self.entry(controller).timer, time);
        if old == time {
            return;
        }
        if let Some(old) = old {
            self.timers.remove(&(old, controller));
        }
        if let Some(time) = time {
            self.timers.insert((time, controller));
        }
    }

    /// A controller whose time has come. It has no timer then.
    pub(crate) fn next_due(&mut self, now: Time) -> Option<usize> {
        let &(time, controller) = self.timers.first()?;
        if time > now {
            return None;
        }
        self.set_timer(controller, None);
        Some(controller)
    }

    /// The timer of a controller.
    pub(crate) fn timer(&self, controller: usize) -> Option<Time> {
        self.entries.get(controller)?.timer
    }

    /// When the first timer of all runs out.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.timers.first().map(|&(time, _)| time)
    }

    fn entry(&mut self, controller: usize) -> &mut ReadyEntry {
        if controller >= self.entries.len() {
            self.entries.resize(controller + 1, ReadyEntry::default());
        }
        &mut self.entries[controller]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    #[test]
    fn a_stirred_controller_is_listed_once() {
        let mut ready_list = ReadyList::default();
        [5, 1, 5].into_iter().for_each(|controller| ready_list.mark_ready(controller));
        assert_eq!(ready_list.next_stirred(), Some(5));
        ready_list.mark_ready(5);
        assert_eq!(ready_list.next_stirred(), Some(1));
        assert_eq!(ready_list.next_stirred(), Some(5));
        assert_eq!(ready_list.next_stirred(), None);
    }

    #[test]
    fn a_controller_has_one_timer_at_most() {
        let mut ready_list = ReadyList::default();
        ready_list.set_timer(3, Some(at(10)));
        ready_list.set_timer(7, Some(at(20)));
        ready_list.set_timer(3, Some(at(30)));
        assert_eq!(ready_list.deadline(), Some(at(20)));
        assert_eq!(ready_list.next_due(at(19)), None);
        assert_eq!(ready_list.next_due(at(20)), Some(7));
        assert_eq!(ready_list.next_due(at(29)), None);
        ready_list.set_timer(3, None);
        assert_eq!(ready_list.deadline(), None);
        assert_eq!(ready_list.next_due(at(99)), None);
    }
}
