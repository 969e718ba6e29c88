//! Connections that other threads have given something to do, listed behind the doorbell of their
//! core.

use std::mem;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::task::Wake;

use super::{Doorbell, Signal};
use crate::sync::{AtomicBool, Mutex, Ordering};

/// Keys of the connections that their core has to look at.
#[derive(Debug)]
pub(crate) struct ReadyList<S = OwnedFd> {
    keys: Mutex<Vec<u32>>,
    bell: Arc<Doorbell<S>>,
}

/// Waker of one connection, which lists the connection and rings the doorbell of its core.
#[derive(Debug)]
pub(crate) struct ReadyMark<S = OwnedFd> {
    key: u32,
    /// Whether the connection is in the list, or was taken from it and not looked at yet.
    is_listed: AtomicBool,
    list: Arc<ReadyList<S>>,
}

impl<S: Signal> ReadyList<S> {
    pub(crate) fn new(bell: Arc<Doorbell<S>>) -> Arc<Self> {
        Arc::new(Self { keys: Mutex::default(), bell })
    }

    /// Creates the waker of the connection with a key.
    pub(crate) fn mark(self: &Arc<Self>, key: u32) -> Arc<ReadyMark<S>> {
        Arc::new(ReadyMark { key, is_listed: AtomicBool::new(false), list: Arc::clone(self) })
    }

    /// Moves the listed keys to `keys`, which it clears first. A key may be that of a connection
    /// that has ended. The owner calls it after [`Doorbell::answer`] has returned true.
    pub(crate) fn take(&self, keys: &mut Vec<u32>) {
        keys.clear();
        mem::swap(&mut *self.keys.lock().unwrap_or_else(PoisonError::into_inner), keys);
    }
}

impl<S: Signal> ReadyMark<S> {
    /// Called by the owner before it looks at the connection, so that what others give to the
    /// connection from now on lists it again. What they gave before is then visible.
    pub(crate) fn clear(&self) {
        if self.is_listed.load(Ordering::Relaxed) {
            self.is_listed.swap(false, Ordering::AcqRel);
        }
    }

    fn list(&self) {
        if !self.is_listed.swap(true, Ordering::AcqRel) {
            self.list.keys.lock().unwrap_or_else(PoisonError::into_inner).push(self.key);
            self.list.bell.ring();
        }
    }
}

impl<S: Signal + Send + Sync + 'static> Wake for ReadyMark<S> {
    fn wake(self: Arc<Self>) {
        self.list();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.list();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_connection_is_listed_once_until_it_is_looked_at() {
        let bell = Doorbell::new().unwrap();
        let list = ReadyList::new(Arc::clone(&bell));
        let [one, other] = [7, 8].map(|key| list.mark(key));
        let wakers = [&one, &other, &one].map(|mark| Waker::from(Arc::clone(mark)));
        wakers.iter().for_each(Waker::wake_by_ref);
        let mut keys = vec![99];
        assert!(bell.answer());
        list.take(&mut keys);
        assert_eq!(keys, [7, 8]);
        one.clear();
        wakers.iter().for_each(Waker::wake_by_ref);
        assert!(bell.answer());
        list.take(&mut keys);
        assert_eq!(keys, [7], "the other one was not looked at");
    }
}
