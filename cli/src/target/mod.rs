//! `feedrail target`: shows and changes what a running target exports.

mod ana;
mod client;
mod config;
mod drain;
mod nvmet;
mod protect;
mod reauth;
mod reload;
mod rename;
mod resize;
mod running;
mod set_qos;
mod show;
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
use self::reauth::Reauth;
use self::reload::Reload;
use self::rename::Rename;
use self::resize::Resize;
use self::set_qos::SetQos;
use self::show::Show;
use self::subsystem::{
    AddListener, AddReferral, AddSubsystem, RemoveListener, RemoveReferral, RemoveSubsystem,
};
use self::top::Top;
use self::trace::TraceCommands;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  feedrail target show
  feedrail target show --socket /run/other-target.sock
  feedrail target top
  feedrail target add-ns nqn.2026-01.org.example:shards /data/shard-07.tar --read-only
  feedrail target remove-ns nqn.2026-01.org.example:shards 8
  feedrail target add-host nqn.2026-01.org.example:shards $(cat /etc/nvme/hostnqn)
  feedrail target reload --dry-run";

/// Shows and changes what a running target of this machine exports
///
/// The target needs a management socket (`feedrail-target --management PATH`), which only the
/// target's user and root may use. Changes last until the target ends; hosts stay connected.
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
    SetQos(SetQos),
    Rename(Rename),
    AddHost(AddHost),
    RemoveHost(RemoveHost),
    AllowAnyHost(AllowAnyHost),
    Reauth(Reauth),
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

