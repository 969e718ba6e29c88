//! Paths that the daemon may open by itself, as a Landlock ruleset. All others are opened by the
//! helper. Descriptors from before stay usable.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, PathBeneath,
    PathFd, Ruleset, RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetError,
};

use super::ConfinementError;
use crate::config::Config;

/// Newest rules that are asked for; older kernels apply those that they know.
const RULES: ABI = ABI::V5;
/// Files and folders that are read at run time: statistics and devices of the machine, its id, and
/// the libraries of RDMA devices that appear.
const READ: [&str; 10] = [
    "/proc",
    "/sys",
    "/etc/machine-id",
    "/etc/ld.so.cache",
    "/etc/libibverbs.d",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/lib",
    "/lib64",
];
/// Where the C library looks for a group, which a reload does if the configuration has one.
const GROUPS: [&str; 2] = ["/etc", "/var/lib/sss"];
/// Devices that are opened at run time.
const DEVICES: [&str; 2] = ["/dev/infiniband", "/dev/null"];

/// Makes the ruleset for a configuration.
///
/// # Errors
/// The kernel has no Landlock, or it is switched off.
pub(super) fn of(config: &Config) -> Result<RulesetCreated, ConfinementError> {
    rules(config).map_err(|error| ConfinementError::new("paths", error))
}

fn rules(config: &Config) -> Result<RulesetCreated, RulesetError> {
    // What cannot be had of the first version, which includes all of reading and writing, fails.
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V1))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(RULES))?
        .handle_access(AccessNet::from_all(RULES))?;
    let mut ruleset = ruleset.create()?;
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let change = AccessFs::WriteFile | AccessFs::Truncate;
    for path in READ {
        ruleset = allow(ruleset, Path::new(path), read)?;
    }
    let search_path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    for path in std::env::split_paths(&search_path).filter(|path| path.is_absolute()) {
        ruleset = allow(ruleset, &path, read)?;
    }
    for path in GROUPS.iter().filter(|_| config.shared_memory_group.is_some()) {
        ruleset = allow(ruleset, Path::new(path), read)?;
    }
    if let Ok(program) = std::env::current_exe() {
        // For the names of functions in a backtrace.
        ruleset = allow(ruleset, &program, read)?;
    }
    for path in DEVICES {
        ruleset = allow(ruleset, Path::new(path), read | change | AccessFs::IoctlDev)?;
    }
    keep_state_dir(config);
    let keep = read | change | AccessFs::MakeReg | AccessFs::RemoveFile;
    ruleset = allow(ruleset, &config.state_dir, keep)?;
    for socket in config.management.iter().chain(&config.management_read_only) {
        let make = AccessFs::MakeSock | AccessFs::RemoveFile;
        ruleset = allow(ruleset, &folder_of(socket), make)?;
    }
    for directory in config.subsystems.iter().flat_map(|subsystem| &subsystem.directories) {
        let access = if directory.writable { read | change } else { read };
        ruleset = allow(ruleset, &directory.path, access)?;
    }
    Ok(ruleset)
}

/// Adds a rule with these rights, or those that files can have if the path is a file. Does nothing
/// for a path that does not exist.
fn allow(
    ruleset: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    let Ok(place) = PathFd::new(path) else { return Ok(ruleset) };
    let is_folder = path.is_dir();
    let access = if is_folder { access } else { access & AccessFs::from_file(RULES) };
    ruleset.add_rule(PathBeneath::new(place, access))
}

/// Creates the state folder, for which there can be no rule before, if state may have to be kept.
fn keep_state_dir(config: &Config) {
    let directories = config.subsystems.iter().any(|subsystem| !subsystem.directories.is_empty());
    if config.is_managed() || directories {
        // Where it fails, keeping state fails as well, and tells.
        let _ = std::fs::create_dir_all(&config.state_dir);
    }
}

fn folder_of(socket: &Path) -> PathBuf {
    let folder = socket.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new(".")).to_owned()
}
