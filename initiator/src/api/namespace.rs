//! Namespaces, and operations on their byte ranges.

use std::fmt;
use std::sync::Arc;

use nvme_proto::nvm::{DatasetManagement, DsmAttributes, DsmRange, Flush, Io, WriteZeroes};
use nvme_proto::{IntoBytes, LbaRange, Nsid, NvmCommand, Sqe};

use crate::api::controller_handle::ControllerHandle;
use crate::api::multipath::{CommandPath, Multipath};
use crate::api::namespace_paths::{NamespacePaths, PathHandles};
use crate::api::path::{ANOTHER_HOST, NamespaceInfo, NamespacePath};
use crate::api::pending::Pending;
use crate::api::submit::{self, BatchRange, RangeOutcome};
use crate::driver::host_state::Inner;
use crate::engine::raw::{RawData, RawReply};
use crate::engine::shard_routes::ReplicaPolicy;
use crate::memory::bounce::CHUNK_BYTES;
use crate::memory::region::{Grant, RegionSlice};
use crate::types::direction::RangeDirection;
use crate::types::error::{Error, ErrorKind, SubsystemAddress};
use crate::types::options::BatchOptions;

/// A namespace, read and written by byte ranges of any alignment.
///
/// # Several writers
/// A write to a part of a block reads the block, changes the part, and writes the whole block.
/// Writes of one [`Host`](crate::Host) that share a block are serialized, over whichever
/// controllers they go, so that none undoes another. **If two hosts write different parts of one
/// block at the same time, both writes succeed, and the bytes of one are lost.** Hosts that share a
/// namespace must therefore write whole blocks, or different blocks. The fused operation Compare
/// and Write could prevent it; Feedrail's target does not offer it, and this initiator does not use
/// it.
///
/// # Lost connections
/// Reads and writes that a lost connection interrupts are issued again on the next connection,
/// until their deadline. For writes that is safe since they write the same bytes to the same
/// blocks: the memory is unchanged until the range has ended. A target may still execute a write
/// after the connection was lost. Until it must have detected the loss, other writes of this host
/// to the same blocks wait, over whichever controller they go: for two Keep Alive Timeouts, one
/// second, and the target's Command Quiesce Time
/// ([`command_quiesce_ms`](crate::ControllerLimits::command_quiesce_ms)). Storage of a lost target
/// that executes a write even later may overwrite a newer one.
///
/// A namespace over several paths ([`SubsystemPaths::multipath_namespace`]) is read and written
/// over each of them as its policy says. Operations on a path that is lost, or no longer serves the
/// namespace, continue on another immediately. [`Namespace::change_paths`] replaces its paths.
///
/// [`SubsystemPaths::multipath_namespace`]: crate::SubsystemPaths::multipath_namespace
#[derive(Clone)]
pub struct Namespace {
    paths: NamespacePaths,
}

impl Namespace {
    pub(crate) async fn open(controller: Arc<ControllerHandle>, nsid: Nsid) -> Result<Self, Error> {
        Ok(Self::over_one(NamespacePath::open(controller, nsid).await?))
    }

    /// Returns a namespace over one path, which stays the only one.
    pub(crate) fn over_one(handle: Arc<NamespacePath>) -> Self {
        Self { paths: NamespacePaths::One(handle) }
    }

    /// Returns a namespace over these paths, which can change.
    ///
    /// # Errors
    /// There is no path, or the paths are of different hosts.
    pub(crate) fn over_paths(policy: ReplicaPolicy, paths: Vec<Self>) -> Result<Self, Error> {
        let paths = paths.iter().flat_map(|path| path.handles().as_slice().to_vec()).collect();
        let multipath = Multipath::new(policy, paths)?;
        Ok(Self { paths: NamespacePaths::Several(Arc::new(multipath)) })
    }

    /// Returns a namespace for each path alone; a clone of itself if it was opened over one
    /// controller.
    pub fn paths(&self) -> impl Iterator<Item = Self> + use<> {
        let alone: Vec<_> = self.handles().as_slice().iter().cloned().map(Self::over_one).collect();
        alone.into_iter()
    }

    pub(crate) fn reached_over(&self) -> &NamespacePaths {
        &self.paths
    }

