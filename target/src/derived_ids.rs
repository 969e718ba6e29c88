//! Names and identifiers that are derived from other facts: they stay the same over time, differ
//! for different data, and are the same on all targets that export a dataset.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nvme_proto::{AsciiField, Nqn};
use uuid::Uuid;

use crate::inventory::persist::state_file;

/// Model number (MN) if none is configured.
pub(crate) const MODEL: AsciiField<40> = AsciiField::new("Feedrail").unwrap();
/// Firmware revision (FR): the version of this crate, which has to fit 8 bytes.
pub(crate) const FIRMWARE: &str = env!("CARGO_PKG_VERSION");
/// Longest name of a namespace, in bytes.
pub(crate) const NAME_BYTES: usize = 1024;

/// Namespace UUID (RFC 9562) of identifiers that depend on no machine.
const FEEDRAIL: Uuid = Uuid::from_u128(0x0c1d_9b52_7f0e_5a51_9c57_64e0_86a1_7f21);
/// Namespace UUID with which machine ids are hashed: machine-id(5) demands that applications do not
/// reveal the id itself.
const MACHINE_KEY: Uuid = Uuid::from_u128(0x5b0e_8a5c_2f6d_4c0b_8e1f_b7a4_93d2_6c58);
/// File with the machine id of systemd and D-Bus.
const MACHINE_ID_FILE: &str = "/etc/machine-id";
/// File in the state folder with a generated id, for a machine without [`MACHINE_ID_FILE`].
const KEPT_MACHINE_FILE: &str = "machine-id";

/// Identity of the machine that a target runs on. Derived identifiers differ between machines. Two
/// are equal if their ids are, whether these have been stored or not.
#[derive(Clone, Copy, Debug, Eq)]
pub struct Machine {
    /// Hash of the machine id, which does not reveal it.
    key: Uuid,
    /// Id generated because this machine has none; `None` once [`Machine::keep`] has stored it.
    generated: Option<Uuid>,
}

/// Failure to read the machine id that an earlier run has stored.
#[derive(Debug, thiserror::Error)]
#[error(
    "{}: cannot tell the id of this machine ({error}); restore the file or delete it, or give --machine-id",
    path.display()
)]
pub struct MachineError {
    path: PathBuf,
    error: io::Error,
}

impl PartialEq for Machine {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Machine {
    /// Creates the identity from a machine id.
    pub fn with_id(id: Uuid) -> Self {
        Self { key: Uuid::new_v5(&MACHINE_KEY, id.as_bytes()), generated: None }
    }

    /// Identity of this machine, from its machine-id(5), else from the id kept in `state_dir`, else
    /// from a new random id.
    ///
    /// # Errors
    /// The id kept in `state_dir` cannot be read or is malformed.
    pub fn this(state_dir: &Path) -> Result<Self, MachineError> {
        Self::find(Path::new(MACHINE_ID_FILE), state_dir)
    }

    fn find(machine_id: &Path, state_dir: &Path) -> Result<Self, MachineError> {
        // In machine images the file is empty or has the text "uninitialized".
        let system = std::fs::read_to_string(machine_id).ok().and_then(|text| parse_id(&text));
        if let Some(id) = system {
            return Ok(Self::with_id(id));
        }
        let path = state_dir.join(KEPT_MACHINE_FILE);
        match state_file::read_regular(&path) {
            Ok(text) => {
                parse_id(&String::from_utf8_lossy(&text)).map(Self::with_id).ok_or_else(|| {
                    MachineError {
                        path,
                        error: io::Error::new(
                            io::ErrorKind::InvalidData,
                            "not 32 hexadecimal digits",
                        ),
                    }
                })
            }
            Err(error) if is_absent(&error) => {
                let id = Uuid::new_v4();
                Ok(Self { generated: Some(id), ..Self::with_id(id) })
            }
            Err(error) => Err(MachineError { path, error }),
        }
    }

