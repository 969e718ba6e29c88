//! Thread that computes on a core without pause, as load beside a measurement.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, spawn};

use crate::cores::pin;

/// Handle of the computing thread, which ends when this is dropped.
pub(crate) struct Neighbour {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Neighbour {
    /// Starts a thread that computes on this core.
    pub(crate) fn on(core: usize) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        let compute = move || {
            pin(core);
            let mut number = 1_u64;
            while !seen.load(Ordering::Relaxed) {
                number = black_box(number.wrapping_mul(3));
            }
        };
        Self { over, thread: Some(spawn(compute)) }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It cannot panic.
            let _ = thread.join();
        }
    }
}
