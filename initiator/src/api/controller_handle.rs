//! State shared by the handles of a controller.

use std::sync::Arc;

use nvme_proto::identify::Identify;
use nvme_proto::log::{GetLogPage, LogOffset};
use nvme_proto::{AdminCommand, Sqe};

use crate::driver::host_state::Inner;
use crate::engine::arena::{ControllerKey, EngineKey, NamespaceKey};
use crate::engine::change_count::ChangeKind;
use crate::engine::host_engines::HostEngines;
use crate::engine::limits::ControllerLimits;
use crate::engine::namespace_identity::NamespaceIdentity;
use crate::engine::raw::{QueueKind, Raw, RawData, RawReply};
use crate::engine::reply::{Promise, Reply, promise};
use crate::engine::requests::Attachment;
use crate::memory::bounce::CHUNK_BYTES;
use crate::memory::region::CurrentScope;
use crate::types::error::{Error, ErrorKind, SubsystemAddress};

/// State shared by the handles of a controller, whose connection ends when it is dropped.
pub(crate) struct ControllerHandle {
    pub(crate) host: Arc<Inner>,
    pub(crate) engine: EngineKey,
    pub(crate) key: ControllerKey,
    pub(crate) scope: Arc<CurrentScope>,
    pub(crate) target: Arc<SubsystemAddress>,
}

impl ControllerHandle {
    /// Queues a command, which the host sends at its next turn.
    pub(crate) fn send(&self, sqe: Sqe, data: RawData, queue: QueueKind) -> Reply<RawReply> {
        self.queue(|promise| Raw::new(sqe, data, queue, promise))
    }

    /// Queues an I/O command for an open namespace; it fails if the namespace has changed since.
    pub(crate) fn send_to(
        &self,
        namespace: NamespaceKey,
        sqe: Sqe,
        data: RawData,
    ) -> Reply<RawReply> {
        let queue = QueueKind::Io;
        self.queue(|promise| {
            let namespace = Some(namespace);
            Raw { namespace, ..Raw::new(sqe, data, queue, promise) }
        })
    }

    /// Queues an admin command without side effects, which may be sent again on the next
    /// connection.
    pub(crate) fn ask(&self, sqe: Sqe, data: RawData) -> Reply<RawReply> {
        let queue = QueueKind::Admin;
        self.queue(|promise| {
            let (repeatable, alters) = (true, false);
            Raw { repeatable, alters, ..Raw::new(sqe, data, queue, promise) }
        })
    }

    fn queue(&self, command: impl FnOnce(Promise<RawReply>) -> Raw) -> Reply<RawReply> {
        let (promise, reply) = promise(self.host.shared.process());
        let raw = command(promise);
        // A host that is closing has no engines: the promise is dropped, and the reply resolves to
        // `Closed`. In a forked child the reply itself reports that.
        if let Ok(mut state) = self.host.shared.lock()
            && let Some(engine) = state.host.engines.get_mut(self.engine)
        {
            engine.raw(self.key, raw);
        }
        reply
    }

    /// Requests another authentication, which begins at the next turn.
    pub(crate) fn reauthenticate(&self) -> Reply<()> {
        let (promise, reply) = promise(self.host.shared.process());
        // Like a command: see `queue`.
        if let Ok(mut state) = self.host.shared.lock()
            && let Some(engine) = state.host.engines.get_mut(self.engine)
        {
            engine.reauthenticate(self.key, promise);
        }
        reply
    }

    /// Returns the limits of the current connection.
    pub(crate) fn limits(&self) -> Result<ControllerLimits, Error> {
        let state = self.host.shared.lock()?;
        state.host.engines.get(self.engine).ok_or(ErrorKind::Closed)?.limits(self.key)
    }

    pub(crate) fn is_connected(&self) -> bool {
        let Ok(state) = self.host.shared.lock() else { return false };
        let engine = state.host.engines.get(self.engine);
        engine.is_some_and(|engine| !engine.load(self.key, None).is_away())
    }

    /// Waits until the count of changes differs from `seen`, and returns it.
    pub(crate) async fn change(&self, kind: ChangeKind, seen: u64) -> Result<u64, Error> {
        let (promise, reply) = promise(self.host.shared.process());
        let waiting = {
            let mut state = self.host.shared.lock()?;
            let engine = state.host.engines.get_mut(self.engine).ok_or(ErrorKind::Closed)?;
            engine.await_change(self.key, kind, seen, promise)?
        };
        match waiting {
            Some(count) => Ok(count),
            None => reply.await,
        }
    }

    /// Returns the number of the current connection, which each reconnect changes.
    pub(crate) fn epoch(&self) -> Result<u64, Error> {
        let state = self.host.shared.lock()?;
        state.host.engines.get(self.engine).ok_or(ErrorKind::Closed)?.epoch(self.key)
    }

    /// Registers an identified namespace with the engine; `None` if the connection is no longer
    /// that of `epoch`, since the namespace may have changed then.
    pub(crate) fn attach(
        &self,
        epoch: u64,
        identity: NamespaceIdentity,
    ) -> Result<Option<Attachment>, Error> {
        let mut state = self.host.shared.lock()?;
        let HostEngines { engines, outbox, .. } = &mut state.host;
        let engine = engines.get_mut(self.engine).ok_or(ErrorKind::Closed)?;
        engine.attach(self.key, epoch, identity, outbox)
    }

    pub(crate) async fn identify(&self, command: Identify) -> Result<Vec<u8>, Error> {
        let data = RawData::ToHost { length: Identify::DATA_BYTES as u32 };
        let sqe = AdminCommand::Identify(command).to_sqe();
        Ok(self.ask(sqe, data).await?.data)
    }

    pub(crate) async fn log_page(&self, command: GetLogPage) -> Result<Vec<u8>, Error> {
        let LogOffset::Bytes(start) = command.offset else {
            return Err(ErrorKind::Invalid("log pages are read by byte offset").into());
        };
        if !command.length_bytes.is_multiple_of(4) || !start.is_multiple_of(4) {
            return Err(ErrorKind::Invalid("log pages are read in multiples of 4 bytes").into());
        }
        let mut page = Vec::new();
        while (page.len() as u64) < command.length_bytes {
            let done = page.len() as u64;
            let piece = GetLogPage {
                length_bytes: (command.length_bytes - done).min(self.piece_bytes()?),
                offset: LogOffset::Bytes(start + done),
                ..command
            };
            let data = RawData::to_host(piece.length_bytes);
            let sqe = AdminCommand::GetLogPage(piece).to_sqe();
            page.extend(self.ask(sqe, data).await?.data);
        }
        Ok(page)
    }

    /// Returns the most bytes of a log page that one command reads.
    fn piece_bytes(&self) -> Result<u64, Error> {
        Ok(self.limits()?.max_transfer_bytes.clamp(4096, CHUNK_BYTES as u64))
    }
}

impl Drop for ControllerHandle {
    fn drop(&mut self) {
        let Ok(mut state) = self.host.shared.lock() else { return };
        if let Some(engine) = state.host.engines.get_mut(self.engine) {
            engine.close(self.key);
        }
        drop(state);
        if self.host.shared.threaded {
            self.host.shared.kick();
        }
    }
}

impl RawData {
    /// Returns the data of a command that transfers this many bytes, at most 2^32 - 1, to the host.
    pub(crate) fn to_host(length_bytes: u64) -> Self {
        match u32::try_from(length_bytes).unwrap_or(u32::MAX) {
            0 => Self::None,
            length => Self::ToHost { length },
        }
    }
}
