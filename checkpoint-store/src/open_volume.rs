//! An open volume with its lease, which a store and its saves share.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use feedrail_checkpoint::{Change, Error, LEASE_GRACE_MS, Lease, Opening, Save, Volume};
use uuid::Uuid;

use crate::clock::unix_ms;
use crate::driver::{Driver, LossMark};
use crate::error::StoreError;
use crate::options::StoreOptions;
use crate::read::{UnitFault, read_pieces};
use crate::stats::StoreStats;
use crate::unit_pipe::UnitPipe;
use crate::volume_namespace::VolumeNamespace;
use crate::write_pipe::WritePipe;

/// How often a commit is attempted whose data may have been lost with a connection.
const COMMIT_ATTEMPTS: usize = 3;

/// How often a volume is opened for writing that another writer changes between.
const OPEN_ATTEMPTS: usize = 3;

/// Claim of a writer to the lease.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Claim {
    /// The volume has no replicas.
    Alone,
    /// The replica gets this generation from its store, which renews the leases of all replicas.
    Replica(u64),
    /// A stale replica, which will be repaired, gets this generation from its store.
    StaleReplica(u64),
}

pub(crate) struct OpenVolume {
    pub(crate) driver: Driver,
    pub(crate) volume: Volume,
    pub(crate) options: StoreOptions,
    /// The writer's lease; `None` in a store for reading.
    lease: Option<Lease>,
    /// Whether the lease is renewed by a store of several replicas, whose generations stay equal.
    is_replica: bool,
    /// Number of times that the volume was opened again. A save of an earlier time has no space.
    pub(crate) epoch: u64,
    /// Number of saves that have not ended.
    pub(crate) saves: usize,
    /// Registered memory of reads, while no read uses it.
    pub(crate) idle_pipe: Option<UnitPipe>,
    /// Registered memory of the saves since the volume was opened.
    write_pipe: Option<Arc<Mutex<WritePipe>>>,
    pub(crate) stats: StoreStats,
}

impl OpenVolume {
    pub(crate) fn open(place: &VolumeNamespace, options: StoreOptions) -> Result<Self, StoreError> {
        let mut driver = Driver::new(place.clone());
        let volume = driver.run(Opening::new(place.attributes()))?;
        Ok(Self {
            driver,
            volume,
            options,
            lease: None,
            is_replica: false,
            epoch: 0,
            saves: 0,
            idle_pipe: None,
            write_pipe: None,
            stats: StoreStats::default(),
        })
    }

    /// Takes the lease, under which the volume is written.
    pub(crate) fn take_lease(&mut self, claim: Claim) -> Result<(), StoreError> {
        self.is_replica = !matches!(claim, Claim::Alone);
        self.driver.place.check_writable()?;
        let host = Uuid::from_bytes(self.driver.place.host.id().0);
        // The version in the first half is never zero.
        let (number, _) = Uuid::new_v4().as_u64_pair();
        let lease = Lease { host, number, expiry_ms: 0 };
        match claim {
            Claim::Alone => self.publish_lease(lease, None),
            Claim::Replica(generation) => self.publish_lease(lease, Some(generation)),
            Claim::StaleReplica(generation) => self.publish_lease_with(lease, |lease| {
                Change::new().lease_for_repair(lease).generation(generation)
            }),
        }
    }

    fn publish_lease(&mut self, lease: Lease, generation: Option<u64>) -> Result<(), StoreError> {
        self.publish_lease_with(lease, |lease| match generation {
            Some(generation) => Change::new().lease(lease).generation(generation),
            None => Change::new().lease(lease),
        })
    }

    /// Makes a change of the lease, which ends one length of a lease from now.
    fn publish_lease_with(
        &mut self,
        lease: Lease,
        change: impl FnOnce(Lease) -> Change<'static>,
    ) -> Result<(), StoreError> {
        let length = u64::try_from(self.options.lease.as_millis()).unwrap_or(u64::MAX);
        let now = unix_ms();
        if now >= self.driver.fence_ms {
            // It has ended. If another writer had it since, the superblocks differ.
            self.driver.fence_ms = u64::MAX;
        }
        let lease = Lease { expiry_ms: now.saturating_add(length), ..lease };
        self.try_publish(self.driver.loss_mark(), &change(lease))?;
        self.lease = Some(lease);
        self.driver.fence_ms = lease.expiry_ms;
        Ok(())
    }

