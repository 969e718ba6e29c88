//! Public handles of connected controllers.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use nvme_proto::feature::{GetFeatures, SetFeatures};
use nvme_proto::identify::{Cns, Identify, NamespaceList};
use nvme_proto::log::GetLogPage;
use nvme_proto::{AdminCommand, Nsid, Sqe, view};

use crate::api::controller_handle::ControllerHandle;
use crate::api::in_order::in_order;
use crate::api::namespace::Namespace;
use crate::api::pending::Pending;
use crate::driver::host_state::Inner;
use crate::engine::change_count::ChangeKind;
use crate::engine::limits::ControllerLimits;
use crate::engine::raw::{QueueKind, RawData, RawReply};
use crate::engine::reply::promise;
use crate::engine::requests::Connecting;
use crate::types::error::{Error, ErrorKind, SubsystemAddress};
use crate::types::options::ControllerOptions;

/// Namespaces that are identified concurrently; an admin queue takes twice as many commands.
const OPENED_AT_A_TIME: usize = 16;

/// Most namespaces in the list of active ones; a longer list is rejected.
const MAX_NAMESPACES: usize = 1 << 20;

/// A connected controller. A connection that is lost is established again.
///
/// Cheap to clone. The connection ends when the last handle of the controller and of its namespaces
/// is dropped.
#[derive(Clone)]
pub struct Controller {
    handle: Arc<ControllerHandle>,
}

/// Response of a controller to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandAnswer {
    /// Dwords 0 and 1 of the completion queue entry.
    pub result: u64,
    /// Data that the command transferred to the host.
    pub data: Vec<u8>,
}

