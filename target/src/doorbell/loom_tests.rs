//! Every interleaving of rings and a thread that goes to sleep.

use std::task::Waker;

use loom::sync::atomic::AtomicUsize;
use loom::sync::{Condvar, Mutex};
use loom::thread;

use super::ready_list::ReadyList;
use super::*;

/// Model of a descriptor that readers sleep on.
#[derive(Default)]
pub(crate) struct Descriptor {
    readable: Mutex<bool>,
    changed: Condvar,
}

impl Descriptor {
    fn wait(&self) {
        let mut readable = self.readable.lock().unwrap();
        while !*readable {
            readable = self.changed.wait(readable).unwrap();
        }
    }
}

impl Signal for Descriptor {
    fn raise(&self) {
        *self.readable.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn clear(&self) {
        *self.readable.lock().unwrap() = false;
    }
}

impl Doorbell<Descriptor> {
    pub(crate) fn model() -> Arc<Self> {
        Self::with(Descriptor::default())
    }

    /// Runs the loop of a thread without other work until `done`, which it calls after each ring.
    pub(crate) fn serve(&self, mut done: impl FnMut() -> bool) {
        while !(self.answer() && done()) {
            if self.is_quiet() {
                self.signal.wait();
            }
        }
    }
}

#[test]
fn no_ring_is_slept_through() {
    const RINGS: usize = 2;
    loom::model(|| {
        let bell = Doorbell::model();
        let done = Arc::new(AtomicUsize::new(0));
        let ring = |bell: Arc<Doorbell<Descriptor>>, done: Arc<AtomicUsize>| {
            move || {
                // The ring makes it visible to the other thread.
                done.fetch_add(1, Ordering::Relaxed);
                bell.ring();
            }
        };
        let ringers: Vec<_> =
            (0..RINGS).map(|_| thread::spawn(ring(bell.clone(), done.clone()))).collect();
        bell.serve(|| done.load(Ordering::Relaxed) == RINGS);
        ringers.into_iter().for_each(|ringer| ringer.join().unwrap());
    });
}

/// Two threads post to two connections, and the owner looks at listed ones only.
#[test]
fn no_listed_connection_is_missed() {
    const GIFTS: usize = 3;
    loom::model(|| {
        let bell = Doorbell::model();
        let list = ReadyList::new(Arc::clone(&bell));
        let marks = [0, 1].map(|key| list.mark(key));
        let given = Arc::new([0, 1].map(|_| AtomicUsize::new(0)));
        let give = |keys: &'static [usize]| {
            let (given, marks) = (Arc::clone(&given), marks.clone());
            move || {
                for &key in keys {
                    // Listing makes it visible to the owner.
                    given[key].fetch_add(1, Ordering::Relaxed);
                    Waker::from(Arc::clone(&marks[key])).wake_by_ref();
                }
            }
        };
        let givers = [thread::spawn(give(&[0])), thread::spawn(give(&[0, 1]))];
        let (mut keys, mut taken) = (Vec::new(), 0);
        bell.serve(|| {
            list.take(&mut keys);
            for &key in &keys {
                marks[key as usize].clear();
                taken += given[key as usize].swap(0, Ordering::Relaxed);
            }
            taken == GIFTS
        });
        givers.into_iter().for_each(|giver| giver.join().unwrap());
    });
}
