//! The controllers that a turn must process: those with an event, and those whose timer is due. The
//! others cost no time.

use std::collections::{BTreeSet, VecDeque};

use rdma::Time;

use crate::engine::arena::{ArenaKey, ControllerKey};

/// Controllers that a turn must process.
#[derive(Default)]
pub(crate) struct ReadyList {
    stirred: VecDeque<ControllerKey>,
    timers: BTreeSet<(Time, ControllerKey)>,
    /// State of each controller, indexed by its key.
    entries: Vec<ReadyEntry>,
}

/// State of a controller in the lists.
#[derive(Clone, Copy, Default)]
struct ReadyEntry {
    is_stirred: bool,
    timer: Option<Time>,
}

impl ReadyList {
    /// Records that a controller must be processed.
    pub(crate) fn mark_ready(&mut self, controller: ControllerKey) {
        let entry = self.entry(controller);
        if !std::mem::replace(&mut entry.is_stirred, true) {
            self.stirred.push_back(controller);
        }
    }

    /// Removes the next controller that must be processed.
    pub(crate) fn next_stirred(&mut self) -> Option<ControllerKey> {
        let controller = self.stirred.pop_front()?;
        self.entry(controller).is_stirred = false;
        Some(controller)
    }

    /// Sets when a controller must be processed even if there is no event.
    pub(crate) fn set_timer(&mut self, controller: ControllerKey, time: Option<Time>) {
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

    /// Returns a controller whose timer is due, and clears the timer.
    pub(crate) fn next_due(&mut self, now: Time) -> Option<ControllerKey> {
        let &(time, controller) = self.timers.first()?;
        if time > now {
            return None;
        }
        self.set_timer(controller, None);
        Some(controller)
    }

    pub(crate) fn timer(&self, controller: ControllerKey) -> Option<Time> {
        self.entries.get(controller.index())?.timer
    }

    /// Returns when the first timer is due.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.timers.first().map(|&(time, _)| time)
    }

    fn entry(&mut self, controller: ControllerKey) -> &mut ReadyEntry {
        let index = controller.index();
        if index >= self.entries.len() {
            self.entries.resize(index + 1, ReadyEntry::default());
        }
        &mut self.entries[index]
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
        let [one, five] = [1, 5].map(ControllerKey::at);
        [five, one, five].into_iter().for_each(|controller| ready_list.mark_ready(controller));
        assert_eq!(ready_list.next_stirred(), Some(five));
        ready_list.mark_ready(five);
        assert_eq!(ready_list.next_stirred(), Some(one));
        assert_eq!(ready_list.next_stirred(), Some(five));
        assert_eq!(ready_list.next_stirred(), None);
    }

    #[test]
    fn a_controller_has_one_timer_at_most() {
        let mut ready_list = ReadyList::default();
        let [three, seven] = [3, 7].map(ControllerKey::at);
        ready_list.set_timer(three, Some(at(10)));
        ready_list.set_timer(seven, Some(at(20)));
        ready_list.set_timer(three, Some(at(30)));
        assert_eq!(ready_list.deadline(), Some(at(20)));
        assert_eq!(ready_list.next_due(at(19)), None);
        assert_eq!(ready_list.next_due(at(20)), Some(seven));
        assert_eq!(ready_list.next_due(at(29)), None);
        ready_list.set_timer(three, None);
        assert_eq!(ready_list.deadline(), None);
        assert_eq!(ready_list.next_due(at(99)), None);
    }
}
