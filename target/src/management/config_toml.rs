//! `feedrail_get_config_toml`: the configuration file of a target, updated to the present exports.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use feedrail_auth::{DhGroup, HostEntry};
use nvme_proto::Nqn;
use nvme_proto::log::AnaState;
use serde_json::{Value, json};
use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, value};
use uuid::Uuid;

use super::rpc::RpcError;
use crate::config::values::derived_nguid;
use crate::config::{
    Authentication, Config, Medium, NamespaceConfig, NamespaceSettings, PortConfig, SubsystemConfig,
};
use crate::inventory::Inventory;
use crate::inventory::allowed_host::AllowedHosts;
use crate::inventory::ana::AnaGroupId;
use crate::inventory::host_keys::NegotiableByDefault;
use crate::inventory::listed::ListedNamespaces;
use crate::inventory::namespace::Namespace;
use crate::inventory::port::Port;
use crate::inventory::subsystem::Subsystem;
use crate::limits::NSID_LAST;
use crate::reloader::Reloader;

/// Returns the text of the file, and warnings for each thing that it cannot express.
pub(super) fn describe_toml(inventory: &Inventory, reloader: &Reloader) -> Result<Value, RpcError> {
    let (text, config) = reloader.read_file().map_err(RpcError::internal)?;
    let mut document: DocumentMut = text.parse().map_err(RpcError::internal)?;
    let mut writer = TomlWriter { inventory, config: &config, warnings: Vec::new() };
    writer.write(&mut document)?;
    let text = document.to_string();
    Config::from_toml(reloader.path(), &text).map_err(|error| {
        RpcError::internal(format_args!("the exports do not form a valid configuration: {error}"))
    })?;
    Ok(json!({ "toml": text, "warnings": writer.warnings }))
}

/// Updates the tables of a file to the present exports. Tables that are up to date stay as they
/// are, with their comments.
struct TomlWriter<'a> {
    inventory: &'a Inventory,
    /// Configuration that the file describes.
    config: &'a Config,
    warnings: Vec<String>,
}

