//! Paths: a namespace over one controller each.

use std::sync::Arc;

use nvme_proto::identify::{Cns, Identify};
use nvme_proto::{Nsid, Sqe};

use crate::api::controller_handle::ControllerHandle;
use crate::driver::host_state::Inner;
use crate::engine::arena::{ControllerKey, EngineKey, NamespaceKey};
use crate::engine::host_engines::HostEngines;
use crate::engine::namespace_identity::{NamespaceIdentity, lacks_descriptors};
use crate::engine::path_access::PathAccess;
use crate::engine::raw::{RawData, RawReply};
use crate::engine::reply::Reply;
use crate::engine::requests::Attachment;
use crate::engine::shard_routes::{ShardPlace, ShardRoute, ShardRoutes};
use crate::memory::bounce::CHUNK_BYTES;
use crate::memory::region::ErasedScope;
use crate::types::error::{Error, ErrorKind};

const DIFFERENT: &str = "it has another namespace of that number than the subsystem's other ports";

pub(crate) const ANOTHER_HOST: &str =
    "it was opened over another Host than the others: namespaces of one host only go together";

/// Attempts to identify a namespace, which fails if its connection is replaced.
const ATTEMPTS: usize = 10;

/// Properties of a namespace, as its controller reported them when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamespaceInfo {
    /// Namespace identifier (NSID) in the subsystem.
    pub nsid: Nsid,
    /// Size in bytes. Feedrail's target reports the exact length of the file behind the namespace;
    /// with others it is the size of all logical blocks.
    pub size_bytes: u64,
    /// Number of logical blocks.
    pub blocks: u64,
    /// Size of a logical block in bytes.
    pub block_bytes: u64,
    /// Name of the file behind it, if the target reports it; untrusted text.
    pub name: Option<String>,
    /// Number that changes when the bytes may have changed, if the target reports it.
    pub generation: Option<u64>,
    /// Whether the namespace is write protected.
    pub write_protected: bool,
    /// UUID, as 16 bytes in the order of its text.
    pub uuid: Option<[u8; 16]>,
    /// Namespace globally unique identifier (NGUID).
    pub nguid: Option<[u8; 16]>,
    /// IEEE extended unique identifier (EUI-64).
    pub eui64: Option<[u8; 8]>,
}

impl NamespaceInfo {
    /// Returns whether two namespaces cannot be the same one of a subsystem: size, block size or an
    /// identifier differs.
    pub(crate) fn is_of_another(&self, other: &Self) -> bool {
        let of =
            |info: &Self| (info.size_bytes, info.block_bytes, info.uuid, info.nguid, info.eui64);
        of(self) != of(other)
    }
}

/// A namespace over one controller, whose engine detaches it when the last handle is dropped.
pub(crate) struct NamespacePath {
    pub(crate) controller: Arc<ControllerHandle>,
    pub(crate) number: NamespaceKey,
    pub(crate) access: PathAccess,
    pub(crate) info: NamespaceInfo,
}

impl NamespacePath {
    /// Identifies a namespace and opens it over a controller. After each reconnect it is identified
    /// again, to detect changes.
    pub(crate) async fn open(
        controller: Arc<ControllerHandle>,
        nsid: Nsid,
    ) -> Result<Arc<Self>, Error> {
        if !nsid.is_one() {
            return Err(ErrorKind::Invalid("a namespace number is between 1 and 4294967294").into());
        }
        let about = |error: Error| error.of_target(&controller.target).of_namespace(nsid);
        for _ in 0..ATTEMPTS {
            let epoch = controller.epoch().map_err(about)?;
            let identity = identify(&controller, nsid).await.map_err(about)?;
            let info = info(&identity);
            let attached = controller.attach(epoch, identity).map_err(about)?;
            if let Some(Attachment { number, access }) = attached {
                return Ok(Arc::new(Self { controller, number, access, info }));
            }
        }
        let what = "each time that the namespace was identified; look into the target's log";
        Err(about(ErrorKind::ConnectionLost(what).into()))
    }

    /// Identifies the namespace again and returns its present properties.
    pub(crate) async fn refresh(&self) -> Result<NamespaceInfo, Error> {
        Ok(info(&identify(&self.controller, self.info.nsid).await?))
    }

    pub(crate) fn host(&self) -> &Arc<Inner> {
        &self.controller.host
    }

    /// Queues an I/O command, which the host sends at its next turn.
    pub(crate) fn send(&self, sqe: Sqe, data: RawData) -> Reply<RawReply> {
        self.controller.send_to(self.number, sqe, data)
    }

    pub(crate) fn engine(&self) -> EngineKey {
        self.controller.engine
    }

    pub(crate) fn controller_key(&self) -> ControllerKey {
        self.controller.key
    }

    pub(crate) fn number(&self) -> NamespaceKey {
        self.number
    }

    /// Returns the scope in which memory for this path is registered: the protection domain of the
    /// device of its connection.
    pub(crate) fn scope(&self) -> &dyn ErasedScope {
        &*self.controller.scope
    }

    pub(crate) fn max_transfer_bytes(&self) -> u64 {
        let limits = self.controller.limits();
        limits.map_or(CHUNK_BYTES as u64, |limits| limits.max_transfer_bytes)
    }

    /// Returns the route of a shard's ranges over this path, whose controller is added to `routes`.
    pub(crate) fn route(&self, routes: &mut ShardRoutes) -> (ShardRoute, PathAccess) {
        let (engine, controller) = (self.engine(), self.controller_key());
        let place = routes.place(ShardPlace { engine, controller });
        (ShardRoute { namespace: self.number, place }, self.access.clone())
    }

    /// Returns the error for a path whose namespace is not that of the other paths.
    pub(crate) fn is_different(&self) -> Error {
        self.about(ErrorKind::Protocol(DIFFERENT).into())
    }

    /// Returns the error for a path that is used together with those of another host.
    pub(crate) fn is_of_another_host(&self) -> Error {
        self.about(ErrorKind::Invalid(ANOTHER_HOST).into())
    }

    fn about(&self, error: Error) -> Error {
        error.of_target(&self.controller.target).of_namespace(self.info.nsid)
    }
}

impl Drop for NamespacePath {
    fn drop(&mut self) {
        let Ok(mut state) = self.controller.host.shared.lock() else { return };
        let HostEngines { engines, outbox, .. } = &mut state.host;
        if let Some(engine) = engines.get_mut(self.controller.engine) {
            engine.detach(self.controller.key, self.number, outbox);
        }
    }
}

async fn identify(controller: &ControllerHandle, nsid: Nsid) -> Result<NamespaceIdentity, Error> {
    let data = controller.identify(Identify::namespace(Cns::NAMESPACE, nsid)).await?;
    let mut identity = NamespaceIdentity::parse(nsid, &data)?;
    let descriptors = Identify::namespace(Cns::NAMESPACE_DESCRIPTORS, nsid);
    match controller.identify(descriptors).await {
        Ok(data) => identity.add_descriptors(&data),
        Err(error) if error.status().is_some_and(lacks_descriptors) => {}
        Err(error) => return Err(error),
    }
    Ok(identity)
}

fn info(identity: &NamespaceIdentity) -> NamespaceInfo {
    NamespaceInfo {
        nsid: identity.nsid,
        size_bytes: identity.size_bytes,
        blocks: identity.blocks,
        block_bytes: identity.block_bytes,
        name: identity.name.clone(),
        generation: identity.generation,
        write_protected: identity.write_protected,
        uuid: identity.uuid,
        nguid: identity.nguid,
        eui64: identity.eui64,
    }
}
