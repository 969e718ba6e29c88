//! Writing of an entry of a save of another process.

use std::fmt;
use std::ops::ControlFlow;
use std::time::Duration;

use feedrail_checkpoint::{Error, Opening};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::clock::unix_ms;
use crate::driver::LossMark;
use crate::error::StoreError;
use crate::open_volume::OpenVolume;
use crate::options::StoreOptions;
use crate::read::{UnitFault, read_pieces};
use crate::replicated_store::ReplicaPlace;
use crate::reservation::EntryReservation;
use crate::unit_buffer;
use crate::unit_pipe::UnitPipe;
use crate::volume_namespace::VolumeNamespace;

/// How often an entry is flushed whose bytes may have been lost with a connection.
const FLUSH_ATTEMPTS: usize = 3;

/// Writes the bytes of a reserved entry in order, on all replicas of a store. It writes under the
/// lease of the store that saves, whose end it reads from the volume: once that store has lost or
/// given back its lease, nothing is written.
pub struct RankWriter {
    writers: Vec<(usize, ReplicaWriter)>,
    quorum: usize,
    unit_bytes: usize,
    /// Length of the entry in bytes.
    length: u64,
    /// Bytes that do not fill a unit yet.
    part: Vec<u8>,
    /// CRC-32C of the units that were begun.
    checksums: Vec<u32>,
}

/// Result of a [`RankWriter`]: an entry whose bytes are durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenEntry {
    /// Indexes of the replicas that have the entry, with the random numbers of their saves.
    pub(crate) replicas: Vec<(usize, Uuid)>,
    /// CRC-32C of each unit.
    pub(crate) checksums: Vec<u32>,
}

impl RankWriter {
    /// Opens the replicas of a store, in the order in which that store has them. At least `quorum`
    /// must have a reservation and answer.
    ///
    /// # Errors
    /// [`StoreError::ReservationEnded`] if the lease of the save has ended, or its space is that of
    /// a committed checkpoint; the first error of a replica, if fewer than a quorum are left.
    pub fn open(
        places: Vec<ReplicaPlace>,
        reservations: Vec<Option<EntryReservation>>,
        quorum: usize,
        options: StoreOptions,
    ) -> Result<Self, StoreError> {
        let (mut writers, mut first) = (Vec::new(), None);
        let known = reservations.iter().flatten().next().cloned();
        let known = known.ok_or(StoreError::ReservationEnded)?;
        for (index, (place, reservation)) in places.into_iter().zip(reservations).enumerate() {
            let Some(reservation) = reservation else { continue };
            match place.and_then(|place| ReplicaWriter::open(&place, reservation, options)) {
                Ok(writer) => writers.push((index, writer)),
                Err(error) => drop(first.get_or_insert(error)),
            }
        }
        let writer = Self {
            writers,
            quorum,
            unit_bytes: usize::try_from(known.unit_bytes).map_err(|_| Error::Range)?,
            length: known.length,
            part: Vec::new(),
            checksums: Vec::new(),
        };
        writer.check_quorum(first)?;
        Ok(writer)
    }

    fn check_quorum(&self, error: Option<StoreError>) -> Result<(), StoreError> {
        let current = self.writers.len();
        if current >= self.quorum {
            return Ok(());
        }
        Err(error.unwrap_or(StoreError::NoQuorum { current, quorum: self.quorum }))
    }

    /// Returns the number of bytes up to the end of the present unit. Calls of
    /// [`RankWriter::append`] with so many copy them once less.
    pub fn room(&self) -> usize {
        self.unit_bytes - self.part.len()
    }

    /// Writes the next bytes. They are copied; an error of their write is returned by a later call.
    ///
    /// # Errors
    /// [`StoreError::Volume`] for more bytes than the entry has; [`StoreError::ReservationEnded`];
    /// the error of this or an earlier write, if fewer replicas than a quorum are left.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let before = self.checksums.len() as u64 * self.unit_bytes as u64 + self.part.len() as u64;
        if before + bytes.len() as u64 > self.length {
            return Err(Error::Range.into());
        }
        let mut part = std::mem::take(&mut self.part);
        let unit_bytes = self.unit_bytes;
        let result =
            unit_buffer::append(&mut part, unit_bytes, bytes, |unit| self.write_unit(unit));
        self.part = part;
        result
    }

    fn write_unit(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let index = self.checksums.len() as u64;
        self.checksums.push(crc32c::crc32c(bytes));
        self.on_each(|writer| writer.write_unit(index, bytes))
    }

    fn on_each(
        &mut self,
        mut call: impl FnMut(&mut ReplicaWriter) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut first = None;
        self.writers.retain_mut(|(_, writer)| match call(writer) {
            Ok(()) => true,
            Err(error) => {
                first.get_or_insert(error);
                false
            }
        });
        self.check_quorum(first)
    }

    /// Waits for all writes and flushes them.
    ///
    /// # Errors
    /// [`StoreError::Volume`] if bytes are missing; [`StoreError::LostWrites`] if a target lost
    /// bytes; those of [`RankWriter::append`].
    pub fn finish(mut self) -> Result<WrittenEntry, StoreError> {
        let part = std::mem::take(&mut self.part);
        if !part.is_empty() {
            let before = self.checksums.len() as u64 * self.unit_bytes as u64;
            if before + part.len() as u64 != self.length {
                return Err(Error::Incomplete("reserved".to_owned()).into());
            }
            self.write_unit(&part)?;
        }
        if self.checksums.len() as u64 != self.length.div_ceil(self.unit_bytes as u64) {
            return Err(Error::Incomplete("reserved".to_owned()).into());
        }
        let checksums = self.checksums.clone();
        self.on_each(|writer| writer.finish(&checksums))?;
        let save = |(index, writer): &(usize, ReplicaWriter)| (*index, writer.reservation.save);
        let replicas = self.writers.iter().map(save).collect();
        Ok(WrittenEntry { replicas, checksums })
    }
}

