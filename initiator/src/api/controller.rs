//! Connected controllers, as callers hold them.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use nvme_proto::feature::{GetFeatures, SetFeatures};
use nvme_proto::identify::{Cns, Identify, NamespaceList};
use nvme_proto::log::{GetLogPage, LogOffset};
use nvme_proto::{AdminCommand, Nsid, Sqe, view};

use crate::api::host::Inner;
use crate::api::namespace::Namespace;
use crate::api::pending::Pending;
use crate::engine::Connecting;
use crate::engine::controller::{ControllerLimits, QueueKind, Raw, RawData, RawReply};
use crate::engine::namespace_identity::NamespaceIdentity;
use crate::engine::reply::{Promise, Reply, promise};
use crate::memory::bounce::CHUNK_BYTES;
use crate::memory::region::ErasedScope;
use crate::types::error::{Error, ErrorKind, SubsystemAddress};
use crate::types::options::ControllerOptions;

/// The most namespaces that a list is read for.
const MAX_NAMESPACES: usize = 1 << 20;

/// A controller that is connected, and stays so: connections that are lost are made again.
///
/// Cheap to clone. The connection ends when the last handle of the controller and of its namespaces
/// is dropped.
#[derive(Clone)]
pub struct Controller {
    handle: Arc<ControllerHandle>,
}

/// What a command answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandAnswer {
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
    /// The data that came.
    pub data: Vec<u8>,
}

/// Data that goes with a command of the caller's own making.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandData {
    /// None.
    None,
    /// From the host to the controller; up to 64 KiB.
    ToController(Vec<u8>),
    /// From the controller to the host, this many bytes; up to 64 KiB.
    ToHost(u32),
}

impl Controller {
    pub(crate) fn connect(
        host: &Arc<Inner>,
        target: SubsystemAddress,
        options: ControllerOptions,
    ) -> Result<impl Future<Output = Result<Self, Error>> + Send + use<>, Error> {
        let target = Arc::new(target);
        let about = |error: Error| error.of_target(&target);
        let engine = host.engine_for(target.address).map_err(about)?;
        let (opened, reply) = promise(host.shared.process());
        let mut state = host.shared.lock()?;
        let connecting = state.engines[engine].connect(Arc::clone(&target), options, opened);
        drop(state);
        let Connecting { controller: key, scope } = connecting.map_err(about)?;
        let host = Arc::clone(host);
        let handle = Arc::new(ControllerHandle { host, engine, key, scope, target });
        Ok(async move {
            reply.await?;
            Ok(Self { handle })
        })
    }

    /// What it belongs to, and where.
    pub fn target(&self) -> &SubsystemAddress {
        &self.handle.target
    }

    /// Its identifier and limits, as of the present connection.
    ///
    /// # Errors
    /// Why it was given up.
    pub fn limits(&self) -> Result<ControllerLimits, Error> {
        self.handle.limits()
    }

    /// Opens a namespace.
    pub fn namespace(&self, nsid: Nsid) -> Pending<Result<Namespace, Error>> {
        let handle = Arc::clone(&self.handle);
        self.pending(async move { Namespace::open(handle, nsid).await })
    }

    /// The namespaces that are active, in ascending order.
    pub fn active_namespaces(&self) -> Pending<Result<Vec<Nsid>, Error>> {
        let handle = Arc::clone(&self.handle);
        self.pending(async move { active_namespaces(&handle).await })
    }

    /// Identify Controller (CNS 01h): 4,096 bytes, for
    /// [`nvme_proto::identify::IdentifyController`].
    pub fn identify(&self) -> Pending<Result<Vec<u8>, Error>> {
        self.identify_with(Identify::new(Cns::CONTROLLER))
    }

    /// Identify Namespace (CNS 00h): 4,096 bytes, for [`nvme_proto::identify::IdentifyNamespace`].
    pub fn identify_namespace(&self, nsid: Nsid) -> Pending<Result<Vec<u8>, Error>> {
        self.identify_with(Identify::namespace(Cns::NAMESPACE, nsid))
    }

    /// Any Identify: 4,096 bytes.
    pub fn identify_with(&self, command: Identify) -> Pending<Result<Vec<u8>, Error>> {
        let handle = Arc::clone(&self.handle);
        self.pending(async move { handle.identify(command).await })
    }

    /// Reads a log page, in as many pieces as it takes.
    pub fn log_page(&self, command: GetLogPage) -> Pending<Result<Vec<u8>, Error>> {
        let handle = Arc::clone(&self.handle);
        self.pending(async move { handle.log_page(command).await })
    }

    /// Reads a feature.
    pub fn get_features(&self, command: GetFeatures) -> Pending<Result<CommandAnswer, Error>> {
        let data = RawData::to_host(command.transfer().length_bytes);
        self.command(AdminCommand::GetFeatures(command).to_sqe(), data, QueueKind::Admin)
    }

    /// Changes a feature; `data` is what belongs to it, for most features nothing.
    pub fn set_features(
        &self,
        command: SetFeatures,
        data: Vec<u8>,
    ) -> Pending<Result<CommandAnswer, Error>> {
        let data = if data.is_empty() { RawData::None } else { RawData::ToController(data) };
        self.command(AdminCommand::SetFeatures(command).to_sqe(), data, QueueKind::Admin)
    }

    /// Sends an administrative command of the caller's own making. Its identifier and data pointer
    /// are filled in.
    pub fn admin_command(
        &self,
        sqe: Sqe,
        data: CommandData,
    ) -> Pending<Result<CommandAnswer, Error>> {
        self.command(sqe, data.into(), QueueKind::Admin)
    }

