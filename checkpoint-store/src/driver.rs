//! Execution of a volume's operations on a namespace, one after the other.

use std::iter;
use std::time::Duration;

use feedrail_checkpoint::{
    Error, Failure, LEASE_GRACE_MS, OperationOutcome, Procedure, Request, Run, VolumeOperation,
    WritePayload,
};
use feedrail_initiator::{
    BatchOptions, ErrorKind, Grant, Namespace, RangeCompletion, RegionSlice, Ring, RingFull,
};
use nvme_proto::Status;

use crate::clock::{pause, unix_ms};
use crate::error::StoreError;
use crate::volume_namespace::VolumeNamespace;

/// Executes procedures, and knows whether writes that are not flushed may have been lost.
pub(crate) struct Driver {
    pub(crate) place: VolumeNamespace,
    /// When the lease ends, under which operations write. No write is sent afterwards.
    pub(crate) fence_ms: u64,
    /// When the oldest write began that the present procedure flushes.
    unflushed: LossMark,
    /// Whether a Flush of the last procedure failed only because a connection was lost.
    lost_writes: bool,
    cause: Option<feedrail_initiator::Error>,
}

/// Number of connections that the host had lost when a write began that is not flushed. A target
/// that lost its power loses such writes, and is connected again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LossMark(u64);

/// Limit for each write, after which another writer may have the lease.
pub(crate) fn batch_options() -> BatchOptions {
    BatchOptions::new().deadline(Duration::from_millis(LEASE_GRACE_MS))
}

impl Driver {
    pub(crate) fn new(place: VolumeNamespace) -> Self {
        let unflushed = LossMark(place.host.counters().connections_lost);
        Self { place, fence_ms: u64::MAX, unflushed, lost_writes: false, cause: None }
    }

    pub(crate) fn run<P: Procedure>(&mut self, procedure: P) -> Result<P::Output, StoreError> {
        self.run_after(self.loss_mark(), procedure)
    }

    /// Runs a procedure whose Flush is also for earlier writes.
    pub(crate) fn run_after<P: Procedure>(
        &mut self,
        unflushed: LossMark,
        procedure: P,
    ) -> Result<P::Output, StoreError> {
        let mut run = Run::new(procedure);
        (self.unflushed, self.cause, self.lost_writes) = (unflushed, None, false);
        loop {
            let round: Vec<_> = iter::from_fn(|| run.operation()).collect();
            if round.is_empty() {
                break;
            }
            self.deallocate(&round, &mut run);
            for VolumeOperation { id, request } in round {
                if !matches!(request, Request::Deallocate { .. }) {
                    let outcome = self.outcome(request);
                    run.complete(id, outcome);
                }
            }
        }
        let result = run.finish().expect("a run without operations has ended");
        result.map_err(|error| self.explain(error))
    }

    /// Runs the first operations of a procedure, and returns its error if it ends with one.
    pub(crate) fn run_first_round<P: Procedure>(&mut self, procedure: P) -> Result<(), StoreError> {
        let mut run = Run::new(procedure);
        let round: Vec<_> = iter::from_fn(|| run.operation()).collect();
        for VolumeOperation { id, request } in round {
            let outcome = self.outcome(request);
            run.complete(id, outcome);
        }
        match run.finish() {
            Some(Err(error)) => Err(self.explain(error)),
            Some(Ok(_)) | None => Ok(()),
        }
    }

    /// Returns the mark for writes that begin now.
    pub(crate) fn loss_mark(&self) -> LossMark {
        LossMark(self.place.host.counters().connections_lost)
    }

    /// Returns whether writes since a mark, that are not flushed, may have been lost.
    pub(crate) fn may_have_lost(&self, unflushed: LossMark) -> bool {
        self.loss_mark() != unflushed
    }

    /// Returns whether the last procedure failed because such writes may have been lost.
    pub(crate) fn has_lost_writes(&self) -> bool {
        self.lost_writes
    }

    /// Makes completed writes durable, and returns the mark from which others are not. Those that a
    /// target lost must be found by the caller, by their checksums.
    pub(crate) fn flush_what_is_there(&mut self) -> Result<LossMark, StoreError> {
        let mark = self.loss_mark();
        self.place.namespace.flush().wait()?;
        Ok(mark)
    }