impl fmt::Debug for RankWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RankWriter")
            .field("replicas", &self.writers.len())
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

struct ReplicaWriter {
    open: OpenVolume,
    reservation: EntryReservation,
    pipe: UnitPipe,
    /// When the oldest write began that is not flushed.
    unflushed: LossMark,
    /// End of the save's lease, when it was read last. No write is sent afterwards.
    fence_ms: u64,
    /// Time before the end at which it is read again.
    margin: Duration,
    failed: Option<StoreError>,
}

impl ReplicaWriter {
    fn open(
        place: &VolumeNamespace,
        reservation: EntryReservation,
        options: StoreOptions,
    ) -> Result<Self, StoreError> {
        let open = OpenVolume::open(place, options)?;
        let superblock = open.volume.superblock();
        let geometry = superblock.geometry;
        let units = geometry.first_unit()..geometry.capacity_units();
        let is_known = superblock.uuid == reservation.volume
            && geometry.unit_bytes() == reservation.unit_bytes
            && reservation.is_free(units, &open.volume.manifest().checkpoints);
        if !is_known {
            return Err(StoreError::ReservationEnded);
        }
        let unflushed = open.driver.loss_mark();
        let pipe = open.new_pipe();
        let margin = options.lease / 4;
        let (fence_ms, failed) = (0, None);
        let mut writer = Self { open, reservation, pipe, unflushed, fence_ms, margin, failed };
        writer.check_lease()?;
        Ok(writer)
    }

    /// Reads the lease again if it ends soon.
    fn check_lease(&mut self) -> Result<(), StoreError> {
        let margin_ms = u64::try_from(self.margin.as_millis()).unwrap_or(u64::MAX);
        if unix_ms().saturating_add(margin_ms) < self.fence_ms {
            return Ok(());
        }
        let attributes = self.open.driver.place.attributes();
        let volume = self.open.driver.run(Opening::new(attributes))?;
        let lease = volume.superblock().lease;
        let lease = lease.filter(|lease| lease.number == self.reservation.lease);
        self.fence_ms = lease.map_or(0, |lease| lease.expiry_ms);
        if unix_ms() < self.fence_ms { Ok(()) } else { Err(StoreError::ReservationEnded) }
    }

    fn write_unit(&mut self, index: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let memory = loop {
            self.take_ended();
            if let Some(error) = &self.failed {
                return Err(error.clone());
            }
            match self.pipe.claim()? {
                Some(memory) => break memory,
                None => self.pipe.wait(),
            }
        };
        let unit = self
            .check_lease()
            .and_then(|()| Ok(self.reservation.unit(index).ok_or(Error::Range)?));
        match unit {
            Ok(unit) => {
                let padding = bytes.len().next_multiple_of(4096) - bytes.len();
                let offset = unit * self.reservation.unit_bytes;
                self.pipe.write(memory, offset, bytes, padding, index);
                self.pipe.submit();
                Ok(())
            }
            Err(error) => {
                self.pipe.put_back(memory);
                Err(error)
            }
        }
    }

    fn take_ended(&mut self) {
        while let Some(ended) = self.pipe.next_ended() {
            if let Err(error) = &ended.result {
                self.failed.get_or_insert(error.clone().into());
            }
            self.pipe.release(ended);
        }
    }

    fn drain(&mut self) {
        self.take_ended();
        while self.pipe.in_flight() > 0 {
            self.pipe.wait();
            self.take_ended();
        }
    }

    fn finish(&mut self, checksums: &[u32]) -> Result<(), StoreError> {
        self.drain();
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        for _ in 0..FLUSH_ATTEMPTS {
            let may_be_lost = self.open.driver.may_have_lost(self.unflushed);
            self.unflushed = self.open.driver.flush_what_is_there()?;
            if may_be_lost {
                self.verify(checksums)?;
            }
            if !self.open.driver.may_have_lost(self.unflushed) {
                return Ok(());
            }
        }
        Err(StoreError::LostWrites("reserved".to_owned()))
    }

    /// Reads what was written, since the target may have lost it with its power.
    fn verify(&mut self, checksums: &[u32]) -> Result<(), StoreError> {
        let entry = self.reservation.entry(checksums.to_vec())?;
        let plan = self.open.volume.entry_plan(&entry, 0..entry.length)?;
        read_pieces(&mut self.pipe, &plan, &mut |_, bytes| match bytes {
            Ok(_) => ControlFlow::Continue(()),
            Err(UnitFault::Device(error)) => ControlFlow::Break(error.into()),
            Err(UnitFault::Checksum) => {
                ControlFlow::Break(StoreError::LostWrites("reserved".to_owned()))
            }
        })
    }
}

impl Drop for ReplicaWriter {
    fn drop(&mut self) {
        // The save may use the space again once its process knows that this one has ended.
        self.drain();
    }
}
