//! Names and ids that must be the same tomorrow, and on the next target that serves the same data.

use std::path::{Path, PathBuf};

use nvme_proto::Nqn;
use uuid::Uuid;

/// Model number where the configuration gives none.
pub const MODEL: &str = "Feedrail";
/// Vendor of the firmware revision: the crate's version, cut to the field's 8 bytes.
pub const FIRMWARE: &str = env!("CARGO_PKG_VERSION");
/// The longest name of a namespace, in bytes.
pub const NAME_BYTES: usize = 1024;

/// The root of every UUID that Feedrail derives.
const FEEDRAIL: Uuid = Uuid::from_u128(0x0c1d_9b52_7f0e_5a51_9c57_64e0_86a1_7f21);

/// The dataset id of a subsystem whose configuration gives none: the same for the same NQN.
pub fn dataset_id(nqn: &Nqn) -> Uuid {
    Uuid::new_v5(&FEEDRAIL, nqn.as_str().as_bytes())
}

/// The UUID of a namespace: the same wherever that dataset's file of that relative path is served.
pub fn namespace_uuid(dataset_id: Uuid, name: &str) -> Uuid {
    Uuid::new_v5(&dataset_id, name.as_bytes())
}

/// The serial number of a subsystem whose configuration gives none: 20 digits that follow from the NQN.
pub fn serial(nqn: &Nqn) -> String {
    let mut serial = Uuid::new_v5(&FEEDRAIL, nqn.as_str().as_bytes()).simple().to_string();
    serial.truncate(20);
    serial
}

/// The last component of a path, or the path where there is none.
pub fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Where state lives unless the configuration says otherwise: what systemd gives, else the system's or the
/// user's folder for it.
pub fn default_state_dir() -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = set("STATE_DIRECTORY") {
        return dir;
    }
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/feedrail");
    }
    let user = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")));
    user.map_or_else(|| PathBuf::from("/var/lib/feedrail"), |dir| dir.join("feedrail"))
}