    /// Sends all Deallocate requests of a round together.
    fn deallocate<P: Procedure>(&self, round: &[VolumeOperation], run: &mut Run<P>) {
        let ranges = round.iter().filter_map(|operation| match operation.request {
            Request::Deallocate { offset, length } => Some((operation.id, (offset, length))),
            _ => None,
        });
        let (ids, ranges): (Vec<_>, Vec<_>) = ranges.unzip();
        if ranges.is_empty() {
            return;
        }
        let outcome = match self.place.namespace.deallocate(&ranges).wait() {
            Ok(()) => OperationOutcome::Done,
            Err(error) => OperationOutcome::Failed(failure(&error)),
        };
        for id in ids {
            run.complete(id, outcome.clone());
        }
    }

    fn outcome(&mut self, request: Request) -> OperationOutcome {
        self.execute(request).unwrap_or_else(|error| {
            let failure = failure(&error);
            self.cause = Some(error);
            OperationOutcome::Failed(failure)
        })
    }

    fn execute(&mut self, request: Request) -> Result<OperationOutcome, feedrail_initiator::Error> {
        match request {
            Request::Read { offset, length } => {
                let length = usize::try_from(length)
                    .map_err(|_| ErrorKind::Invalid("more bytes than memory has"))?;
                let into = RegionSlice::from_vec(vec![0; length], Grant::Persistent);
                let read =
                    self.transfer(|ring, namespace| ring.read(namespace, offset, into, 0))?;
                Ok(OperationOutcome::Data(read.into_vec().unwrap_or_else(|read| read.to_vec())))
            }
            Request::Write { offset, payload: WritePayload::Bytes(bytes), fua } => {
                self.write(offset, bytes, fua)
            }
            // Stores write the units of entries themselves.
            Request::Write { payload: WritePayload::Source { .. }, .. } => {
                Err(ErrorKind::Invalid("a write without bytes").into())
            }
            Request::Flush => {
                self.place.namespace.flush().wait()?;
                self.lost_writes = self.may_have_lost(self.unflushed);
                match self.lost_writes {
                    true => Err(ErrorKind::ConnectionLost("before the Flush").into()),
                    false => Ok(OperationOutcome::Done),
                }
            }
            // Two commands: the initiator has no fused ones. Another writer between them is kept
            // away by the lease.
            Request::CompareAndWrite { offset, expected, bytes } => {
                self.place.namespace.compare(offset, &expected).wait()?;
                self.write(offset, bytes, true)
            }
            Request::Pause { ms } => {
                pause(Duration::from_millis(ms));
                Ok(OperationOutcome::Done)
            }
            Request::Deallocate { .. } => Ok(OperationOutcome::Done),
        }
    }

    fn write(
        &self,
        offset: u64,
        bytes: Vec<u8>,
        fua: bool,
    ) -> Result<OperationOutcome, feedrail_initiator::Error> {
        if unix_ms() >= self.fence_ms {
            return Ok(OperationOutcome::Failed(Failure::LeaseEnded));
        }
        let from = RegionSlice::from_vec(bytes, Grant::Persistent);
        self.transfer(|ring, namespace| match fua {
            true => ring.write_durable(namespace, offset, from, 0),
            false => ring.write(namespace, offset, from, 0),
        })?;
        Ok(OperationOutcome::Done)
    }

    /// Executes one range, which the initiator splits as the controller's MDTS requires.
    fn transfer(
        &self,
        begin: impl FnOnce(&mut Ring, &Namespace) -> Result<(), RingFull>,
    ) -> Result<RegionSlice, feedrail_initiator::Error> {
        let mut ring = self.place.host.ring_with(1, batch_options());
        begin(&mut ring, &self.place.namespace).expect("an empty ring has room");
        let mut ended = Vec::with_capacity(1);
        ring.wait(1, None, &mut ended);
        let RangeCompletion { slice, result, .. } = ended.pop().expect("the only range has ended");
        result.map(|()| slice)
    }

    /// Adds the error of the operation to that of the volume.
    fn explain(&mut self, error: Error) -> StoreError {
        let cause = self.cause.take();
        match (&error, cause) {
            (Error::Device(Failure::WriteProtected), _) => StoreError::WriteProtected,
            (Error::Device(_) | Error::Unknown(_), Some(cause)) => {
                StoreError::Device { error, cause }
            }
            _ => error.into(),
        }
    }
}

/// Returns what an error means for a volume.
fn failure(error: &feedrail_initiator::Error) -> Failure {
    let is = |status: Status| error.status().is_some_and(|one| one.is(status));
    if is(Status::CAPACITY_EXCEEDED) {
        Failure::CapacityExceeded
    } else if is(Status::COMPARE_FAILURE) {
        Failure::Miscompare
    } else if is(Status::NAMESPACE_IS_WRITE_PROTECTED)
        || is(Status::ATTEMPTED_WRITE_TO_READ_ONLY_RANGE)
    {
        Failure::WriteProtected
    } else {
        Failure::Device
    }
}
