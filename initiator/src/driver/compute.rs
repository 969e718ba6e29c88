//! Threads that compute for authentications, so that those that turn the engines do not.

use std::io;
use std::sync::Arc;
use std::thread;

use crate::driver::random::fill_random;
use crate::driver::shared::SharedEngines;
use crate::engine::arena::EngineKey;
use crate::engine::computation::{Computation, Computed, DueComputation};

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