/// Option that selects the target.
#[derive(Args, Debug)]
struct SocketArgs {
    /// Management socket of the target [default: /run/feedrail/target.sock, or that of the only
    /// running target]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Adds a namespace, and prints its NSID
///
/// Connected hosts are notified (Attached Namespace Attribute Notice), and can use it immediately.
#[derive(Args, Debug)]
struct AddNamespace {
    /// NQN of the subsystem
    subnqn: Nqn,
    /// File or block device of the namespace
    #[arg(required_unless_present = "bdev", conflicts_with = "bdev")]
    path: Option<PathBuf>,
    /// Bdev instead of a file, created through the management socket (by bdev_malloc_create, for
    /// example)
    #[arg(long, value_name = "NAME")]
    bdev: Option<String>,
    /// NSID of the namespace [default: the lowest free one]
    #[arg(long)]
    nsid: Option<u32>,
    /// UUID of the namespace [default: derived from the path]
    #[arg(long)]
    uuid: Option<Uuid>,
    /// Export the namespace read-only
    #[arg(long, conflicts_with = "bdev")]
    read_only: bool,
    /// Logical block size in bytes: 512, 1024, 2048 or 4096
    #[arg(long, value_name = "BYTES", conflicts_with = "bdev")]
    block_size: Option<u32>,
    /// ANA group of the namespace, 1 to 16; namespaces of a group share one ANA state per address
    #[arg(long, value_name = "GROUP")]
    ana_group: Option<u32>,
    /// Hide the namespace from all hosts but those added with add-host --nsid
    #[arg(long)]
    no_auto_visible: bool,
    #[command(flatten)]
    socket: SocketArgs,
}

/// Removes a namespace from a subsystem
///
/// Running commands complete normally, and written data is flushed to the medium before this
/// returns.
#[derive(Args, Debug)]
struct RemoveNamespace {
    /// NQN of the subsystem
    subnqn: Nqn,
    /// Namespace ID (NSID) in the subsystem
    nsid: u32,
    #[command(flatten)]
    socket: SocketArgs,
}

/// Subsystem, host and optional namespace of `add-host` and `remove-host`.
#[derive(Args, Debug)]
struct HostArgs {
    /// NQN of the subsystem
    subnqn: Nqn,
    /// Host NQN, as in the host's /etc/nvme/hostnqn
    hostnqn: Nqn,
    /// Change the visibility of this namespace, which was added with --no-auto-visible, instead of
    /// access to the subsystem
    #[arg(long)]
    nsid: Option<u32>,
    #[command(flatten)]
    socket: SocketArgs,
}

/// Allows a host to connect to a subsystem, or attaches a namespace to the host
///
/// With --dhchap-key the host has to authenticate (DH-HMAC-CHAP).
#[derive(Args, Debug)]
struct AddHost {
    /// File with the key of the host (made by `feedrail gen-dhchap-key`)
    #[arg(long, value_name = "FILE", conflicts_with = "nsid")]
    dhchap_key: Option<PathBuf>,
    /// File with the key with which the target authenticates if the host asks for that
    #[arg(long, value_name = "FILE", requires = "dhchap_key")]
    dhchap_ctrl_key: Option<PathBuf>,
    #[command(flatten)]
    host: HostArgs,
}

/// Removes a host from a subsystem, or detaches a namespace from the host
///
/// Without --nsid, the host is disconnected, unless any host may connect. Data that it has written
/// stays.
#[derive(Args, Debug)]
struct RemoveHost {
    #[command(flatten)]
    host: HostArgs,
}

/// Allows any host to connect to a subsystem, or only those that were added
///
/// Hosts that are no longer allowed are disconnected.
#[derive(Args, Debug)]
struct AllowAnyHost {
    /// NQN of the subsystem
    subnqn: Nqn,
    /// Allow only hosts that were added
    #[arg(long)]
    disable: bool,
    #[command(flatten)]
    socket: SocketArgs,
}

impl AddHost {
    fn run(&self) -> Result<()> {
        let mut keys = Map::new();
        let files = [("dhchap_key", &self.dhchap_key), ("dhchap_ctrlr_key", &self.dhchap_ctrl_key)];
        for (param, path) in files {
            if let Some(path) = path {
                let path = std::path::absolute(path)?;
                let path = path.to_str().context("the path of a key file is not UTF-8")?;
                keys.insert(param.to_owned(), path.into());
            }
        }
        self.host.change("nvmf_subsystem_add_host", "nvmf_ns_add_host", keys)
    }
}

impl HostArgs {
    fn change(
        &self,
        of_subsystem: &str,
        of_namespace: &str,
        mut params: Map<String, Value>,
    ) -> Result<()> {
        params.insert("nqn".to_owned(), self.subnqn.as_str().into());
        params.insert("host".to_owned(), self.hostnqn.as_str().into());
        let mut method = of_subsystem;
        if let Some(nsid) = self.nsid {
            params.insert("nsid".to_owned(), nsid.into());
            method = of_namespace;
        }
        let params = Value::Object(params);
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
            TargetCommand::SetQos(set) => set.run(),
            TargetCommand::Rename(rename) => rename.run(),
            TargetCommand::AddHost(add) => add.run(),
            TargetCommand::RemoveHost(RemoveHost { host }) => {
                host.change("nvmf_subsystem_remove_host", "nvmf_ns_remove_host", Map::new())
            }
            TargetCommand::AllowAnyHost(allow) => allow.run(),
            TargetCommand::Reauth(reauth) => reauth.run(),
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

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
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
            // The error that is returned is that of adding the namespace.
            let _ = target.call("bdev_uring_delete", json!({ "name": bdev }));
        }
        output::print(&format!("{}\n", added?))
    }

    /// Returns the name of the bdev for a file, which is its absolute path, and whether this call
    /// created the bdev.
    fn name_file(&self, target: &mut RpcClient, path: PathBuf) -> Result<(String, bool)> {
        let path = std::path::absolute(&path).with_context(|| path.display().to_string())?;
        let name = path.display().to_string();
        if let Ok(known) = target.call("bdev_get_bdevs", json!({ "name": name }))
            && known[0]["claimed"] == true
        {
            anyhow::bail!("{name} is a namespace already");
        } else {
            // Deletes an unused bdev of this name, which may have other properties.
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
