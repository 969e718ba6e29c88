//! Every interleaving of rings and a thread that goes to sleep.

use loom::sync::atomic::AtomicUsize;
use loom::sync::{Condvar, Mutex};
use loom::thread;

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
