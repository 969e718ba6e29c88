//! Parameters of methods that are not defined beside their method.

use serde::Deserialize;
use uuid::Uuid;

use super::rpc::{Params, params};
use super::subsystem::ListenAddress;
use crate::config::DirectIo;

params! {
    BdevName { name: String }

    /// Parameters of `bdev_get_iostat`: the bdevs to list; all if none is named.
    IostatFilter {
        name: Option<String>,
        names: Option<Vec<String>>,
    }

    BdevFilter { name: Option<String> }

    SubsystemFilter {
        /// Subsystem to describe; all if omitted.
        nqn: Option<String>,
    }

    /// Parameters of `rpc_get_methods`, without effect: no method is deprecated or has an alias.
    MethodFilter {
        #[serde(rename = "current", default)]
        _current: bool,
        #[serde(rename = "include_aliases", default)]
        _include_aliases: bool,
    }

    AddParams { nqn: String, namespace: NamespaceParams }

    NamespaceParams {
        bdev_name: String,
        nsid: Option<u32>,
        uuid: Option<Uuid>,
        nguid: Option<Uuid>,
        eui64: Option<String>,
        anagrpid: Option<u32>,
        /// Whether only hosts of `nvmf_ns_add_host` see the namespace.
        #[serde(default)]
        no_auto_visible: bool,
        /// Extension, as are the fields below: SPDK has no such parameter.
        name: Option<String>,
        content_id: Option<String>,
        description: Option<String>,
        #[serde(default)]
        direct_io: DirectIo,
    }

    SubsystemName { nqn: String }
    HostParams { nqn: String, host: String }
    NamespaceHostParams { nqn: String, nsid: u32, host: String }
    AnyHostParams { nqn: String, allow_any_host: bool }

    DrainParams {
        /// Subsystem to drain; all if omitted.
        nqn: Option<String>,
        /// Address to drain; all if omitted.
        listen_address: Option<ListenAddress>,
        /// Whether to end the drain.
        #[serde(default)]
        undo: bool,
    }

    ReloadParams {
        /// Whether to only report what would change.
        #[serde(default)]
        dry_run: bool,
    }

    NullSize {
        name: String,
        /// New size in MiB, as in SPDK.
        new_size: u64,
    }

    ResizeParams {
        nqn: String,
        nsid: u32,
        /// New size of a null namespace; others take the size of their file or device.
        size_bytes: Option<u64>,
    }

    RenameParams { nqn: String, nsid: u32, name: String }

    ProtectParams {
        nqn: String,
        nsid: u32,
        /// Whether to set write protection, or to clear it.
        protected: bool,
    }

    RemoveParams { nqn: String, nsid: u32 }
}

/// Parameters of `bdev_set_qos_limit`. The method refuses unknown names among the limits.
#[derive(Deserialize)]
pub(super) struct BdevLimitParams {
    pub(super) name: String,
    /// Limits by their keys, as in SPDK. Those that are omitted stay; 0 is no limit.
    #[serde(flatten)]
    pub(super) limits: Params,
}

/// Parameters of `feedrail_set_host_qos`. The method refuses unknown names among the limits.
#[derive(Deserialize)]
pub(super) struct HostLimitParams {
    pub(super) nqn: String,
    /// Host to limit; if omitted, each host that has no limits of its own.
    pub(super) host: Option<String>,
    #[serde(flatten)]
    pub(super) limits: Params,
}
