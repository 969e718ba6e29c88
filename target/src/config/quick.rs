//! The quick form: paths on the command line, no configuration file.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nvme_proto::{Nqn, Nsid};

use super::{
    Config, ConfigError, Cores, DirectIo, DirectoryConfig, Discovery, HostPolicy, Medium,
    MetricsDetail, NamespaceName, NamespaceSettings, NamespaceSpec, Origin, PortConfig,
    ProviderChoice, SubsystemConfig, SubsystemSpec,
};
use crate::derived_ids::{self, Machine};
use crate::limits::Limits;

/// Default of `polling_us`: longest time that a poll group polls before it sleeps, in microseconds.
pub(super) const POLLING_US: u32 = 2000;

/// The arguments of the quick form: one subsystem that any host may use.
#[derive(Clone, Debug)]
pub struct Quick {
    /// Addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// Files, which are numbered from NSID 1 in this order, and directories, whose files are
    /// namespaces as long as they exist.
    pub paths: Vec<PathBuf>,
    /// Whether hosts may write.
    pub writable: bool,
    /// Use of direct I/O.
    pub direct_io: DirectIo,
    /// NQN of the subsystem; `None` derives it from this machine and these addresses.
    pub nqn: Option<Nqn>,
    /// RDMA provider to use.
    pub provider: ProviderChoice,
    /// Number of poll groups, or the cores that they are pinned to.
    pub cores: Cores,
    /// Identity of the machine; `None` determines it with [`Machine::this`].
    pub machine: Option<Machine>,
}

impl Config {
    /// Converts the arguments of the quick form to a configuration.
    ///
    /// # Errors
    /// No address, no file, the same file twice, or a machine whose id is damaged.
    pub fn quick(mut quick: Quick) -> Result<Self, ConfigError> {
        if quick.listen.is_empty() {
            return Err(ConfigError::Usage("no address to listen on; add --listen IP:4420".into()));
        }
        let mut seen = BTreeSet::new();
        // Each address with port number 0 gets a free port of its own.
        quick.listen.retain(|address| address.port() == 0 || seen.insert(*address));
        let ports = quick.listen.iter().enumerate().map(|(index, address)| PortConfig {
            id: u16::try_from(index + 1).unwrap_or(u16::MAX),
            address: *address,
            subsystems: None,
            origin: Origin(format!("--listen {address}")),
        });
        let mut limits = Limits::default();
        limits.pool_bytes = limits.pool_bytes.max(limits.least_pool_bytes(quick.cores.count()));
        let state_dir = derived_ids::default_state_dir();
        let machine = match quick.machine {
            Some(machine) => machine,
            None => Machine::this(&state_dir)?,
        };
        Ok(Self {
            provider: quick.provider,
            send_with_invalidate: true,
            shared_memory_group: None,
            cores: quick.cores.clone(),
            polling: Duration::from_micros(POLLING_US.into()),
            management: None,
            management_read_only: None,
            export_roots: None,
            confinement: None,
            metrics: None,
            metrics_detail: MetricsDetail::default(),
            state_dir,
            discovery: Discovery::open(),
            discovery_nqn: Nqn::DISCOVERY,
            machine,
            limits,
            ports: ports.collect(),
            subsystems: vec![quick.subsystem(&machine)?],
        })
    }
}

impl Quick {
    fn subsystem(&self, machine: &Machine) -> Result<SubsystemConfig, ConfigError> {
        let (directories, files): (Vec<_>, Vec<_>) =
            self.paths.iter().partition(|path| path.is_dir());
        let nqn = self.nqn.unwrap_or_else(|| machine.subsystem_nqn(&self.listen));
        let spec = SubsystemSpec::new(nqn, HostPolicy::Any);
        let subsystem = spec.resolve(machine, Origin("command line".into()));
        let mut seen = BTreeSet::new();
        if let Some(path) = self.paths.iter().find(|path| !seen.insert(*path)) {
            let message = format!("argument {}: given twice", path.display());
            return Err(ConfigError::Usage(message));
        }
        let mut namespaces = Vec::with_capacity(files.len());
        for ((path, name), nsid) in files.iter().zip(names(&files)).zip(1..) {
            let medium = medium(path.to_path_buf());
            let settings = NamespaceSettings::new(name, medium, self.writable);
            let settings = NamespaceSettings { direct_io: self.direct_io, ..settings };
            let origin = Origin(format!("argument {}", path.display()));
            let spec = NamespaceSpec::from(settings);
            namespaces.push(spec.resolve(Nsid(nsid), &subsystem.identity, origin));
        }
        if self.paths.is_empty() {
            let message = "nothing to export; name files or directories to export, or a configuration \
                           with --config";
            return Err(ConfigError::Usage(message.into()));
        }
        let directories = directories.into_iter().map(|path| self.directory(path)).collect();
        Ok(SubsystemConfig { namespaces, directories, ..subsystem })
    }