    /// Stores a generated id for later runs. Does nothing if the machine has an id.
    ///
    /// # Errors
    /// The folder cannot be written, or another process has stored an id meanwhile.
    pub fn keep(&self, state_dir: &Path) -> io::Result<()> {
        let Some(id) = self.generated else { return Ok(()) };
        std::fs::create_dir_all(state_dir)?;
        let mut file = tempfile::NamedTempFile::new_in(state_dir)?;
        writeln!(file, "{}", id.simple())?;
        file.as_file().sync_all()?;
        file.persist_noclobber(state_dir.join(KEPT_MACHINE_FILE))?;
        Ok(())
    }

    /// NQN of the quick form's subsystem: different for each machine and each list of addresses.
    pub(crate) fn subsystem_nqn(&self, listen: &[SocketAddr]) -> Nqn {
        let addresses: Vec<_> = listen.iter().map(SocketAddr::to_string).collect();
        let uuid = Uuid::new_v5(&self.key, addresses.join(" ").as_bytes());
        Nqn::new(&format!("nqn.2026-01.io.feedrail:{uuid}")).expect("a valid NQN")
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Parses an id in the format of machine-id(5) or as a UUID; `None` if it is malformed or all zero.
pub(crate) fn parse_id(text: &str) -> Option<Uuid> {
    Uuid::try_parse(text.trim()).ok().filter(|id| !id.is_nil())
}

/// Identity that the serial number of a subsystem and the UUIDs of its namespaces are derived from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubsystemIdentity {
    /// Namespace UUID of this machine and the subsystem's NQN.
    local: Uuid,
    /// UUID of the configured `dataset_id`, the same on every machine.
    dataset: Option<Uuid>,
    nqn: Nqn,
}

impl SubsystemIdentity {
    /// Creates the identity of a subsystem. With a dataset id, its files have the same UUIDs as
    /// files with the same names on other machines; without one, the UUIDs depend on this machine.
    pub fn new(machine: &Machine, nqn: Nqn, dataset: Option<Uuid>) -> Self {
        Self { local: Uuid::new_v5(&machine.key, nqn.as_str().as_bytes()), dataset, nqn }
    }

    /// NQN of the subsystem with this identity.
    pub(crate) fn nqn(&self) -> Nqn {
        self.nqn
    }

    /// Whether a `dataset_id` is configured.
    pub(crate) fn has_dataset(&self) -> bool {
        self.dataset.is_some()
    }

    /// Serial number (SN) if none is configured: 20 hexadecimal digits.
    pub(crate) fn serial(&self) -> AsciiField<20> {
        let from = self.dataset.unwrap_or(self.local);
        serial_of(Uuid::new_v5(&from, self.nqn.as_str().as_bytes()))
    }

    /// UUID of the namespace with this name in the dataset, the same on every machine; `None`
    /// without a dataset id.
    pub(crate) fn dataset_uuid(&self, name: &str) -> Option<Uuid> {
        self.dataset.map(|dataset| Uuid::new_v5(&dataset, name.as_bytes()))
    }

    /// UUID of the namespace with this file or device, which depends on this machine.
    pub(crate) fn path_uuid(&self, path: &Path) -> Uuid {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Uuid::new_v5(&self.local, path.as_os_str().as_bytes())
    }

    /// UUID of the namespace with this name if it has no path; it depends on this machine.
    pub(crate) fn name_uuid(&self, name: &str) -> Uuid {
        // Absolute paths, the other input, do not begin like this.
        Uuid::new_v5(&self.local, format!("name:{name}").as_bytes())
    }
}

/// Part of the names of a subsystem's state files, derived from its NQN alone.
pub(crate) fn state_key(nqn: &Nqn) -> Uuid {
    Uuid::new_v5(&FEEDRAIL, nqn.as_str().as_bytes())
}

/// Serial number of the discovery subsystem.
pub(crate) fn discovery_serial() -> AsciiField<20> {
    serial_of(state_key(&Nqn::DISCOVERY))
}

fn serial_of(id: Uuid) -> AsciiField<20> {
    AsciiField::new(&id.simple().to_string()[..20]).unwrap_or_default()
}

/// Default state folder: `STATE_DIRECTORY` of systemd, else a system folder for root, else a folder
/// of the user.
pub(crate) fn default_state_dir() -> PathBuf {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Medium;

    const ID: &str = "3f0e1d2c4b5a69788796a5b4c3d2e1f0\n";

    fn nqn() -> Nqn {
        Nqn::new("nqn.2026-01.io.feedrail:t").expect("valid")
    }

    fn file(path: &str) -> Medium {
        Medium::File { path: path.into(), root: None }
    }

    fn machines() -> [Machine; 2] {
        [1, 2].map(|id| Machine::with_id(Uuid::from_u128(id)))
    }

    #[test]
    fn the_machine_id_is_used_and_not_shown() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("id");
        std::fs::write(&path, ID).expect("written");
        let machine = Machine::find(&path, &dir.path().join("state")).expect("found");
        assert_eq!(machine, Machine::with_id(parse_id(ID).expect("an id")));
        let nqn = machine.subsystem_nqn(&["127.0.0.1:4420".parse().expect("an address")]);
        assert!(!nqn.as_str().replace('-', "").contains(ID.trim()), "{nqn}");
        machine.keep(&dir.path().join("state")).expect("nothing to do");
        assert!(!dir.path().join("state").exists());
    }

