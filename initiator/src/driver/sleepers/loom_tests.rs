//! A caller, the thread of the host and a peer: no sleep outlasts the news that should end it.

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::*;

/// Records that the peer publishes, one after the other.
const RECORDS: usize = 2;

/// The descriptors that are slept on: readable until they are consumed.
#[derive(Default)]
struct Descriptors {
    bell: bool,
    interrupt: bool,
}

/// The state that the lock of the host protects.
#[derive(Default)]
struct Driver {
    sleepers: Sleepers,
    /// Records that were taken up.
    taken: usize,
    closing: bool,
}

/// A host over one queue pair in shared memory, and the peer's end of it.
struct Model {
    published: AtomicUsize,
    /// The word by which the peer is asked to ring once.
    asks: AtomicBool,
    descriptors: Mutex<Descriptors>,
    readable: Condvar,
    driver: Mutex<Driver>,
}

impl Model {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            published: AtomicUsize::new(0),
            asks: AtomicBool::new(false),
            descriptors: Mutex::default(),
            readable: Condvar::new(),
            driver: Mutex::default(),
        })
    }

    /// The peer publishes a record, and rings if it was asked to.
    fn publish(&self) {
        self.published.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.asks.load(Ordering::Relaxed) && self.asks.swap(false, Ordering::Relaxed) {
            self.descriptors.lock().unwrap().bell = true;
            self.readable.notify_all();
        }
    }

    fn interrupt(&self) {
        self.descriptors.lock().unwrap().interrupt = true;
        self.readable.notify_all();
    }

    /// Sleeps until a descriptor is readable; whether it was interrupted.
    fn sleep(&self) -> bool {
        let mut descriptors = self.descriptors.lock().unwrap();
        while !descriptors.bell && !descriptors.interrupt {
            descriptors = self.readable.wait(descriptors).unwrap();
        }
        descriptors.interrupt
    }

    fn fall_asleep(&self) {
        let mut driver = self.driver.lock().unwrap();
        driver.sleepers.fall_asleep();
        self.asks.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    fn wake(&self, interrupted: bool) {
        let mut driver = self.driver.lock().unwrap();
        let Some(Consumed { interrupt }) = driver.sleepers.wake(interrupted) else {
            drop(driver);
            return thread::yield_now();
        };
        self.asks.store(false, Ordering::Relaxed);
        let mut descriptors = self.descriptors.lock().unwrap();
        descriptors.bell = false;
        descriptors.interrupt &= !interrupt;
    }

    /// Takes up what there is; returns how much that was, since the beginning.
    fn turn(&self) -> usize {
        let mut driver = self.driver.lock().unwrap();
        driver.taken = self.published.load(Ordering::Acquire);
        driver.taken
    }

    fn is_closing(&self) -> bool {
        self.driver.lock().unwrap().closing
    }

    /// The life of the host's thread.
    fn live(&self) {
        while !self.is_closing() {
            self.fall_asleep();
            self.turn();
            let interrupted = !self.is_closing() && self.sleep();
            self.wake(interrupted);
        }
    }

    /// A caller that waits until so many records have come.
    fn wait_for(&self, records: usize) {
        loop {
            self.fall_asleep();
            let is_over = self.turn() >= records;
            let interrupted = !is_over && self.sleep();
            self.wake(interrupted);
            if is_over {
                return;
            }
        }
    }

    fn close(&self) {
        self.driver.lock().unwrap().closing = true;
        self.interrupt();
    }
}

#[test]
fn no_sleeper_loses_its_wake_up_to_the_other() {
    loom::model(|| {
        let model = Model::new();
        let driver = thread::spawn({
            let model = Arc::clone(&model);
            move || model.live()
        });
        let peer = thread::spawn({
            let model = Arc::clone(&model);
            move || (0..RECORDS).for_each(|_| model.publish())
        });
        model.wait_for(RECORDS);
        model.close();
        driver.join().unwrap();
        peer.join().unwrap();
    });
}
