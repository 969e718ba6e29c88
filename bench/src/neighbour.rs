//! A thread that computes on a core and never waits.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, spawn};

use crate::cores::pin;

/// Computes until it is dropped.
pub(crate) struct Neighbour {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Neighbour {
    /// Starts a thread that computes on this core until it is dropped.
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
