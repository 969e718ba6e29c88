//! Conversion from and to configurations of the Linux kernel target, in the format of `nvmetcli`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Configuration of the Linux kernel target (nvmet), as `nvmetcli save` writes it.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(super) struct NvmetConfig {
    #[serde(default)]
    hosts: Vec<NvmetHost>,
    #[serde(default)]
    ports: Vec<NvmetPort>,
    subsystems: Vec<NvmetSubsystem>,
}

#[derive(Debug, Deserialize, Serialize)]
struct NvmetHost {
    nqn: String,
    /// Files `dhchap_*` of the host. nvmetcli does not save them by itself.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    dhchap: Attributes,
}

#[derive(Debug, Deserialize, Serialize)]
struct NvmetPort {
    addr: NvmetAddress,
    #[serde(default)]
    ana_groups: Vec<NvmetAnaGroup>,
    portid: u16,
    #[serde(default)]
    referrals: Vec<NvmetReferral>,
    #[serde(default)]
    subsystems: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
struct NvmetAddress {
    adrfam: String,
    traddr: String,
    treq: String,
    trsvcid: String,
    trtype: String,
}

#[derive(Debug, Deserialize, Serialize)]
struct NvmetAnaGroup {
    #[serde(default)]
    ana: Attributes,
    grpid: u32,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct NvmetReferral {
    addr: NvmetAddress,
    #[serde(default)]
    enable: u8,
    #[serde(default)]
    name: String,
}

#[derive(Debug, Deserialize, Serialize)]
struct NvmetSubsystem {
    #[serde(default)]
    allowed_hosts: Vec<String>,
    #[serde(default)]
    attr: Attributes,
    #[serde(default)]
    namespaces: Vec<NvmetNamespace>,
    nqn: String,
}

#[derive(Debug, Deserialize, Serialize)]
struct NvmetNamespace {
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    ana: Attributes,
    #[serde(default)]
    device: Attributes,
    #[serde(default = "on")]
    enable: u8,
    nsid: u32,
}

/// Files of a configfs directory and their contents: strings, or numbers in files written by hand.
type Attributes = Map<String, Value>;

fn on() -> u8 {
    1
}

const ZERO_ID: &str = "00000000-0000-0000-0000-000000000000";

/// Result of a conversion, and warnings about settings that the other format lacks.
#[derive(Debug)]
pub(super) struct Converted<T> {
    pub(super) config: T,
    pub(super) warnings: Vec<String>,
    pub(super) key_files: Vec<KeyFile>,
}

/// Key of a host, which a file has to contain.
pub(super) struct KeyFile {
    pub(super) path: PathBuf,
    pub(super) key: String,
}

impl fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyFile({})", self.path.display())
    }
}

impl NvmetConfig {
    /// Converts to calls of the target's methods, as `save-config` prints them. The keys of hosts
    /// are to be written to files in `keys_dir`; without it these hosts are left out.
    pub(super) fn into_calls(self, keys_dir: Option<&Path>) -> Converted<Vec<Value>> {
        let mut importer = Importer::default();
        for host in &self.hosts {
            importer.host(host, keys_dir);
        }
        for subsystem in &self.subsystems {
            importer.subsystem(subsystem);
        }
        self.ports.iter().for_each(|port| importer.port(port));
        let Importer { calls: config, warnings, key_files, .. } = importer;
        Converted { config, warnings, key_files }
    }

    /// Converts from calls of the target's methods.
    pub(super) fn of_calls<'a>(calls: impl Iterator<Item = &'a Value>) -> Converted<Self> {
        let mut exporter = Exporter::default();
        calls.for_each(|call| exporter.call(call));
        exporter.finish()
    }
}

#[derive(Default)]
struct Importer {
    calls: Vec<Value>,
    warnings: Vec<String>,
    referrals: BTreeSet<(String, String)>,
    /// Parameters about keys of hosts that have some; `None` for those that are left out.
    keys: BTreeMap<String, Option<Attributes>>,
    key_files: Vec<KeyFile>,
}