impl TomlWriter<'_> {
    fn write(&mut self, document: &mut DocumentMut) -> Result<(), RpcError> {
        let ports = tables(document.entry("port").or_insert(Item::None), self.config.ports.len())?;
        self.ports(ports);
        let count = self.config.subsystems.len();
        let subsystems = tables(document.entry("subsystem").or_insert(Item::None), count)?;
        self.subsystems(subsystems)?;
        if subsystems.is_empty() {
            document.remove("subsystem");
        }
        if *self.inventory.negotiable() != NegotiableByDefault::default() {
            let lost = "hashes and groups of nvmf_set_config are not saved: entries of hosts have their own";
            self.warnings.push(lost.to_owned());
        }
        if !self.inventory.referrals().list().is_empty() {
            self.warnings.push("referrals are not saved: a configuration has none".to_owned());
        }
        Ok(())
    }

    fn ports(&mut self, tables: &mut ArrayOfTables) {
        let of_inventory = self.inventory.ports();
        let of_config = self.config.ports.iter().map(|config| {
            let port = of_inventory.iter().find(|port| port.is_of(config));
            (config, port)
        });
        for (table, (config, port)) in tables.iter_mut().zip(of_config) {
            match port {
                Some(port) => self.port(table, config, port),
                // The address stays, since a reload of the file may listen there.
                None => {
                    let address = config.address;
                    self.warnings
                        .push(format!("{address} is not listened on, and stays in the file"));
                }
            }
        }
        let is_new = |port: &&Arc<Port>| !self.config.ports.iter().any(|config| port.is_of(config));
        for port in of_inventory.iter().filter(is_new) {
            let mut table = Table::new();
            table.insert("id", value(i64::from(port.id)));
            table.insert("address", value(port.configured_address().to_string()));
            let served = port.subsystems();
            table.insert("subsystems", value(texts(served.iter().map(|one| one.nqn.as_str()))));
            self.warn_of_ana(port);
            tables.push(table);
        }
    }

    fn port(&mut self, table: &mut Table, config: &PortConfig, port: &Port) {
        let served: BTreeSet<Nqn> = port.subsystems().iter().map(|one| one.nqn).collect();
        let all: BTreeSet<Nqn> = self.inventory.subsystems().iter().map(|one| one.nqn).collect();
        let said = config.subsystems.as_ref();
        let said = said.map_or(all, |list| list.iter().copied().collect());
        if said != served {
            table.insert("subsystems", value(texts(served.iter().map(Nqn::as_str))));
        }
        self.warn_of_ana(port);
    }

    fn warn_of_ana(&mut self, port: &Port) {
        for subsystem in port.subsystems() {
            let Some(ana) = port.ana(&subsystem) else { continue };
            if AnaGroupId::all().any(|group| ana.state(group) != AnaState::OPTIMIZED) {
                let (nqn, address) = (subsystem.nqn, port.address());
                self.warnings.push(format!("ANA states of {nqn} at {address} are not saved"));
            }
        }
    }

    fn subsystems(&mut self, tables: &mut ArrayOfTables) -> Result<(), RpcError> {
        let of_file = std::mem::take(tables).into_iter().zip(&self.config.subsystems);
        for (mut table, config) in of_file {
            if let Some(subsystem) = self.inventory.subsystem(&config.nqn) {
                self.subsystem(&mut table, config, &subsystem)?;
                tables.push(table);
            }
        }
        let is_new =
            |one: &Arc<Subsystem>| !self.config.subsystems.iter().any(|of| of.nqn == one.nqn);
        for subsystem in self.inventory.subsystems().into_iter().filter(is_new) {
            let mut table = new_subsystem(&subsystem);
            self.hosts(&mut table, &subsystem);
            let mut namespaces = ArrayOfTables::new();
            let exported = subsystem.namespaces();
            exported.iter().for_each(|one| namespaces.push(new_namespace(&one.config)));
            table.insert("namespace", Item::ArrayOfTables(namespaces));
            self.last_nsid(&subsystem);
            self.protections(&subsystem);
            tables.push(table);
        }
        Ok(())
    }

    fn subsystem(
        &mut self,
        table: &mut Table,
        config: &SubsystemConfig,
        subsystem: &Arc<Subsystem>,
    ) -> Result<(), RpcError> {
        if let Some(key) = subsystem.difference(config) {
            let nqn = subsystem.nqn;
            self.warnings.push(format!(
                "{key} of {nqn} has the value of the file, not that of the running target"
            ));
        }
        // Key files that cannot be read now are written as they are known.
        let of_file = AllowedHosts::of(config).ok();
        if of_file.is_none_or(|of_file| !subsystem.hosts().changes_to(&of_file).is_empty()) {
            for key in ["allow_any_host", "allowed_hosts", "authentication", "host", "each_host"] {
                table.remove(key);
            }
            self.hosts(table, subsystem);
        }
        self.last_nsid(subsystem);
        self.protections(subsystem);
        self.namespaces(table, config, subsystem)
    }

    /// Warns that write protections are in the state folder, where this target finds them, and not
    /// in the file.
    fn protections(&mut self, subsystem: &Subsystem) {
        let namespaces = subsystem.namespaces();
        let nsids = namespaces.iter().filter(|one| one.is_protected()).map(|one| one.nsid);
        let nsids: Vec<_> = nsids.map(|nsid| nsid.to_string()).collect();
        if !nsids.is_empty() {
            let nsids = nsids.join(", ");
            self.warnings.push(format!(
                "the write protection of namespaces of {} (NSID {nsids}) is in the state folder, not in the file",
                subsystem.nqn
            ));
        }
    }

    fn hosts(&mut self, table: &mut Table, subsystem: &Subsystem) {
        let AllowedHosts { any, mut listed, keyring, limits } = subsystem.hosts();
        listed.retain(|host| keyring.get(host).is_none() && limits.own(host).is_empty());
        let entries: Vec<_> = keyring.hosts().map(|(_, one)| one.entry.clone()).collect();
        if keyring.authentication != Authentication::of_entries(&entries) {
            table.insert("authentication", value(keyring.authentication.word()));
        }
        let mut hosts: ArrayOfTables = entries.iter().map(new_host).collect();
        for (host, own) in limits.hosts() {
            let has_keys = entries.iter().position(|entry| entry.nqn.0 == *host);
            match has_keys.and_then(|at| hosts.get_mut(at)) {
                Some(table) => put_limits(table, own.given()),
                None => {
                    let mut table = Table::new();
                    table.insert("nqn", value(host.as_str()));
                    put_limits(&mut table, own.given());
                    hosts.push(table);
                }
            }
        }
        if !limits.each.is_none() {
            let mut each = Table::new();
            put_limits(&mut each, limits.each.present());
            table.insert("each_host", Item::Table(each));
        }
        let has_tables = !hosts.is_empty();
        if has_tables {
            table.insert("host", Item::ArrayOfTables(hosts));
        }
        if !any {
            if !has_tables || !listed.is_empty() {
                table.insert("allowed_hosts", value(texts(listed.iter().map(Nqn::as_str))));
            }
            return;
        }
        table.insert("allow_any_host", value(true));
        if !listed.is_empty() {
            let (nqn, count) = (subsystem.nqn, listed.len());
            self.warnings.push(format!(
                "the {count} allowed hosts of {nqn} are not saved, since any host may use it"
            ));
        }
    }

    fn last_nsid(&mut self, subsystem: &Subsystem) {
        if subsystem.nsid_last != NSID_LAST {
            self.warnings.push(format!("max_namespaces of {} is not saved", subsystem.nqn));
        }
    }

    fn namespaces(
        &mut self,
        table: &mut Table,
        config: &SubsystemConfig,
        subsystem: &Arc<Subsystem>,
    ) -> Result<(), RpcError> {
        let exported = subsystem.namespaces();
        let listed = ListedNamespaces::again(self.config, config).map_err(RpcError::internal)?;
        let is_exported = |said: &NamespaceConfig| {
            exported.get(said.nsid).is_some_and(|one| one.config.describes_same(said))
        };
        let said = listed.configs().iter().filter(|said| is_exported(said));
        let said: BTreeSet<_> = said.map(|said| said.nsid).collect();
        for shard in listed.configs().iter().skip(config.namespaces.len()) {
            if !said.contains(&shard.nsid) {
                self.warnings.push(format!(
                    "{} ({}) is not exported; the directory will export it again",
                    &*shard.name, shard.origin
                ));
            }
        }
        let is_new = |one: &&Arc<Namespace>| !said.contains(&one.nsid);
        let gone = config.namespaces.iter().any(|one| !said.contains(&one.nsid));
        if !gone && !exported.iter().any(|one| is_new(&one)) {
            return Ok(());
        }
        let item = table.entry("namespace").or_insert(Item::None);
        let tables = tables(item, config.namespaces.len())?;
        let of_file = std::mem::take(tables).into_iter().zip(&config.namespaces);
        for (mut table, config) in of_file.filter(|(_, config)| said.contains(&config.nsid)) {
            // Without this key, the position of the table would determine the NSID.
            if !table.contains_key("nsid") {
                table.insert("nsid", value(i64::from(config.nsid.0)));
            }
            tables.push(table);
        }
        exported.iter().filter(is_new).for_each(|one| tables.push(new_namespace(&one.config)));
        if tables.is_empty() {
            table.remove("namespace");
        }
        Ok(())
    }
}

