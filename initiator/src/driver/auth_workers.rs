//! Threads that compute for authentications, so that those that turn the engines do not.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::driver::random::fill_random;
use crate::driver::shared::SharedEngines;
use crate::engine::arena::EngineKey;
use crate::engine::auth_exchange::{Computation, Computed, DueComputation};

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
    fn add(&self, engine: EngineKey, computation: Computation) -> bool {
        let mut state = self.state();
        state.waiting.push_back((engine, computation));
        let starts = state.threads < MOST_THREADS;
        state.threads += usize::from(starts);
        starts
    }

    /// Takes the next computation. Without one the calling thread is no longer counted.
    fn next(&self) -> Option<(EngineKey, Computation)> {
        let mut state = self.state();
        let next = state.waiting.pop_front();
        state.threads -= usize::from(next.is_none());
        next
    }

    /// Subtracts a thread that could not be started; returns the computations that no thread does.
    fn give_up(&self) -> VecDeque<(EngineKey, Computation)> {
        let mut state = self.state();
        state.threads -= 1;
        match state.threads {
            0 => std::mem::take(&mut state.waiting),
            _ => VecDeque::new(),
        }
    }
}

impl SharedEngines {
    /// Does a computation on another thread, or in place.
    pub(super) fn compute(&self, due: DueComputation) {
        let DueComputation { engine, in_place, computation } = due;
        if in_place {
            return self.hand_back(engine, run(&computation));
        }
        if !self.auth_workers.add(engine, computation) {
            return;
        }
        let shared = self.this.upgrade();
        let work = move || {
            if let Some(shared) = shared {
                shared.compute_all();
            }
        };
        if let Err(error) = thread::Builder::new().name("feedrail-auth".to_owned()).spawn(work) {
            for (engine, computation) in self.auth_workers.give_up() {
                let Computation { controller, number, .. } = computation;
                let result = Err(io::Error::new(error.kind(), "no thread for an authentication"));
                self.hand_back(engine, Computed { controller, number, result });
            }
        }
    }

    fn compute_all(self: Arc<Self>) {
        while let Some((engine, computation)) = self.auth_workers.next() {
            let computed = run(&computation);
            self.hand_back(engine, computed);
        }
    }

    /// Queues a result for the next turn, and makes sure that it comes.
    fn hand_back(&self, engine: EngineKey, computed: Computed) {
        // In a forked child there is nobody who waits for it.
        let Ok(mut state) = self.lock() else { return };
        state.host.computed(engine, computed);
        drop(state);
        self.kick();
    }
}

fn run(computation: &Computation) -> Computed {
    let Computation { controller, number, work } = computation;
    let result = Ok(work.run(&mut fill_random));
    Computed { controller: *controller, number: *number, result }
}