    fn directory(&self, path: &Path) -> DirectoryConfig {
        DirectoryConfig {
            path: path.to_owned(),
            suffix: String::new(),
            writable: self.writable,
            content_id: None,
            block_shift: None,
            direct_io: self.direct_io,
            watch: true,
            origin: Origin(format!("argument {}", path.display())),
        }
    }
}

/// The file names, or the whole paths where files share a name.
fn names(files: &[&PathBuf]) -> Vec<NamespaceName> {
    let names: Vec<_> = files.iter().map(|path| NamespaceName::of_file(path)).collect();
    let mut count: BTreeMap<&str, u32> = BTreeMap::new();
    names.iter().for_each(|name| *count.entry(name).or_default() += 1);
    let unique = |(path, name): (&&PathBuf, &NamespaceName)| match count[&**name] {
        1 => name.clone(),
        _ => NamespaceName::of_path(path),
    };
    files.iter().zip(&names).map(unique).collect()
}

/// Guesses the medium from its path: a block device if the path is one, or if it does not exist
/// yet under /dev (outside /dev/shm), where the device may still appear. Any other path is taken
/// for a file; opening it fails if it is something else.
pub(super) fn medium(path: PathBuf) -> Medium {
    use std::os::unix::fs::FileTypeExt as _;
    let block = match std::fs::metadata(&path) {
        Ok(meta) => meta.file_type().is_block_device(),
        Err(_) => path.starts_with("/dev") && !path.starts_with("/dev/shm"),
    };
    if block { Medium::Block { path } } else { Medium::File { path, root: None } }
}

/// Parses `IP:PORT` or `[IPv6]:PORT`, with the port optional, and refuses addresses that cannot be
/// listened on.
pub(crate) fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let with_default_port = || {
        let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
        bare.parse().ok().map(|ip| SocketAddr::new(ip, 4420))
    };
    let link_local = || {
        format!(
            "{text:?} is a link-local address, and connections name addresses without their interface: give another \
             address of it, or [::] for all"
        )
    };
    if text.contains('%') {
        return Err(link_local());
    }
    let address: SocketAddr =
        text.parse().ok().or_else(with_default_port).ok_or_else(|| {
            format!("{text:?} is no address; write IP:PORT as in \"192.0.2.1:4420\"")
        })?;
    if matches!(address.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local()) {
        return Err(link_local());
    }
    if address.ip().is_multicast() {
        return Err(format!(
            "{text:?} is no address of an interface; write one, as in \"192.0.2.1:4420\", or 0.0.0.0 for all"
        ));
    }
    if address.ip().is_unspecified() && address.port() == 0 {
        return Err(format!("{text:?} needs a port number, which all of its addresses have"));
    }
    Ok(address)
}

/// Parses the NQN of a subsystem of this target; the error names the remedy.
pub(crate) fn parse_nqn(text: &str) -> Result<Nqn, String> {
    Nqn::standard(text).map_err(|error| {
        format!("{text:?} is no NQN ({error}); write nqn.YYYY-MM.REVERSED.DOMAIN:NAME, at most 223 bytes")
    })
}

/// Parses the NQN of an allowed host; the error names its form.
pub(crate) fn parse_host(text: &str) -> Result<Nqn, String> {
    let wrong = |rule: &dyn std::fmt::Display| {
        format!(
            "{text:?} is no name of a host: {rule}; write what /etc/nvme/hostnqn of the host has, \
             nqn.2014-08.org.nvmexpress:uuid:UUID or nqn.YYYY-MM.REVERSED.DOMAIN:NAME"
        )
    };
    if text.trim() != text {
        return Err(wrong(&"it has a space or a line end at one of its ends"));
    }
    Nqn::standard(text).map_err(|error| wrong(&error))
}

/// Parses the id of a machine: 32 hexadecimal digits, not all zero.
pub(crate) fn parse_machine(text: &str) -> Result<Machine, String> {
    let wrong = || format!("{text:?} is no machine id; write 32 hexadecimal digits, not all zero");
    derived_ids::parse_id(text).map(Machine::with_id).ok_or_else(wrong)
}
