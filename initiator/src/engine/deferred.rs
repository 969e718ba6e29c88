//! Work that must not be done while the host is locked.

use std::task::Waker;

use crate::driver::foreign_code;
use crate::engine::completion::RangeCompletion;
use crate::engine::computation::DueComputation;
use crate::memory::plan_region::KeptMemory;

/// Work that is done after the host's lock is released, since it calls foreign code.
#[derive(Default)]
pub(crate) struct Deferred {
    pub(super) wakers: Vec<Waker>,
    pub(super) discarded: Vec<RangeCompletion>,
    pub(super) ended: Vec<KeptMemory>,
    /// Computations for authentications, which [`Deferred::run`] leaves to the driver.
    pub(crate) computations: Vec<DueComputation>,
}

impl Deferred {
    /// Does all of the work but the computations, even if some of it panics; keeps the capacity of
    /// the lists.
    pub(crate) fn run(&mut self) {
        self.discarded.clear();
        self.ended.clear();
        for waker in self.wakers.drain(..) {
            foreign_code::call("a waker", || waker.wake());
        }
    }
}
