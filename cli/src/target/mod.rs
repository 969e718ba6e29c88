//! `feedrail target`: shows and changes what a running target exports.

mod ana;
mod client;
mod config;
mod drain;
mod nvmet;
mod protect;
mod reload;
mod rename;
mod resize;
mod subsystem;
mod top;
mod trace;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use nvme_proto::Nqn;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use self::ana::Ana;
use self::client::RpcClient;
use self::config::{LoadConfig, SaveConfig};
use self::drain::Drain;
use self::protect::ProtectNamespace;
use self::reload::Reload;
use self::rename::Rename;
use self::resize::Resize;
use self::subsystem::{
    AddListener, AddReferral, AddSubsystem, RemoveListener, RemoveReferral, RemoveSubsystem,
};
use self::top::Top;
use self::trace::TraceCommands;
use crate::args::{Format, Output};
use crate::output;
use crate::size::human;

const EXAMPLES: &str = "\
Examples:
  feedrail target show --socket /run/feedrail/target.sock
  feedrail target top --socket /run/feedrail/target.sock
  feedrail target add-ns nqn.2026-01.org.example:shards /data/shard-07.tar --read-only \\
      --socket /run/feedrail/target.sock
  feedrail target remove-ns nqn.2026-01.org.example:shards 8 --socket /run/feedrail/target.sock
  feedrail target add-host nqn.2026-01.org.example:shards $(cat /etc/nvme/hostnqn) \\
      --socket /run/feedrail/target.sock
  feedrail target reload --dry-run --socket /run/feedrail/target.sock";

/// Shows and changes what a running target of this machine exports
///
/// The target has to listen on a management socket (`feedrail-target --management PATH`), which
/// only its own user and root may use. Changes last until the target ends; hosts keep their
/// connections.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TargetArgs {
    #[command(subcommand)]
    command: TargetCommand,
}

#[derive(Debug, Subcommand)]
enum TargetCommand {
    Show(Show),
    Top(Top),
    Trace(TraceCommands),
    AddNs(AddNamespace),
    RemoveNs(RemoveNamespace),
    Resize(Resize),
    Protect(ProtectNamespace),
    Rename(Rename),
    AddHost(AddHost),
    RemoveHost(RemoveHost),
    AllowAnyHost(AllowAnyHost),
    AddSubsystem(AddSubsystem),
    RemoveSubsystem(RemoveSubsystem),
    AddListener(AddListener),
    RemoveListener(RemoveListener),
    AddReferral(AddReferral),
    RemoveReferral(RemoveReferral),
    Ana(Ana),
    Drain(Drain),
    Reload(Reload),
    SaveConfig(SaveConfig),
    LoadConfig(LoadConfig),
}

/// The way to the target.
#[derive(Args, Debug)]
struct SocketArgs {
    /// Management socket of the target
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
}

/// Shows the subsystems of a target and their namespaces
#[derive(Args, Debug)]
struct Show {
    #[command(flatten)]
    socket: SocketArgs,
    #[command(flatten)]
    output: Output,
}

/// Adds a namespace, and prints its id
///
/// Hosts that are connected are told, and can use it at once.
#[derive(Args, Debug)]
struct AddNamespace {
    /// Name of the subsystem
    subnqn: Nqn,
    /// File or block device of the namespace
    #[arg(required_unless_present = "bdev", conflicts_with = "bdev")]
    path: Option<PathBuf>,
    /// A medium that was named through the management socket (bdev_malloc_create, say) instead
    #[arg(long, value_name = "NAME")]
    bdev: Option<String>,
    /// Id of the namespace; the lowest one that is free where it is left out
    #[arg(long)]
    nsid: Option<u32>,
    /// UUID of the namespace; follows from the path where it is left out
    #[arg(long)]
    uuid: Option<Uuid>,
    /// Hosts may not write
    #[arg(long, conflicts_with = "bdev")]
    read_only: bool,
    /// Bytes of a logical block: 512, 1024, 2048 or 4096
    #[arg(long, value_name = "BYTES", conflicts_with = "bdev")]
    block_size: Option<u32>,
    /// ANA group of the namespace, 1 to 16: those of a group change their state at an address
    /// together
    #[arg(long, value_name = "GROUP")]
    ana_group: Option<u32>,
    /// No host sees it before it is named: see add-host --nsid
    #[arg(long)]
    no_auto_visible: bool,
    #[command(flatten)]
    socket: SocketArgs,
}