    /// Returns the paths that new operations use.
    pub(crate) fn handles(&self) -> PathHandles<'_> {
        self.paths.handles()
    }

    /// Returns the first of the paths that new operations use.
    pub(crate) fn first_path(&self) -> Arc<NamespacePath> {
        Arc::clone(&self.handles().as_slice()[0])
    }

    pub(crate) fn host(&self) -> &Arc<Inner> {
        self.paths.host()
    }

    /// Returns the properties that it had when it was opened.
    pub fn info(&self) -> &NamespaceInfo {
        self.paths.info()
    }

    /// Returns the namespace identifier (NSID) in the subsystem.
    pub fn nsid(&self) -> Nsid {
        self.info().nsid
    }

    /// Returns the size in bytes, as [`NamespaceInfo::size_bytes`].
    pub fn size_bytes(&self) -> u64 {
        self.info().size_bytes
    }

    /// Returns the subsystem, at the address of the path that was the first when the namespace was
    /// opened.
    pub fn target(&self) -> &SubsystemAddress {
        self.paths.target()
    }

    /// Reads as many bytes as `into` holds, from byte `offset` of the namespace.
    pub fn read(&self, offset: u64, into: RegionSlice) -> Pending<RangeOutcome> {
        self.transfer(RangeDirection::Read, offset, into)
    }

    /// Writes the bytes of `from` to byte `offset` of the namespace and those after it. Writes of
    /// parts of blocks are safe only from other writes of this host: [several
    /// writers](Namespace#several-writers).
    pub fn write(&self, offset: u64, from: RegionSlice) -> Pending<RangeOutcome> {
        self.transfer(RangeDirection::Write { fua: false }, offset, from)
    }

    fn transfer(
        &self,
        direction: RangeDirection,
        offset: u64,
        slice: RegionSlice,
    ) -> Pending<RangeOutcome> {
        let range = BatchRange::new(&self.paths, offset, slice);
        let batch = submit::start(self.host(), direction, BatchOptions::new(), vec![range]);
        Pending::new(self.host(), async move {
            batch.await.pop().expect("a batch has an outcome for each of its ranges")
        })
    }

    /// Reads bytes into a new vector. For small ranges, since each call registers memory.
    pub fn read_to_vec(&self, offset: u64, length: usize) -> Pending<Result<Vec<u8>, Error>> {
        let size_bytes = self.size_bytes();
        if offset.checked_add(length as u64).is_none_or(|end| end > size_bytes) {
            // Checked before memory is allocated for it.
            let error = self.about(ErrorKind::OutOfRange { size_bytes }.into());
            let error = error.of_range(offset, length as u64);
            return Pending::new(self.host(), async move { Err(error) });
        }
        let slice = RegionSlice::from_vec(vec![0; length], Grant::Persistent);
        let reading = self.read(offset, slice);
        Pending::new(self.host(), async move {
            let RangeOutcome { slice, result } = reading.await;
            result.map(|()| slice.into_vec().unwrap_or_else(|slice| slice.to_vec()))
        })
    }

    /// Reads as many bytes as `into` holds, from byte `offset`, and waits for them. They are copied
    /// from a buffer of at most 1 MiB, which each call registers; plans and rings avoid both.
    ///
    /// # Errors
    /// Not all bytes were read; the contents of `into` are then unspecified.
    ///
    /// # Panics
    /// The host uses a simulated device: see [`Pending::wait`].
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let mut slice = RegionSlice::allocate(into.len().min(READ_AT_BYTES), Grant::Persistent)?;
        let mut at = offset;
        for piece in into.chunks_mut(READ_AT_BYTES) {
            // Only the last piece is shorter.
            drop(slice.split_off(piece.len()));
            let RangeOutcome { slice: back, result } = self.read(at, slice).wait();
            result?;
            back.copy_out(0, piece);
            (slice, at) = (back, at.saturating_add(piece.len() as u64));
        }
        Ok(())
    }

    /// Identifies the namespace again, and returns its present properties. Those of this handle do
    /// not change. A namespace whose size changed must be opened again.
    pub fn refresh(&self) -> Pending<Result<NamespaceInfo, Error>> {
        let this = self.clone();
        Pending::new(self.host(), async move {
            let path = this.paths.command_path(None);
            let path = path.map_or_else(|| this.first_path(), |path| Arc::clone(path.handle()));
            path.refresh().await.map_err(|error| this.about(error))
        })
    }

    /// Returns the reason why all reads and writes fail, if the namespace is no longer the one that
    /// was opened, on any of its paths. Sends no command: [`Controller::namespace_changes`] returns
    /// when there may be a reason.
    ///
    /// [`Controller::namespace_changes`]: crate::Controller::namespace_changes
    pub fn change(&self) -> Option<Error> {
        let state = self.host().shared.lock().ok()?;
        let handles = self.handles();
        handles.as_slice().iter().find_map(|path| {
            let engine = state.host.engines.get(path.engine())?;
            engine.namespace_change(path.controller_key(), path.number())
        })
    }

    /// Returns the name that the target reported last. A target may rename an open namespace, which
    /// does not change its bytes; [`Namespace::info`] has the name at the time of opening. Nothing
    /// is sent: wait for [`Controller::namespace_changes`] to learn of a rename.
    ///
    /// [`Controller::namespace_changes`]: crate::Controller::namespace_changes
    pub fn current_name(&self) -> Option<String> {
        let state = self.host().shared.lock().ok()?;
        let path = self.first_path();
        let engine = state.host.engines.get(path.engine())?;
        engine.namespace_name(path.controller_key(), path.number())
    }

    /// Sends Flush: makes all completed writes durable.
    pub fn flush(&self) -> Pending<Result<(), Error>> {
        let sqe = NvmCommand::Flush(Flush { nsid: self.nsid() }).to_sqe();
        self.commands(vec![(sqe, RawData::None)])
    }

    /// Sends Write Zeroes for whole blocks, which transfers no data.
    pub fn write_zeroes(&self, offset: u64, length: u64) -> Pending<Result<(), Error>> {
        let nsid = self.nsid();
        let blocks = self.whole_blocks(offset, length, u64::from(LbaRange::MAX_BLOCKS));
        self.commands_or(blocks.map(|pieces| {
            let command = |range| {
                let zeroes = WriteZeroes {
                    nsid,
                    range,
                    deallocate: false,
                    fua: false,
                    limited_retry: false,
                };
                (NvmCommand::WriteZeroes(zeroes).to_sqe(), RawData::None)
            };
            pieces.into_iter().map(command).collect()
        }))
    }

    /// Sends Dataset Management with Deallocate for ranges of whole blocks, as (offset, length) in
    /// bytes: their contents are no longer needed.
    pub fn deallocate(&self, ranges: &[(u64, u64)]) -> Pending<Result<(), Error>> {
        let nsid = self.nsid();
        let pieces: Result<Vec<_>, Error> = ranges
            .iter()
            .map(|&(offset, length)| self.whole_blocks(offset, length, u64::from(u32::MAX)))
            .collect();
        self.commands_or(pieces.map(|pieces| {
            let ranges: Vec<DsmRange> = pieces
                .into_iter()
                .flatten()
                .map(|range| DsmRange::new(range.slba, range.blocks))
                .collect();
            let command = |ranges: &[DsmRange]| {
                let attributes = DsmAttributes::new().with_deallocate(true);
                // At most 256, the size of a chunk.
                let count = ranges.len() as u16;
                let sqe = DatasetManagement { nsid, ranges: count, attributes };
                let data = RawData::ToController(ranges.as_bytes().to_vec());
                (NvmCommand::DatasetManagement(sqe).to_sqe(), data)
            };
            ranges.chunks(usize::from(DatasetManagement::MAX_RANGES)).map(command).collect()
        }))
    }

    /// Sends Compare for whole blocks and `bytes`. If they differ, the status of the error is
    /// Compare Failure.
    pub fn compare(&self, offset: u64, bytes: &[u8]) -> Pending<Result<(), Error>> {
        let nsid = self.nsid();
        let block = self.info().block_bytes;
        let handles = self.handles();
        let transfers = handles.as_slice().iter().map(|path| path.max_transfer_bytes());
        let most = transfers.fold(CHUNK_BYTES as u64, u64::min) / block;
        let pieces = self.whole_blocks(offset, bytes.len() as u64, most.max(1));
        self.commands_or(pieces.map(|pieces| {
            let command = |range: LbaRange| {
                // Within `bytes`, since `whole_blocks` has checked it.
                let from = (range.slba * block - offset) as usize;
                let piece = &bytes[from..from + (u64::from(range.blocks) * block) as usize];
                let io = Io { nsid, range, fua: false, limited_retry: false };
                (NvmCommand::Compare(io).to_sqe(), RawData::ToController(piece.to_vec()))
            };
            pieces.into_iter().map(command).collect()
        }))
    }

    /// Splits a range of whole blocks within the namespace into pieces of at most `most_blocks`.
    fn whole_blocks(
        &self,
        offset: u64,
        length: u64,
        most_blocks: u64,
    ) -> Result<Vec<LbaRange>, Error> {
        let &NamespaceInfo { block_bytes, blocks, .. } = self.info();
        let about = |kind: ErrorKind| self.about(kind.into()).of_range(offset, length);
        if !offset.is_multiple_of(block_bytes) || !length.is_multiple_of(block_bytes) {
            return Err(about(ErrorKind::Unaligned { block_bytes }));
        }
        let (first, count) = (offset / block_bytes, length / block_bytes);
        if first.checked_add(count).is_none_or(|end| end > blocks) {
            return Err(about(ErrorKind::OutOfRange { size_bytes: self.size_bytes() }));
        }
        if count.div_ceil(most_blocks) > MAX_COMMANDS {
            return Err(about(ErrorKind::Invalid("too long for one call")));
        }
        let starts = (0..count).step_by(usize::try_from(most_blocks).unwrap_or(usize::MAX));
        Ok(starts
            .map(|start| {
                let blocks = most_blocks.min(count - start);
                LbaRange { slba: first + start, blocks: u32::try_from(blocks).unwrap_or(u32::MAX) }
            })
            .collect())
    }

    fn commands_or(
        &self,
        commands: Result<Vec<(Sqe, RawData)>, Error>,
    ) -> Pending<Result<(), Error>> {
        match commands {
            Ok(commands) => self.commands(commands),
            Err(error) => Pending::new(self.host(), async move { Err(error) }),
        }
    }

    /// Sends commands concurrently, and returns the first error. The commands are idempotent, so
    /// that one that fails because of its path is sent again on the others.
    fn commands(&self, commands: Vec<(Sqe, RawData)>) -> Pending<Result<(), Error>> {
        let send = |(sqe, data): (Sqe, RawData)| match self.paths.command_path(None) {
            None => (self.first_path().send(sqe, data), None),
            Some(path) => {
                let reply = path.handle().send(sqe, data.clone());
                (reply, Some((path, sqe, data)))
            }
        };
        let sent: Vec<_> = commands.into_iter().map(send).collect();
        let this = self.clone();
        Pending::new(self.host(), async move {
            let mut result = Ok(());
            for (reply, again) in sent {
                let mut reply = reply.await;
                if let Some((path, sqe, data)) = again {
                    reply = this.send_elsewhere(reply, sqe, data, path).await;
                }
                result = result.and(reply.map(drop).map_err(|error| this.about(error)));
            }
            result
        })
    }

    /// Sends a command on the paths that were not attempted, one after the other, as long as
    /// `reply` is an error of the path.
    async fn send_elsewhere(
        &self,
        mut reply: Result<RawReply, Error>,
        sqe: Sqe,
        data: RawData,
        mut path: CommandPath,
    ) -> Result<RawReply, Error> {
        while let Err(error) = &reply
            && error.is_of_path()
            && let Some(other) = self.paths.command_path(Some(&path))
        {
            reply = other.handle().send(sqe, data.clone()).await;
            path = other;
        }
        reply
    }

    pub(crate) fn about(&self, error: Error) -> Error {
        error.of_target(self.paths.target()).of_namespace(self.nsid())
    }

    /// Returns the error for a namespace that is used together with those of another host.
    pub(crate) fn is_of_another_host(&self) -> Error {
        self.about(ErrorKind::Invalid(ANOTHER_HOST).into())
    }
}

/// Largest number of bytes that [`Namespace::read_at`] reads with one range.
const READ_AT_BYTES: usize = 1 << 20;

/// Largest number of commands of one call.
const MAX_COMMANDS: u64 = 1 << 16;

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namespace")
            .field("target", self.target())
            .field("info", self.info())
            .field("paths", &self.handles().as_slice().len())
            .finish_non_exhaustive()
    }
}
