//! Writes of the units of all saves of a store, which share its registered memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feedrail_checkpoint::UnitWrite;
use feedrail_initiator::{Error, RegionSlice};
use slab::Slab;

use crate::error::StoreError;
use crate::unit_pipe::UnitPipe;

/// Units in flight of all saves of a store.
pub(crate) struct WritePipe {
    pipe: UnitPipe,
    /// Units in flight, by the tags of the pipe, with the indexes of their saves.
    writes: Slab<(usize, UnitWrite)>,
    saves: Slab<SaveResults>,
}

/// Results of the writes of one save that it has not taken yet.
#[derive(Default)]
struct SaveResults {
    in_flight: usize,
    written: Vec<UnitWrite>,
    /// The first error of a write.
    failed: Option<Error>,
}

impl WritePipe {
    pub(crate) fn new(pipe: UnitPipe) -> Self {
        Self { pipe, writes: Slab::new(), saves: Slab::new() }
    }

    /// Hands the results of writes that have ended to their saves.
    fn take_ended(&mut self) {
        while let Some(ended) = self.pipe.next_ended() {
            let (save, unit) = self.writes.remove(ended.tag as usize);
            let results = &mut self.saves[save];
            results.in_flight -= 1;
            match &ended.result {
                Ok(()) => results.written.push(unit),
                Err(error) => drop(results.failed.get_or_insert_with(|| error.clone())),
            }
            self.pipe.release(ended);
        }
    }

    /// Takes memory of one unit, and waits for it if all is in use.
    fn claim(&mut self) -> Result<RegionSlice, Error> {
        loop {
            self.take_ended();
            match self.pipe.claim()? {
                Some(memory) => return Ok(memory),
                None => self.pipe.wait(),
            }
        }
    }
}

pub(crate) struct SaveWrites {
    pipe: Arc<Mutex<WritePipe>>,
    /// Index of the save in the pipe.
    save: usize,
}

impl SaveWrites {
    pub(crate) fn new(pipe: Arc<Mutex<WritePipe>>) -> Self {
        let save = lock(&pipe).saves.insert(SaveResults::default());
        Self { pipe, save }
    }

    /// Starts to write a unit: waits for memory, then calls `begin`, which decides the place.
    ///
    /// # Errors
    /// The error of an earlier write of the save, or of `begin`.
    pub(crate) fn write(
        &self,
        bytes: &[u8],
        begin: impl FnOnce() -> Result<UnitWrite, StoreError>,
    ) -> Result<(), StoreError> {
        let mut pipe = lock(&self.pipe);
        let memory = pipe.claim()?;
        let failed = pipe.saves[self.save].failed.clone();
        match failed.map_or_else(begin, |error| Err(error.into())) {
            Ok(unit) => {
                let (offset, padding) = (unit.offset, unit.padding);
                let tag = pipe.writes.insert((self.save, unit)) as u64;
                pipe.saves[self.save].in_flight += 1;
                pipe.pipe.write(memory, offset, bytes, padding, tag);
                Ok(())
            }
            Err(error) => {
                pipe.pipe.put_back(memory);
                Err(error)
            }
        }
    }

    /// Sends what was started.
    pub(crate) fn submit(&self) {
        lock(&self.pipe).pipe.submit();
    }

    /// Waits until no write of the save is in flight, and returns the units that were written.
    ///
    /// # Errors
    /// The first error of a write.
    pub(crate) fn drain(&self) -> Result<Vec<UnitWrite>, StoreError> {
        let mut pipe = lock(&self.pipe);
        pipe.take_ended();
        // In a forked process the units in flight are those of the parent.
        while pipe.saves[self.save].in_flight > 0 && pipe.pipe.in_flight() > 0 {
            pipe.pipe.wait();
            pipe.take_ended();
        }
        let results = &mut pipe.saves[self.save];
        match &results.failed {
            Some(error) => Err(error.clone().into()),
            None => Ok(std::mem::take(&mut results.written)),
        }
    }
}

impl Drop for SaveWrites {
    fn drop(&mut self) {
        // The space must not be used again while writes to it are in flight.
        let _ = self.drain();
        lock(&self.pipe).saves.remove(self.save);
    }
}

fn lock(pipe: &Mutex<WritePipe>) -> MutexGuard<'_, WritePipe> {
    pipe.lock().unwrap_or_else(PoisonError::into_inner)
}
