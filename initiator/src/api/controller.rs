//! Connected controllers, as callers hold them.

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
use crate::engine::Connecting;
use crate::engine::change_count::ChangeKind;
use crate::engine::controller::{ControllerLimits, QueueKind, RawData, RawReply};
use crate::engine::reply::promise;
use crate::types::error::{Error, ErrorKind, SubsystemAddress};
use crate::types::options::ControllerOptions;

/// Namespaces that are identified at a time: half of what an admin queue takes.
const OPENED_AT_A_TIME: usize = 16;

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

/// The answer of a controller to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandAnswer {
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
    /// The data that came.
    pub data: Vec<u8>,
}

/// Data that goes with a command of the caller's own making.
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
        let connecting = state.engines[engine].connect(Arc::clone(&target), options, opened);
        drop((state, devices));
        let Connecting { controller: key, scope } = connecting.map_err(about)?;
        let host = Arc::clone(host);
        let handle = Arc::new(ControllerHandle { host, engine, key, scope, target });
        Ok(async move {
            reply.await?;
            Ok(Self { handle })
        })
    }

    /// The subsystem that it belongs to, and its address.
    pub fn target(&self) -> &SubsystemAddress {
        &self.handle.target
    }

    /// Identifier and limits of the controller, as of the present connection.
    ///
    /// # Errors
    /// Why it was given up.
    pub fn limits(&self) -> Result<ControllerLimits, Error> {
        self.handle.limits()
    }

    /// Opens a namespace, and identifies it, so that it is known again after a reconnect.
    pub fn namespace(&self, nsid: Nsid) -> Pending<Result<Namespace, Error>> {
        let handle = Arc::clone(&self.handle);
        self.pending(async move { Namespace::open(handle, nsid).await })
    }

    /// The namespaces that are active, in ascending order.
    pub fn active_namespaces(&self) -> Pending<Result<Vec<Nsid>, Error>> {
        let handle = Arc::clone(&self.handle);
        self.pending(async move { active_namespaces(&handle).await })
    }

    /// Opens all active namespaces, in ascending order of their numbers;
    /// 16 are asked for at a time. One that is removed meanwhile is left out.
    pub fn namespaces(&self) -> Pending<Result<Vec<Namespace>, Error>> {
        let handle = Arc::clone(&self.handle);
        self.pending(async move {
            let active = active_namespaces(&handle).await?;
            let open = |nsid| open_listed(Arc::clone(&handle), nsid);
            let opened = in_order(OPENED_AT_A_TIME, active.into_iter().map(open)).await?;
            Ok(opened.into_iter().flatten().collect())
        })
    }

    /// Waits until namespaces may have come, gone or changed another number of times than `seen`,
    /// and returns that number: the controller told so by an event, or was connected to again.
    /// Namespaces that are open have been checked by then: [`Namespace::change`]. With [`u64::MAX`]
    /// it is the number now. While the controller cannot be reached, this waits for it.
    ///
    /// # Errors
    /// Why the controller was given up.
    pub fn namespace_changes(&self, seen: u64) -> Pending<Result<u64, Error>> {
        let handle = Arc::clone(&self.handle);
        self.pending(async move { handle.change(ChangeKind::Namespaces, seen).await })
    }

    /// Whether it is connected now. Where it is not, connecting continues unless the target was
    /// given up.
    pub fn is_connected(&self) -> bool {
        self.handle.is_connected()
    }

    /// Opens the first namespace with this [name](crate::NamespaceInfo::name). Namespaces are
    /// opened one after the other until one has it.
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

    /// Sends Get Features; the answer has the feature's value, and its data if it has any.
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

    /// Sends an I/O command of the caller's own making. Its NSID names the namespace that the
    /// controller has now: unlike an operation of a [`Namespace`], it does not fail where that was
    /// replaced since it was opened.
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

/// Opens a namespace that was listed; none if it was removed meanwhile.
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