impl Importer {
    fn call(&mut self, method: &str, params: Value) {
        self.calls.push(json!({ "method": method, "params": params }));
    }

    fn host(&mut self, host: &NvmetHost, keys_dir: Option<&Path>) {
        let NvmetHost { nqn, dhchap } = host;
        let Some(key) = text(dhchap, "key") else { return };
        let Some(folder) = keys_dir else {
            self.warnings.push(format!(
                "host {nqn} has a key, and is left out: --keys-dir FOLDER writes its key to a file"
            ));
            self.keys.insert(nqn.clone(), None);
            return;
        };
        let mut params = Map::new();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-".contains(c);
        let name: String = nqn.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
        let keys = [
            ("dhchap_key", "key", Some(key)),
            ("dhchap_ctrlr_key", "ctrl.key", text(dhchap, "ctrl_key")),
        ];
        for (param, suffix, key) in keys {
            let Some(key) = key else { continue };
            let path = folder.join(format!("{name}.{suffix}"));
            params.insert(param.to_owned(), path.display().to_string().into());
            self.key_files.push(KeyFile { path, key });
        }
        if let Some(hash) = text(dhchap, "hash") {
            let hash = hash.trim_start_matches("hmac(").trim_end_matches(')');
            params.insert("dhchap_digests".to_owned(), json!([hash]));
        }
        // The null group is the one of nvmet's hosts until somebody sets a group.
        if let Some(group) = text(dhchap, "dhgroup").filter(|group| group != "null") {
            params.insert("dhchap_dhgroups".to_owned(), json!([group]));
        }
        self.keys.insert(nqn.clone(), Some(params));
    }

    fn subsystem(&mut self, subsystem: &NvmetSubsystem) {
        let nqn = &subsystem.nqn;
        let any = is_on(&subsystem.attr, "allow_any_host");
        let mut params = json!({ "nqn": nqn, "allow_any_host": any });
        for (attribute, key) in [("serial", "serial_number"), ("model", "model_number")] {
            if let Some(text) = text(&subsystem.attr, attribute) {
                params[key] = text.into();
            }
        }
        if is_on(&subsystem.attr, "pi_enable") {
            self.warnings.push(format!("{nqn}: there is no protection information"));
        }
        self.call("nvmf_create_subsystem", params);
        for host in &subsystem.allowed_hosts {
            let mut params = json!({ "nqn": nqn, "host": host });
            match self.keys.get(host) {
                Some(None) => continue,
                Some(Some(keys)) => {
                    keys.iter().for_each(|(key, value)| params[key] = value.clone());
                }
                None => {}
            }
            self.call("nvmf_subsystem_add_host", params);
        }
        for namespace in &subsystem.namespaces {
            self.namespace(nqn, namespace);
        }
    }

    fn namespace(&mut self, nqn: &str, namespace: &NvmetNamespace) {
        let nsid = namespace.nsid;
        let Some(path) = text(&namespace.device, "path").filter(|_| namespace.enable != 0) else {
            self.warnings.push(format!("{nqn}: namespace {nsid} is not enabled, and left out"));
            return;
        };
        let mut bdev = json!({ "name": path, "filename": path });
        if let Some(bytes) = kernel_block_size(Path::new(&path)) {
            bdev["block_size"] = bytes.into();
        }
        self.call("bdev_uring_create", bdev);
        let mut described = json!({ "bdev_name": path, "nsid": nsid });
        for key in ["uuid", "nguid"] {
            if let Some(id) = text(&namespace.device, key).filter(|id| id != ZERO_ID) {
                described[key] = id.into();
            }
        }
        if let Some(group) = text(&namespace.ana, "grpid").and_then(|id| id.parse::<u32>().ok()) {
            described["anagrpid"] = group.into();
        }
        self.call("nvmf_subsystem_add_ns", json!({ "nqn": nqn, "namespace": described }));
    }