    /// Returns whether half of the lease has passed.
    pub(crate) fn is_renewal_due(&self) -> bool {
        let half = u64::try_from(self.options.lease.as_millis() / 2).unwrap_or(u64::MAX);
        self.lease.is_some_and(|lease| unix_ms().saturating_add(half) >= lease.expiry_ms)
    }

    /// Renews the lease if half of it has passed and nobody else does.
    pub(crate) fn renew_if_due(&mut self) -> Result<(), StoreError> {
        if self.lease.is_none() {
            return Err(StoreError::ReadOnly);
        }
        if self.is_replica || !self.is_renewal_due() {
            return Ok(());
        }
        match self.renew(None) {
            Err(error) if error.is_unknown() => self.settle(error, false),
            // It ended before its superblock was sent. Within the grace period nobody takes it.
            Err(StoreError::Volume(Error::NoLease)) => self.renew(None),
            result => result,
        }
    }

    /// Writes a superblock with a later end of the lease, whether that is due or not, and of this
    /// generation if it is given.
    pub(crate) fn renew(&mut self, generation: Option<u64>) -> Result<(), StoreError> {
        self.publish_lease(self.lease.ok_or(StoreError::ReadOnly)?, generation)
    }

    /// Returns the random number of the writer's lease, `None` in a store for reading.
    pub(crate) fn lease_number(&self) -> Option<u64> {
        self.lease.map(|lease| lease.number)
    }

    /// Writes nothing from now on.
    pub(crate) fn forget_lease(&mut self) {
        self.lease = None;
    }

    /// Gives the lease back, so that another writer can begin.
    pub(crate) fn release(&mut self) -> Result<(), StoreError> {
        let Some(lease) = self.lease else { return Ok(()) };
        if unix_ms() >= lease.expiry_ms {
            // Released, the next writer need not wait for the grace period.
            match self.publish_lease(lease, None) {
                Err(error) if error.is_of_other_writer() => {
                    self.lease = None;
                    return Ok(());
                }
                result => result?,
            }
        }
        self.try_publish(self.driver.loss_mark(), &Change::new().release())?;
        self.lease = None;
        Ok(())
    }

    /// Makes a change, again if the target was lost before its Flush.
    pub(crate) fn publish(&mut self, change: &Change<'_>) -> Result<(), StoreError> {
        self.attempt(|open| {
            open.renew_if_due()?;
            open.publish_after(open.driver.loss_mark(), change)
        })
    }

    /// Calls a function that makes a change, again while it fails because writes may be lost.
    fn attempt(
        &mut self,
        mut call: impl FnMut(&mut Self) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let epoch = self.epoch;
        let mut result = Ok(());
        for _ in 0..COMMIT_ATTEMPTS {
            result = call(self);
            let again = self.driver.has_lost_writes() && self.epoch == epoch;
            if result.is_ok() || !again {
                break;
            }
        }
        result
    }

    /// Makes a change whose Flush is also for writes since a mark, and finds out whether it was
    /// made where the target was lost during it. The lease must have been renewed.
    fn publish_after(
        &mut self,
        unflushed: LossMark,
        change: &Change<'_>,
    ) -> Result<(), StoreError> {
        match self.try_publish(unflushed, change) {
            // A replica is behind the others then, or has made the change.
            Err(error) if error.is_unknown() && !self.is_replica => self.settle(error, true),
            result => result,
        }
    }

    fn try_publish(&mut self, unflushed: LossMark, change: &Change<'_>) -> Result<(), StoreError> {
        let publishing = self.volume.publish(change, unix_ms()).map_err(StoreError::from);
        let result = publishing.and_then(|one| self.driver.run_after(unflushed, one));
        result.map_err(|error| match error {
            StoreError::Volume(Error::Leased { host, expiry_ms }) => {
                let end = expiry_ms.saturating_add(LEASE_GRACE_MS);
                let rest = Duration::from_millis(end.saturating_sub(unix_ms()));
                StoreError::Leased { host, rest }
            }
            error => error,
        })
    }

    /// Opens the volume again after a superblock may have been written, takes the lease again, and
    /// returns whether the change was made.
    fn settle(&mut self, error: StoreError, is_change: bool) -> Result<(), StoreError> {
        let before = self.volume.superblock().generation;
        let lease = self.lease.ok_or(StoreError::ReadOnly)?;
        let unknown = |error: StoreError| StoreError::Unknown(Box::new(error));
        self.reopen().map_err(|_| unknown(error.clone()))?;
        let now = self.volume.superblock();
        let is_made = now.generation > before;
        if now.lease.is_some_and(|other| other.number != lease.number) {
            // Another writer has begun since.
            return Err(unknown(error));
        }
        let renewed = self.publish_lease(lease, None);
        match (is_change, is_made) {
            (false, _) => renewed,
            (true, false) => Err(StoreError::NotMade(Box::new(error))),
            // That the change can be read does not mean that it is durable: the superblock of the
            // lease is.
            (true, true) => renewed.map_err(unknown),
        }
    }