    /// Sends an I/O command of the caller's own making. Its NSID names whatever the controller has
    /// there: unlike what is asked of a [`Namespace`], it does not fail where that was replaced
    /// since it was opened.
    pub fn io_command(&self, sqe: Sqe, data: CommandData) -> Pending<Result<CommandAnswer, Error>> {
        self.command(sqe, data.into(), QueueKind::Io)
    }

    pub(crate) fn handle(&self) -> &ControllerHandle {
        &self.handle
    }

    fn command(
        &self,
        sqe: Sqe,
        data: RawData,
        queue: QueueKind,
    ) -> Pending<Result<CommandAnswer, Error>> {
        let reply = self.handle.send(sqe, data, queue);
        self.pending(async move {
            let RawReply { result, data } = reply.await?;
            Ok(CommandAnswer { result, data })
        })
    }

    fn pending<T>(&self, future: impl Future<Output = T> + Send + 'static) -> Pending<T> {
        Pending::new(&self.handle.host, future)
    }
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller").field("target", self.target()).finish_non_exhaustive()
    }
}

impl From<CommandData> for RawData {
    fn from(data: CommandData) -> Self {
        match data {
            CommandData::None => Self::None,
            CommandData::ToController(bytes) => Self::ToController(bytes),
            CommandData::ToHost(length) => Self::ToHost { length },
        }
    }
}

/// What the handles of a controller share.
pub(crate) struct ControllerHandle {
    pub(crate) host: Arc<Inner>,
    pub(crate) engine: usize,
    pub(crate) key: usize,
    pub(crate) scope: Arc<dyn ErasedScope>,
    pub(crate) target: Arc<SubsystemAddress>,
}

impl ControllerHandle {
    /// Queues a command for the host's next turn.
    pub(crate) fn send(&self, sqe: Sqe, data: RawData, queue: QueueKind) -> Reply<RawReply> {
        self.queue(|promise| Raw::new(sqe, data, queue, promise))
    }

    /// Queues an I/O command for a namespace that was opened, unless that is not what it was.
    pub(crate) fn send_to(&self, namespace: usize, sqe: Sqe, data: RawData) -> Reply<RawReply> {
        let queue = QueueKind::Io;
        self.queue(|promise| {
            let namespace = Some(namespace);
            Raw { namespace, ..Raw::new(sqe, data, queue, promise) }
        })
    }

    /// Queues a command that changes nothing, and so may be sent again over the next connection.
    pub(crate) fn ask(&self, sqe: Sqe, data: RawData) -> Reply<RawReply> {
        let queue = QueueKind::Admin;
        self.queue(|promise| Raw { repeatable: true, ..Raw::new(sqe, data, queue, promise) })
    }

    fn queue(&self, command: impl FnOnce(Promise<RawReply>) -> Raw) -> Reply<RawReply> {
        let (promise, reply) = promise(self.host.shared.process());
        let raw = command(promise);
        // A host that is closing has no cores any more; the promise is dropped, which says so. In a
        // child the reply says what is wrong.
        if let Ok(mut state) = self.host.shared.lock()
            && let Some(engine) = state.engines.get_mut(self.engine)
        {
            engine.raw(self.key, raw);
        }
        reply
    }

    /// What the present connection is like.
    pub(crate) fn limits(&self) -> Result<ControllerLimits, Error> {
        let state = self.host.shared.lock()?;
        state.engines.get(self.engine).ok_or(ErrorKind::Closed)?.limits(self.key)
    }

    /// Names the present connection.
    pub(crate) fn epoch(&self) -> Result<u64, Error> {
        let state = self.host.shared.lock()?;
        state.engines.get(self.engine).ok_or(ErrorKind::Closed)?.epoch(self.key)
    }

    /// Makes a namespace known that was identified over a connection, if that is still the present
    /// one.
    pub(crate) fn attach(
        &self,
        epoch: u64,
        identity: NamespaceIdentity,
    ) -> Result<Option<usize>, Error> {
        let mut state = self.host.shared.lock()?;
        let engine = state.engines.get_mut(self.engine).ok_or(ErrorKind::Closed)?;
        engine.attach(self.key, epoch, identity)
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

    /// How much of a log page is read at a time.
    fn piece_bytes(&self) -> Result<u64, Error> {
        Ok(self.limits()?.max_transfer_bytes.clamp(4096, CHUNK_BYTES as u64))
    }
}

impl Drop for ControllerHandle {
    fn drop(&mut self) {
        let Ok(mut state) = self.host.shared.lock() else { return };
        if let Some(engine) = state.engines.get_mut(self.engine) {
            engine.close(self.key);
        }
        drop(state);
        if self.host.shared.threaded {
            self.host.shared.kick();
        }
    }
}

impl RawData {
    /// Data of this length, up to 2^32 - 1 bytes.
    pub(crate) fn to_host(length_bytes: u64) -> Self {
        match u32::try_from(length_bytes).unwrap_or(u32::MAX) {
            0 => Self::None,
            length => Self::ToHost { length },
        }
    }
}

async fn active_namespaces(handle: &ControllerHandle) -> Result<Vec<Nsid>, Error> {
    let mut all: Vec<Nsid> = Vec::new();
    let mut after = Nsid::NONE;
    loop {
        let command = Identify::namespace(Cns::ACTIVE_NAMESPACES, after);
        let data = handle.identify(command).await?;
        let list: &NamespaceList = view(&data)?;
        for nsid in list.iter() {
            if nsid <= after || all.len() >= MAX_NAMESPACES {
                let what = "the list of active namespaces does not ascend";
                return Err(Error::from(ErrorKind::Protocol(what)).of_target(&handle.target));
            }
            all.push(nsid);
            after = nsid;
        }
        if list.next_after().is_none() {
            return Ok(all);
        }
    }
}