    #[test]
    fn a_machine_without_id_keeps_a_random_one() {
        let dir = tempfile::tempdir().expect("a folder");
        for content in [None, Some("\n"), Some("uninitialized\n")] {
            let id = dir.path().join("id");
            if let Some(content) = content {
                std::fs::write(&id, content).expect("written");
            }
            let state = tempfile::tempdir().expect("a folder");
            let find = || Machine::find(&id, &state.path().join("deep")).expect("found");
            let first = find();
            assert_ne!(find(), first, "nothing is kept before it is asked for");
            first.keep(&state.path().join("deep")).expect("kept");
            assert_eq!(find(), first, "a reload finds the same machine");
            assert!(find().generated.is_none());
            assert!(find().keep(&state.path().join("deep")).is_ok());
            assert!(first.keep(&state.path().join("deep")).is_err(), "it never replaces another's");
        }
    }

    #[test]
    fn a_damaged_kept_id_is_reported() {
        let state = tempfile::tempdir().expect("a folder");
        std::fs::write(state.path().join(KEPT_MACHINE_FILE), "zz").expect("written");
        let error = Machine::find(Path::new("/nonexistent/id"), state.path()).expect_err("damaged");
        assert!(error.to_string().contains("--machine-id"), "{error}");
    }

    #[test]
    fn different_data_never_looks_the_same() {
        let identities = machines().map(|machine| SubsystemIdentity::new(&machine, nqn(), None));
        let [one, two] = identities;
        assert_ne!(one.serial(), two.serial());
        for medium in
            [file("/data/a"), Medium::Null { size_bytes: 1 }, Medium::Memory { size_bytes: 1 }]
        {
            assert_ne!(medium.namespace_uuid(&one, "a"), medium.namespace_uuid(&two, "a"));
        }
        assert_ne!(file("/x/a").namespace_uuid(&one, "a"), file("/y/a").namespace_uuid(&one, "a"));
        let listen = ["127.0.0.1:4420", "127.0.0.1:4421"].map(|a| a.parse().expect("an address"));
        let [one, two] = machines();
        assert_ne!(one.subsystem_nqn(&listen), two.subsystem_nqn(&listen));
        assert_ne!(one.subsystem_nqn(&listen[..1]), one.subsystem_nqn(&listen[1..]));
    }

    #[test]
    fn one_dataset_looks_the_same_everywhere() {
        let dataset = Some(Uuid::from_u128(7));
        let [one, two] = machines().map(|machine| SubsystemIdentity::new(&machine, nqn(), dataset));
        assert_eq!(one.serial(), two.serial());
        let uuid = file("/x/a").namespace_uuid(&one, "a");
        assert_eq!(uuid, file("/y/a").namespace_uuid(&two, "a"));
        // Targets of all versions must agree: this value must never change.
        assert_eq!(uuid, Uuid::new_v5(&Uuid::from_u128(7), b"a"));
        let memory = Medium::Memory { size_bytes: 512 };
        assert_ne!(memory.namespace_uuid(&one, "m"), memory.namespace_uuid(&two, "m"));
    }
}