/// Removes a namespace from a subsystem
///
/// Commands of hosts that have begun end as they would have, and what was written is on the medium
/// when this succeeds.
#[derive(Args, Debug)]
struct RemoveNamespace {
    /// Name of the subsystem
    subnqn: Nqn,
    /// Id of the namespace
    nsid: u32,
    #[command(flatten)]
    socket: SocketArgs,
}

/// A host of a subsystem.
#[derive(Args, Debug)]
struct HostArgs {
    /// Name of the subsystem
    subnqn: Nqn,
    /// Name of the host, as it says it: /etc/nvme/hostnqn
    hostnqn: Nqn,
    /// Whether it sees this namespace, which was added with --no-auto-visible, instead of whether
    /// it may use the subsystem
    #[arg(long)]
    nsid: Option<u32>,
    #[command(flatten)]
    socket: SocketArgs,
}

/// Lets a host use a subsystem, or see a namespace of it
#[derive(Args, Debug)]
struct AddHost {
    #[command(flatten)]
    host: HostArgs,
}

/// Lets a host use a subsystem no more, or hides a namespace of it
///
/// Without --nsid, its connections end, unless any host may use the subsystem. What it has written
/// stays.
#[derive(Args, Debug)]
struct RemoveHost {
    #[command(flatten)]
    host: HostArgs,
}

/// Lets any host use a subsystem, or only those that were added
///
/// Connections of hosts that may not use it any more end.
#[derive(Args, Debug)]
struct AllowAnyHost {
    /// Name of the subsystem
    subnqn: Nqn,
    /// Only hosts that were added may use it
    #[arg(long)]
    disable: bool,
    #[command(flatten)]
    socket: SocketArgs,
}

impl HostArgs {
    fn change(&self, of_subsystem: &str, of_namespace: &str) -> Result<()> {
        let mut params = json!({ "nqn": self.subnqn.as_str(), "host": self.hostnqn.as_str() });
        let mut method = of_subsystem;
        if let Some(nsid) = self.nsid {
            params["nsid"] = nsid.into();
            method = of_namespace;
        }
        RpcClient::connect(&self.socket.socket)?.call(method, params).map(drop)
    }
}

impl AllowAnyHost {
    fn run(&self) -> Result<()> {
        let params = json!({ "nqn": self.subnqn.as_str(), "allow_any_host": !self.disable });
        let mut target = RpcClient::connect(&self.socket.socket)?;
        target.call("nvmf_subsystem_allow_any_host", params)?;
        Ok(())
    }
}

impl TargetArgs {
    pub(crate) fn run(&self) -> Result<()> {
        match &self.command {
            TargetCommand::Show(show) => show.run(),
            TargetCommand::Top(top) => top.run(),
            TargetCommand::Trace(trace) => trace.run(),
            TargetCommand::AddNs(add) => add.run(),
            TargetCommand::RemoveNs(remove) => remove.run(),
            TargetCommand::Resize(resize) => resize.run(),
            TargetCommand::Protect(protect) => protect.run(),
            TargetCommand::Rename(rename) => rename.run(),
            TargetCommand::AddHost(add) => {
                add.host.change("nvmf_subsystem_add_host", "nvmf_ns_add_host")
            }
            TargetCommand::RemoveHost(remove) => {
                remove.host.change("nvmf_subsystem_remove_host", "nvmf_ns_remove_host")
            }
            TargetCommand::AllowAnyHost(allow) => allow.run(),
            TargetCommand::AddSubsystem(add) => add.run(),
            TargetCommand::RemoveSubsystem(remove) => remove.run(),
            TargetCommand::AddListener(add) => add.run(),
            TargetCommand::RemoveListener(remove) => remove.run(),
            TargetCommand::AddReferral(add) => add.run(),
            TargetCommand::RemoveReferral(remove) => remove.run(),
            TargetCommand::Ana(ana) => ana.run(),
            TargetCommand::Drain(drain) => drain.run(),
            TargetCommand::Reload(reload) => reload.run(),
            TargetCommand::SaveConfig(save) => save.run(),
            TargetCommand::LoadConfig(load) => load.run(),
        }
    }
}

impl Show {
    fn run(&self) -> Result<()> {
        let mut target = RpcClient::connect(&self.socket.socket)?;
        let subsystems = target.call("nvmf_get_subsystems", json!({}))?;
        output::print(&match self.output.output_format {
            Format::Json => output::json(&json!({ "subsystems": subsystems })),
            Format::Normal => table(&subsystems),
        })
    }
}

fn table(subsystems: &Value) -> String {
    let heading = ["Subsystem", "NSID", "Size", "Block", "Access", "Name", "UUID"];
    let rows: Vec<_> = items(subsystems).flat_map(rows).collect();
    let left_out: String = items(subsystems).filter_map(left_out).collect();
    output::table(&heading, &rows) + &left_out
}

