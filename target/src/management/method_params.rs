//! Parameters of methods that are not defined beside their method.

use serde::Deserialize;
use uuid::Uuid;

use super::subsystem::ListenAddress;
use crate::config::DirectIo;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BdevName {
    pub(super) name: String,
}

/// Parameters of `bdev_get_iostat`: the bdevs to list; all if none is named.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IostatFilter {
    pub(super) name: Option<String>,
    pub(super) names: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BdevFilter {
    pub(super) name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SubsystemFilter {
    /// Subsystem to describe; all if omitted.
    pub(super) nqn: Option<String>,
}

/// Parameters of `rpc_get_methods`, without effect: no method is deprecated or has an alias.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MethodFilter {
    #[serde(rename = "current", default)]
    _current: bool,
    #[serde(rename = "include_aliases", default)]
    _include_aliases: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AddParams {
    pub(super) nqn: String,
    pub(super) namespace: NamespaceParams,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NamespaceParams {
    pub(super) bdev_name: String,
    pub(super) nsid: Option<u32>,
    pub(super) uuid: Option<Uuid>,
    pub(super) nguid: Option<Uuid>,
    pub(super) eui64: Option<String>,
    pub(super) anagrpid: Option<u32>,
    /// Whether only hosts of `nvmf_ns_add_host` see the namespace.
    #[serde(default)]
    pub(super) no_auto_visible: bool,
    /// Extension, as are the fields below: SPDK has no such parameter.
    pub(super) name: Option<String>,
    pub(super) content_id: Option<String>,
    #[serde(default)]
    pub(super) direct_io: DirectIo,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SubsystemName {
    pub(super) nqn: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostParams {
    pub(super) nqn: String,
    pub(super) host: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NamespaceHostParams {
    pub(super) nqn: String,
    pub(super) nsid: u32,
    pub(super) host: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AnyHostParams {
    pub(super) nqn: String,
    pub(super) allow_any_host: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DrainParams {
    /// Subsystem to drain; all if omitted.
    pub(super) nqn: Option<String>,
    /// Address to drain; all if omitted.
    pub(super) listen_address: Option<ListenAddress>,
    /// Whether to end the drain.
    #[serde(default)]
    pub(super) undo: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReloadParams {
    /// Whether to only report what would change.
    #[serde(default)]
    pub(super) dry_run: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NullSize {
    pub(super) name: String,
    /// New size in MiB, as in SPDK.
    pub(super) new_size: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResizeParams {
    pub(super) nqn: String,
    pub(super) nsid: u32,
    /// New size of a null namespace; others take the size of their file or device.
    pub(super) size_bytes: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RenameParams {
    pub(super) nqn: String,
    pub(super) nsid: u32,
    pub(super) name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProtectParams {
    pub(super) nqn: String,
    pub(super) nsid: u32,
    /// Whether to set write protection, or to clear it.
    pub(super) protected: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RemoveParams {
    pub(super) nqn: String,
    pub(super) nsid: u32,
}