/// Converts an item to an array of tables; an error if it does not have `count` of them.
fn tables(item: &mut Item, count: usize) -> Result<&mut ArrayOfTables, RpcError> {
    let changed =
        || RpcError::internal("the configuration file has changed since it was read; try again");
    let tables = match std::mem::take(item) {
        Item::None => ArrayOfTables::new(),
        written => written.into_array_of_tables().map_err(|_| changed())?,
    };
    if tables.len() != count {
        return Err(changed());
    }
    *item = Item::ArrayOfTables(tables);
    item.as_array_of_tables_mut().ok_or_else(changed)
}

fn texts<'a>(list: impl Iterator<Item = &'a str>) -> Array {
    list.collect()
}

fn new_host(entry: &HostEntry) -> Table {
    let HostEntry { nqn, dhchap_key, dhchap_ctrl_key, hashes, groups } = entry;
    let path = |path: &Path| value(path.display().to_string());
    let mut table = Table::new();
    table.insert("nqn", value(nqn.to_string()));
    table.insert("dhchap_key", path(dhchap_key));
    if let Some(key) = dhchap_ctrl_key {
        table.insert("dhchap_ctrl_key", path(key));
    }
    if !hashes.is_empty() {
        table.insert("hashes", value(texts(hashes.iter().map(|hash| hash.name()))));
    }
    if !groups.is_empty() {
        let names = groups.iter().map(|group| DhGroup::name_of(*group));
        table.insert("groups", value(texts(names)));
    }
    table
}