/// Data of a command that the caller assembled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommandData {
    /// The command has no data.
    None,
    /// Data from the host to the controller; up to 64 KiB.
    ToController(Vec<u8>),
    /// Data from the controller to the host, this many bytes; up to 64 KiB.
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
        let (engine, devices) = host.engine_for(target.address).map_err(about)?;
        let (opened, reply) = promise(host.shared.process());
        let mut state = host.shared.lock()?;
        let connecting = state.host.engines[engine].connect(Arc::clone(&target), options, opened);
        drop((state, devices));
        let Connecting { controller: key, scope } = connecting.map_err(about)?;
        let host = Arc::clone(host);
        let handle = Arc::new(ControllerHandle { host, engine, key, scope, target });
        Ok(async move {
            reply.await?;
            Ok(Self { handle })
        })
    }

    /// Returns the address and NQN of the subsystem.
    pub fn target(&self) -> &SubsystemAddress {
        &self.handle.target
    }

    /// Returns the identifier and limits of the controller on its current connection.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`], or the error with which all operations fail now: the target was lost,
    /// or the controller cannot be used.
    pub fn limits(&self) -> Result<ControllerLimits, Error> {
        self.handle.limits()
    }

    /// Identifies and opens a namespace. After each reconnect it is identified again, to detect
    /// changes.
    pub fn namespace(&self, nsid: Nsid) -> Pending<Result<Namespace, Error>> {
        let handle = Arc::clone(&self.handle);
        self.pending(async move { Namespace::open(handle, nsid).await })
    }

    /// Returns the identifiers of the active namespaces, in ascending order.
    pub fn active_namespaces(&self) -> Pending<Result<Vec<Nsid>, Error>> {
        let handle = Arc::clone(&self.handle);
        self.pending(async move { active_namespaces(&handle).await })
    }

    /// Opens all active namespaces, in ascending order of their identifiers. Up to 16 are
    /// identified concurrently. A namespace that is removed before is omitted.
    pub fn namespaces(&self) -> Pending<Result<Vec<Namespace>, Error>> {
        let handle = Arc::clone(&self.handle);
        self.pending(async move {
            let active = active_namespaces(&handle).await?;
            let open = |nsid| open_listed(Arc::clone(&handle), nsid);
            let opened = in_order(OPENED_AT_A_TIME, active.into_iter().map(open)).await?;
            Ok(opened.into_iter().flatten().collect())
        })
    }

    /// Waits until the number of namespace changes differs from `seen`, and returns it. It is
    /// incremented when the controller reports an Asynchronous Event for its namespaces, and at
    /// each reconnect. Open namespaces have been identified again before this returns:
    /// [`Namespace::change`]. With [`u64::MAX`] it returns the present number. Without a connection
    /// it waits for the next one.
    ///
    /// # Errors
    /// The reason for which the host no longer connects to the target.
    pub fn namespace_changes(&self, seen: u64) -> Pending<Result<u64, Error>> {
        let handle = Arc::clone(&self.handle);
        self.pending(async move { handle.change(ChangeKind::Namespaces, seen).await })
    }

    /// Authenticates all queues of the connection again, while reads and writes continue. Without
    /// a connection it waits for the next one, which is authenticated.
    ///
    /// # Errors
    /// [`ErrorKind::Authentication`], and the controller has ended; or the target does not require
    /// authentication.
    pub fn reauthenticate(&self) -> Pending<Result<(), Error>> {
        let reply = self.handle.reauthenticate();
        self.pending(reply)
    }

    /// Returns whether it is connected now. If not, connecting continues, except after an error
    /// that ended all attempts.
    pub fn is_connected(&self) -> bool {
        self.handle.is_connected()
    }

    /// Opens the first namespace with this [name](crate::NamespaceInfo::name). Namespaces are
    /// opened one after the other, in ascending order, until one has it.
    pub fn namespace_named(&self, name: &str) -> Pending<Result<Namespace, Error>> {
        let name = name.to_owned();
        let handle = Arc::clone(&self.handle);
        self.pending(async move {
            for nsid in active_namespaces(&handle).await? {
                let namespace = open_listed(Arc::clone(&handle), nsid).await?;
                let has_name = |one: &Namespace| one.info().name.as_ref() == Some(&name);
                if let Some(namespace) = namespace.filter(has_name) {
                    return Ok(namespace);
                }
            }
            let error =
                ErrorKind::NoNamespace("the subsystem has no active namespace of that name");
            Err(Error::from(error).of_target(&handle.target))
        })
    }

    /// Returns the data of Identify Controller (CNS 01h): 4,096 bytes, which
    /// [`nvme_proto::identify::IdentifyController`] decodes.
    pub fn identify(&self) -> Pending<Result<Vec<u8>, Error>> {
        self.identify_with(Identify::new(Cns::CONTROLLER))
    }

    /// Returns the data of Identify Namespace (CNS 00h): 4,096 bytes, which
    /// [`nvme_proto::identify::IdentifyNamespace`] decodes.
    pub fn identify_namespace(&self, nsid: Nsid) -> Pending<Result<Vec<u8>, Error>> {
        self.identify_with(Identify::namespace(Cns::NAMESPACE, nsid))
    }

    /// Returns the data of any Identify command: 4,096 bytes.
    pub fn identify_with(&self, command: Identify) -> Pending<Result<Vec<u8>, Error>> {
        let handle = Arc::clone(&self.handle);
        self.pending(async move { handle.identify(command).await })
    }

    /// Reads a log page, with as many commands as the transfer limit requires.
    pub fn log_page(&self, command: GetLogPage) -> Pending<Result<Vec<u8>, Error>> {
        let handle = Arc::clone(&self.handle);
        self.pending(async move { handle.log_page(command).await })
    }

    /// Sends Get Features. The response has the value of the feature, and its data if it has any.
    pub fn get_features(&self, command: GetFeatures) -> Pending<Result<CommandAnswer, Error>> {
        let data = RawData::to_host(command.transfer().length_bytes);
        self.command(AdminCommand::GetFeatures(command).to_sqe(), data, QueueKind::Admin)
    }

    /// Sends Set Features; `data` is empty for features without data.
    pub fn set_features(
        &self,
        command: SetFeatures,
        data: Vec<u8>,
    ) -> Pending<Result<CommandAnswer, Error>> {
        let data = if data.is_empty() { RawData::None } else { RawData::ToController(data) };
        self.command(AdminCommand::SetFeatures(command).to_sqe(), data, QueueKind::Admin)
    }

    /// Sends an admin command that the caller assembled, after setting its command identifier and
    /// data pointer.
    pub fn admin_command(
        &self,
        sqe: Sqe,
        data: CommandData,
    ) -> Pending<Result<CommandAnswer, Error>> {
        self.command(sqe, data.into(), QueueKind::Admin)
    }

    /// Sends an I/O command that the caller assembled. Its NSID refers to the namespace that the
    /// controller has now: unlike an operation of a [`Namespace`], it does not fail if that was
    /// replaced.
    pub fn io_command(&self, sqe: Sqe, data: CommandData) -> Pending<Result<CommandAnswer, Error>> {
        self.command(sqe, data.into(), QueueKind::Io)
    }

    pub(crate) fn handle(&self) -> &Arc<ControllerHandle> {
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

/// Opens a namespace of the list of active ones; `None` if it was removed since.
async fn open_listed(
    handle: Arc<ControllerHandle>,
    nsid: Nsid,
) -> Result<Option<Namespace>, Error> {
    match Namespace::open(handle, nsid).await {
        Err(error) if error.is_no_namespace() => Ok(None),
        opened => opened.map(Some),
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
