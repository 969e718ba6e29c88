//! The state that the handles of a namespace share.

use std::sync::Arc;

use nvme_proto::{Nsid, Sqe};

use crate::api::controller_handle::ControllerHandle;
use crate::driver::DriverState;
use crate::driver::host_state::Inner;
use crate::engine::controller::{RawData, RawReply};
use crate::engine::path_access::PathAccess;
use crate::engine::reply::Reply;
use crate::memory::bounce::CHUNK_BYTES;
use crate::memory::region::ErasedScope;

/// The properties of a namespace, as its controller told them when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamespaceInfo {
    /// Its namespace identifier (NSID) in the subsystem.
    pub nsid: Nsid,
    /// Bytes in it. Where the target tells (Feedrail does), the exact length of the file behind it;
    /// else that of all its blocks.
    pub size_bytes: u64,
    /// Logical blocks in it.
    pub blocks: u64,
    /// Bytes of a logical block.
    pub block_bytes: u64,
    /// Name of the file behind it, where the target tells. A peer's text.
    pub name: Option<String>,
    /// A number that differs when the bytes may differ, where the target tells.
    pub generation: Option<u64>,
    /// Whether writes are refused at present.
    pub write_protected: bool,
    /// Its UUID, in the byte order of its text.
    pub uuid: Option<[u8; 16]>,
    /// Its globally unique identifier.
    pub nguid: Option<[u8; 16]>,
    /// Its IEEE extended unique identifier.
    pub eui64: Option<[u8; 8]>,
}

impl NamespaceInfo {
    /// Whether two namespaces of one subsystem cannot be the same.
    pub(crate) fn is_of_another(&self, other: &Self) -> bool {
        let of =
            |info: &Self| (info.size_bytes, info.block_bytes, info.uuid, info.nguid, info.eui64);
        of(self) != of(other)
    }
}

/// The state that the handles of a namespace share.
pub(crate) struct NamespaceHandle {
    pub(crate) controller: Arc<ControllerHandle>,
    pub(crate) number: usize,
    pub(crate) access: PathAccess,
    pub(crate) info: NamespaceInfo,
}

impl NamespaceHandle {
    pub(crate) fn host(&self) -> &Arc<Inner> {
        &self.controller.host
    }

    /// Queues an I/O command for the host's next turn.
    pub(crate) fn send(&self, sqe: Sqe, data: RawData) -> Reply<RawReply> {
        self.controller.send_to(self.number, sqe, data)
    }

    pub(crate) fn engine(&self) -> usize {
        self.controller.engine
    }

    pub(crate) fn controller_key(&self) -> usize {
        self.controller.key
    }

    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// How it can be reached over its controller.
    pub(crate) fn access(&self) -> &PathAccess {
        &self.access
    }

    /// Where memory is registered that is used with it.
    pub(crate) fn scope(&self) -> &dyn ErasedScope {
        &*self.controller.scope
    }

    pub(crate) fn max_transfer_bytes(&self) -> u64 {
        let limits = self.controller.limits();
        limits.map_or(CHUNK_BYTES as u64, |limits| limits.max_transfer_bytes)
    }
}

impl Drop for NamespaceHandle {
    fn drop(&mut self) {
        let Ok(mut state) = self.controller.host.shared.lock() else { return };
        let DriverState { engines, outbox, .. } = &mut *state;
        if let Some(engine) = engines.get_mut(self.controller.engine) {
            engine.detach(self.controller.key, self.number, outbox);
        }
    }
}