    fn port(&mut self, port: &NvmetPort) {
        let addr = &port.addr;
        if addr.trtype != "rdma" {
            self.warnings.push(format!(
                "port {} is of transport {}, and left out: there is rdma only",
                port.portid, addr.trtype
            ));
            return;
        }
        for nqn in &port.subsystems {
            let params = json!({ "nqn": nqn, "listen_address": addr.listen_address() });
            self.call("nvmf_subsystem_add_listener", params.clone());
            for group in &port.ana_groups {
                let state = text(&group.ana, "state").unwrap_or_default().replace('-', "_");
                if !matches!(&*state, "" | "optimized") {
                    let mut params = params.clone();
                    params["ana_state"] = state.into();
                    params["anagrpid"] = group.grpid.into();
                    self.call("nvmf_subsystem_listener_set_ana_state", params);
                }
            }
        }
        for NvmetReferral { addr, enable, name } in &port.referrals {
            if *enable == 0 || addr.trtype != "rdma" {
                self.warnings.push(format!("referral {name} is off or not of rdma, and left out"));
            } else if self.referrals.insert((addr.traddr.clone(), addr.trsvcid.clone())) {
                let params = json!({ "address": addr.listen_address() });
                self.call("nvmf_discovery_add_referral", params);
            }
        }
    }
}

impl NvmetAddress {
    fn listen_address(&self) -> Value {
        json!({
            "trtype": "rdma", "adrfam": self.adrfam, "traddr": self.traddr, "trsvcid": self.trsvcid,
        })
    }

    fn of(listen_address: &Value) -> Self {
        let text = |key: &str| listen_address[key].as_str().unwrap_or_default().to_owned();
        Self {
            adrfam: text("adrfam").to_lowercase(),
            traddr: text("traddr"),
            treq: "not specified".to_owned(),
            trsvcid: text("trsvcid"),
            trtype: "rdma".to_owned(),
        }
    }
}

/// Bytes of a logical block that the kernel target presents for a file; `None` for a block device,
/// whose own block size it presents.
fn kernel_block_size(path: &Path) -> Option<u64> {
    let file = std::fs::metadata(path).ok()?;
    // The kernel takes the block size of the file system, but at most 4 KiB.
    let bytes = std::os::unix::fs::MetadataExt::blksize(&file).min(4096);
    (!file.file_type().is_block_device()).then_some(bytes)
}