/// A line on the files of a subsystem's directories that are no namespaces.
fn left_out(subsystem: &Value) -> Option<String> {
    let count = subsystem["left_out_files"].as_u64().filter(|count| *count > 0)?;
    let nqn = output::printable(subsystem["nqn"].as_str().unwrap_or_default());
    Some(format!("{nqn}: {count} files left out; the log says which and why\n"))
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// The namespaces of a subsystem; one line without, if it has none.
fn rows(subsystem: &Value) -> Vec<Vec<String>> {
    let text = |value: &Value| output::printable(value.as_str().unwrap_or_default());
    let row = |namespace: &Value| {
        vec![
            text(&subsystem["nqn"]),
            namespace["nsid"].to_string(),
            human(namespace["size_bytes"].as_u64().unwrap_or_default()),
            namespace["block_size"].to_string(),
            if namespace["read_only"] == true { "ro" } else { "rw" }.to_owned(),
            text(&namespace["name"]),
            text(&namespace["uuid"]),
        ]
    };
    match subsystem["namespaces"].as_array() {
        Some(namespaces) if !namespaces.is_empty() => namespaces.iter().map(row).collect(),
        _ => vec![vec![text(&subsystem["nqn"]), "none".to_owned()]],
    }
}

impl AddNamespace {
    fn run(&self) -> Result<()> {
        let mut target = RpcClient::connect(&self.socket.socket)?;
        let (bdev, is_new) = match (&self.bdev, &self.path) {
            (Some(name), _) => (name.clone(), false),
            (None, path) => self.name_file(&mut target, path.clone().unwrap_or_default())?,
        };
        let added = target.call("nvmf_subsystem_add_ns", self.params(&bdev));
        if added.is_err() && is_new {
            // The error is the namespace's.
            let _ = target.call("bdev_uring_delete", json!({ "name": bdev }));
        }
        output::print(&format!("{}\n", added?))
    }

    /// Gives a file its own path as its name, if it has none yet. The target may work in another
    /// folder.
    fn name_file(&self, target: &mut RpcClient, path: PathBuf) -> Result<(String, bool)> {
        let path = std::path::absolute(&path).with_context(|| path.display().to_string())?;
        let name = path.display().to_string();
        if let Ok(known) = target.call("bdev_get_bdevs", json!({ "name": name }))
            && known[0]["claimed"] == true
        {
            anyhow::bail!("{name} is a namespace already");
        } else {
            // One that is not used, perhaps with other properties.
            let _ = target.call("bdev_uring_delete", json!({ "name": name }));
        }
        let mut params = json!({ "name": name, "filename": path, "readonly": self.read_only });
        if let Some(bytes) = self.block_size {
            params["block_size"] = bytes.into();
        }
        target.call("bdev_uring_create", params)?;
        Ok((name, true))
    }

    fn params(&self, bdev: &str) -> Value {
        let mut namespace = Map::new();
        namespace.insert("bdev_name".into(), bdev.into());
        if let Some(nsid) = self.nsid {
            namespace.insert("nsid".into(), nsid.into());
        }
        if let Some(group) = self.ana_group {
            namespace.insert("anagrpid".into(), group.into());
        }
        if self.no_auto_visible {
            namespace.insert("no_auto_visible".into(), true.into());
        }
        if let Some(uuid) = self.uuid {
            namespace.insert("uuid".into(), uuid.to_string().into());
        }
        json!({ "nqn": self.subnqn.as_str(), "namespace": namespace })
    }
}

impl RemoveNamespace {
    fn run(&self) -> Result<()> {
        let mut target = RpcClient::connect(&self.socket.socket)?;
        let params = json!({ "nqn": self.subnqn.as_str(), "nsid": self.nsid });
        target.call("nvmf_subsystem_remove_ns", params).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subsystem_without_namespaces_is_shown() {
        let subsystems = json!([
            { "nqn": "nqn.a", "namespaces": [], "left_out_files": 2 },
            { "nqn": "nqn.b", "namespaces": [{
                "nsid": 3, "size_bytes": 4096, "block_size": 512, "read_only": true, "name": "x\u{1b}",
                "uuid": "u",
            }] },
        ]);
        let shown = table(&subsystems);
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(lines.len(), 4, "{shown}");
        assert!(lines[3].starts_with("nqn.a: 2 files left out"), "{shown}");
        assert!(lines[1].starts_with("nqn.a") && lines[1].ends_with("none"), "{shown}");
        assert!(lines[2].contains("ro") && !lines[2].contains('\u{1b}'), "{shown}");
    }
}
