//! Computations for authentications that wait for a thread.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::engine::arena::EngineKey;
use crate::engine::computation::Computation;

/// Most threads that compute at a time. With twice as many, a host that connects to many targets
/// takes more processors from the program it is part of.
const MOST_THREADS: usize = 2;

/// Computations that wait, and the number of threads that do them. A thread ends when none waits.
#[derive(Debug, Default)]
pub(super) struct AuthWorkers(Mutex<WorkerState>);

#[derive(Debug, Default)]
struct WorkerState {
    waiting: VecDeque<(EngineKey, Computation)>,
    threads: usize,
}

impl AuthWorkers {
    fn state(&self) -> MutexGuard<'_, WorkerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a computation; returns whether another thread has to be started, which is counted.
    pub(super) fn add(&self, engine: EngineKey, computation: Computation) -> bool {
        let mut state = self.state();
        state.waiting.push_back((engine, computation));
        let starts = state.threads < MOST_THREADS;
        state.threads += usize::from(starts);
        starts
    }

    /// Takes the next computation. Without one the calling thread is no longer counted.
    pub(super) fn next(&self) -> Option<(EngineKey, Computation)> {
        let mut state = self.state();
        let next = state.waiting.pop_front();
        state.threads -= usize::from(next.is_none());
        next
    }

    /// Subtracts a thread that could not be started; returns the computations that no thread does.
    pub(super) fn give_up(&self) -> VecDeque<(EngineKey, Computation)> {
        let mut state = self.state();
        state.threads -= 1;
        match state.threads {
            0 => std::mem::take(&mut state.waiting),
            _ => VecDeque::new(),
        }
    }
}