fn text(attributes: &Attributes, key: &str) -> Option<String> {
    match attributes.get(key)? {
        Value::String(text) => Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn is_on(attributes: &Attributes, key: &str) -> bool {
    text(attributes, key).as_deref() == Some("1")
}

/// Lists namespaces in a warning: at most 8, and the number of the others.
fn namespaces(nsids: &BTreeSet<u64>) -> String {
    const NAMED: usize = 8;
    let named: Vec<_> = nsids.iter().take(NAMED).map(u64::to_string).collect();
    let more = match nsids.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("namespaces {}{more}", named.join(", "))
}

#[derive(Default)]
struct Exporter {
    config: NvmetConfig,
    /// Backing files by the name of their bdev; `None` if the bdev has no file.
    files: BTreeMap<String, Option<BackingFile>>,
    referrals: Vec<NvmetReferral>,
    /// Namespaces that cannot be saved exactly, by subsystem and by what is lost.
    losses: BTreeMap<(String, &'static str), BTreeSet<u64>>,
    warnings: Vec<String>,
}

struct BackingFile {
    path: String,
    read_only: bool,
    block_bytes: Option<u64>,
}

const OPEN_TO_WRITES: &str = "hosts only read or have protected, and nvmet lets them write";
const OTHER_BLOCKS: &str = "nvmet gives blocks of another size";
/// Properties of a namespace that nvmet lacks, each with the text of its warning.
const NO_PROPERTIES: [(&str, &str); 4] = [
    ("name", "lose their name (name)"),
    ("content_id", "lose the name of their bytes (content_id)"),
    ("description", "lose their description"),
    ("direct_io", "lose direct_io"),
];

impl Exporter {
    fn call(&mut self, call: &Value) {
        let params = &call["params"];
        let text = |key: &str| params[key].as_str().unwrap_or_default().to_owned();
        match call["method"].as_str().unwrap_or_default() {
            "bdev_uring_create" | "bdev_aio_create" => {
                let read_only = params["readonly"] == true;
                let block_bytes = params["block_size"].as_u64();
                let file = BackingFile { path: text("filename"), read_only, block_bytes };
                self.files.insert(text("name"), Some(file));
            }
            "bdev_null_create" | "bdev_malloc_create" => {
                self.files.insert(text("name"), None);
            }
            "nvmf_create_subsystem" => {
                if params["deallocate"] == false {
                    self.warnings.push(format!(
                        "deallocate = false of {} is not saved: nvmet lets hosts deallocate",
                        text("nqn")
                    ));
                }
                let any = if params["allow_any_host"] == true { "1" } else { "0" };
                let attr = json!({
                    "allow_any_host": any, "serial": text("serial_number"), "model": text("model_number"),
                });
                self.config.subsystems.push(NvmetSubsystem {
                    allowed_hosts: Vec::new(),
                    attr: attr.as_object().cloned().unwrap_or_default(),
                    namespaces: Vec::new(),
                    nqn: text("nqn"),
                });
            }
            "nvmf_subsystem_add_host" if params["dhchap_key"].is_string() => {
                self.warnings.push(format!(
                    "host {} of {} is left out, since nvmet would let it in by its name: add it, and write its \
                     key to /sys/kernel/config/nvmet/hosts/{0}/dhchap_key",
                    text("host"), text("nqn")
                ));
            }
            "nvmf_subsystem_add_host" => {
                if let Some(subsystem) = self.subsystem(&text("nqn")) {
                    subsystem.allowed_hosts.push(text("host"));
                }
            }
            "bdev_set_qos_limit" => self
                .warnings
                .push(format!("limits of {} are not saved: nvmet has none", text("name"))),
            "feedrail_set_host_qos" => self
                .warnings
                .push(format!("limits of hosts of {} are not saved: nvmet has none", text("nqn"))),
            "nvmf_subsystem_add_ns" => self.namespace(&text("nqn"), &params["namespace"]),
            "feedrail_protect_ns" => self.lost(&text("nqn"), &params["nsid"], OPEN_TO_WRITES),
            "nvmf_subsystem_add_listener" => {
                let port = self.port(NvmetAddress::of(&params["listen_address"]));
                port.subsystems.push(text("nqn"));
            }
            "nvmf_subsystem_listener_set_ana_state" => self.ana_state(params),
            "nvmf_discovery_add_referral" => {
                let addr = NvmetAddress::of(&params["address"]);
                if params["hosts"].is_array() {
                    self.warnings.push(format!(
                        "the referral to {} is left out, since nvmet would tell it to all hosts",
                        addr.traddr
                    ));
                    return;
                }
                let name = format!("{}-{}", addr.traddr, addr.trsvcid);
                self.referrals.push(NvmetReferral { addr, enable: 1, name });
            }
            // Hosts of a namespace that others cannot see: the namespace is left out as a whole.
            _ => {}
        }
    }

    fn subsystem(&mut self, nqn: &str) -> Option<&mut NvmetSubsystem> {
        self.config.subsystems.iter_mut().find(|subsystem| subsystem.nqn == nqn)
    }

    fn port(&mut self, addr: NvmetAddress) -> &mut NvmetPort {
        let ports = &mut self.config.ports;
        let found = ports.iter().position(|port| port.addr == addr);
        let at = found.unwrap_or_else(|| {
            let portid = u16::try_from(ports.len() + 1).unwrap_or(u16::MAX);
            let (ana_groups, referrals, subsystems) = (Vec::new(), Vec::new(), Vec::new());
            ports.push(NvmetPort { addr, ana_groups, portid, referrals, subsystems });
            ports.len() - 1
        });
        &mut ports[at]
    }

    fn namespace(&mut self, nqn: &str, described: &Value) {
        let nsid = described["nsid"].as_u64().and_then(|nsid| u32::try_from(nsid).ok());
        let nsid = nsid.unwrap_or_default();
        let medium = self.files.get(described["bdev_name"].as_str().unwrap_or_default());
        let Some(Some(BackingFile { path, read_only, block_bytes })) = medium else {
            self.warnings.push(format!("{nqn}: namespace {nsid} has no file, and is left out"));
            return;
        };
        if described["no_auto_visible"] == true {
            self.warnings.push(format!(
                "{nqn}: namespace {nsid} is left out, since nvmet would show it to all hosts"
            ));
            return;
        }
        let mut device = Map::new();
        device.insert("path".into(), path.as_str().into());
        for key in ["uuid", "nguid"] {
            if let Some(id) = described[key].as_str() {
                device.insert(key.into(), id.into());
            }
        }
        let mut ana = Map::new();
        if let Some(group) = described["anagrpid"].as_u64() {
            ana.insert("grpid".into(), group.to_string().into());
        }
        let (read_only, block_bytes) = (*read_only, *block_bytes);
        let of_kernel = kernel_block_size(Path::new(path));
        if read_only {
            self.lost(nqn, &described["nsid"], OPEN_TO_WRITES);
        }
        if block_bytes.is_some_and(|bytes| of_kernel.is_some_and(|other| bytes != other)) {
            self.lost(nqn, &described["nsid"], OTHER_BLOCKS);
        }
        for (key, loss) in NO_PROPERTIES {
            if !described[key].is_null() {
                self.lost(nqn, &described["nsid"], loss);
            }
        }
        if let Some(subsystem) = self.subsystem(nqn) {
            subsystem.namespaces.push(NvmetNamespace { ana, device, enable: 1, nsid });
        }
    }

    /// Records what is lost of a namespace. Each subsystem gets one warning for each kind of loss.
    fn lost(&mut self, nqn: &str, nsid: &Value, loss: &'static str) {
        self.losses.entry((nqn.to_owned(), loss)).or_default().extend(nsid.as_u64());
    }

    /// Sets an ANA state of a port. nvmet has one state for each group of a port; here it is one of
    /// a subsystem at a port.
    fn ana_state(&mut self, params: &Value) {
        let state = params["ana_state"].as_str().unwrap_or_default().replace('_', "-");
        let group = params["anagrpid"].as_u64().and_then(|id| u32::try_from(id).ok());
        let grpid = group.unwrap_or(1);
        let port = self.port(NvmetAddress::of(&params["listen_address"]));
        if !port.ana_groups.iter().any(|group| group.grpid == grpid) {
            let mut ana = Map::new();
            ana.insert("state".into(), state.into());
            port.ana_groups.push(NvmetAnaGroup { ana, grpid });
        }
    }

    fn finish(mut self) -> Converted<NvmetConfig> {
        let hosts: BTreeSet<_> = self
            .config
            .subsystems
            .iter()
            .flat_map(|subsystem| subsystem.allowed_hosts.iter().cloned())
            .collect();
        let host = |nqn| NvmetHost { nqn, dhchap: Map::new() };
        self.config.hosts = hosts.into_iter().map(host).collect();
        for ((nqn, loss), nsids) in std::mem::take(&mut self.losses) {
            self.warnings.push(format!("{nqn}: {} {loss}", namespaces(&nsids)));
        }
        for port in &mut self.config.ports {
            port.referrals.clone_from(&self.referrals);
            if port.subsystems.len() > 1 && !port.ana_groups.is_empty() {
                self.warnings.push(format!(
                    "port {}: its ANA states are those of all its subsystems in nvmet",
                    port.portid
                ));
            }
        }
        Converted { config: self.config, warnings: self.warnings, key_files: Vec::new() }
    }
}

#[cfg(test)]
mod tests;