    /// Reads the volume again. The lease must be taken again.
    fn reopen(&mut self) -> Result<(), StoreError> {
        self.driver.place.reopen()?;
        (self.idle_pipe, self.write_pipe) = (None, None);
        let volume = self.driver.run(Opening::new(self.driver.place.attributes()))?;
        if volume.superblock().uuid != self.volume.superblock().uuid {
            // Somebody has formatted it.
            return Err(Error::Fenced.into());
        }
        self.volume = volume;
        self.driver.fence_ms = u64::MAX;
        self.epoch += 1;
        Ok(())
    }

    /// Reads the volume again, and renews the lease.
    pub(crate) fn refresh(&mut self) -> Result<(), StoreError> {
        self.reopen()?;
        self.lease.map_or(Ok(()), |lease| self.publish_lease(lease, None))
    }

    /// Commits a save, whose writes since the mark have ended, and deletes all checkpoints but the
    /// last `keep`.
    pub(crate) fn commit(
        &mut self,
        save: &Save,
        mut unflushed: LossMark,
        keep: Option<usize>,
    ) -> Result<(), StoreError> {
        let change = Change::new().commit(save);
        let change = match keep {
            Some(count) => change.keep(count),
            None => change,
        };
        let epoch = self.epoch;
        self.attempt(|open| {
            if open.driver.may_have_lost(unflushed) {
                unflushed = open.driver.flush_what_is_there()?;
                open.verify_save(save)?;
            }
            open.renew_if_due()?;
            if open.epoch != epoch {
                // The volume was opened again: the units of the save are free there, and the
                // manifest would be written over them.
                return Err(StoreError::SaveLost);
            }
            open.publish_after(unflushed, &change)
        })
    }

    /// Reads what was written, since the target may have lost it with its power.
    fn verify_save(&mut self, save: &Save) -> Result<(), StoreError> {
        let mut pipe = self.take_pipe();
        let verified = save.entries().iter().try_for_each(|entry| {
            let plan = self.volume.entry_plan(entry, 0..entry.length)?;
            read_pieces(&mut pipe, &plan, &mut |_, bytes| match bytes {
                Ok(_) => ControlFlow::Continue(()),
                Err(UnitFault::Device(error)) => ControlFlow::Break(error.into()),
                Err(UnitFault::Checksum) => {
                    ControlFlow::Break(StoreError::LostWrites(entry.name.as_str().to_owned()))
                }
            })
        });
        self.idle_pipe = Some(pipe);
        verified
    }

    /// Takes the memory of reads, or prepares some if another read uses it.
    pub(crate) fn take_pipe(&mut self) -> UnitPipe {
        self.idle_pipe.take().unwrap_or_else(|| self.new_pipe())
    }

    /// Returns the memory that all saves use.
    pub(crate) fn write_pipe(&mut self) -> Arc<Mutex<WritePipe>> {
        if self.write_pipe.is_none() {
            self.write_pipe = Some(Arc::new(Mutex::new(WritePipe::new(self.new_pipe()))));
        }
        Arc::clone(self.write_pipe.as_ref().expect("it was made"))
    }

    pub(crate) fn new_pipe(&self) -> UnitPipe {
        let unit_bytes = self.volume.superblock().geometry.unit_bytes();
        // At most 16 MiB.
        UnitPipe::new(&self.driver.place, unit_bytes as usize, self.options.staging_bytes)
    }
}

/// Opens for writing, again if another writer has changed the volume before the lease was taken.
pub(crate) fn open_unchanged<T>(
    mut open: impl FnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    for _ in 1..OPEN_ATTEMPTS {
        match open() {
            Err(error) if error.is_fenced() => {}
            result => return result,
        }
    }
    open()
}

/// Locks a volume. A thread that panicked in a call leaves it as the call found or changed it.
pub(crate) fn lock(open: &Mutex<OpenVolume>) -> MutexGuard<'_, OpenVolume> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for OpenVolume {
    fn drop(&mut self) {
        // Without it, the next writer waits for the end of the lease.
        let _ = self.release();
    }
}