fn new_subsystem(subsystem: &Subsystem) -> Table {
    let mut table = Table::new();
    table.insert("nqn", value(subsystem.nqn.as_str()));
    table.insert("serial", value(subsystem.serial.text().unwrap_or_default()));
    table.insert("model", value(subsystem.model.text().unwrap_or_default()));
    if !subsystem.deallocate {
        table.insert("deallocate", value(false));
    }
    table
}

/// Creates the table of a namespace with all keys, since derived values may differ at run time.
fn new_namespace(config: &NamespaceConfig) -> Table {
    let NamespaceConfig { nsid, uuid, nguid, settings, origin: _ } = config;
    let NamespaceSettings {
        name,
        eui64,
        medium,
        // Faults stay in tables of the file; namespaces added at run time have none.
        faults: _,
        writable,
        block_shift,
        // Those of `texts`.
        content_id: _,
        description: _,
        direct_io: _,
        ana_group,
        visible_to,
        qos,
    } = settings;
    let mut table = Table::new();
    table.insert("nsid", value(i64::from(nsid.0)));
    let kind = match medium {
        Medium::File { .. } => None,
        Medium::Block { .. } => Some("block"),
        Medium::Null { .. } => Some("null"),
        Medium::Memory { .. } => Some("memory"),
    };
    if let Some(kind) = kind {
        table.insert("kind", value(kind));
    }
    match medium {
        Medium::File { path, .. } | Medium::Block { path } => {
            table.insert("path", value(path.display().to_string()));
        }
        Medium::Null { size_bytes } | Medium::Memory { size_bytes } => {
            // TOML integers have 63 bits and a sign, as sizes of files do.
            table.insert("size_bytes", value(i64::try_from(*size_bytes).unwrap_or(i64::MAX)));
        }
    }
    table.insert("name", value(&**name));
    table.insert("uuid", value(uuid.to_string()));
    if *nguid != derived_nguid(*uuid) {
        table.insert("nguid", value(Uuid::from_bytes(*nguid).simple().to_string()));
    }
    if let Some(eui64) = eui64 {
        table.insert("eui64", value(eui64.to_string()));
    }
    table.insert("read_only", value(!writable));
    for (key, text) in settings.texts() {
        table.insert(key, value(text));
    }
    if let Some(shift) = block_shift {
        table.insert("lba_bytes", value(i64::from(shift.bytes())));
    }
    if *ana_group != AnaGroupId::DEFAULT {
        table.insert("ana_group", value(i64::from(ana_group.get())));
    }
    if let Some(hosts) = visible_to {
        table.insert("visible_to", value(texts(hosts.iter().map(Nqn::as_str))));
    }
    put_limits(&mut table, qos.present());
    table
}

fn put_limits(table: &mut Table, limits: impl Iterator<Item = (&'static str, u64)>) {
    for (key, limit) in limits {
        // A limit is at most 100,000,000.
        table.insert(key, value(i64::try_from(limit).unwrap_or(i64::MAX)));
    }
}
