//! Parameters of methods that have no module of their own.

use serde::Deserialize;
use uuid::Uuid;

use super::subsystem::ListenAddress;
use crate::config::DirectIo;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BdevName {
    pub(super) name: String,
}

/// Bdevs whose I/O is asked for; all if none is named.
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
    pub(super) nqn: Option<String>,
}

/// SPDK's filters of `rpc_get_methods`. All methods are current, and none has an alias.
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
    #[serde(default)]
    pub(super) no_auto_visible: bool,
    /// Extension, as the following fields: SPDK has no such parameter.
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
    pub(super) nqn: Option<String>,
    pub(super) listen_address: Option<ListenAddress>,
    #[serde(default)]
    pub(super) undo: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReloadParams {
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
    pub(super) protected: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RemoveParams {
    pub(super) nqn: String,
    pub(super) nsid: u32,
}
