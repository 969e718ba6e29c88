//! `feedrail target save-config` and `load-config`: the exports of a target, as calls of its
//! methods in the format of SPDK's `rpc.py save_config`, as a configuration file, or in the format
//! of `nvmetcli`.

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::nvmet::{Converted, KeyFile, NvmetConfig};
use super::{RpcClient, SocketArgs, items};
use crate::options::{Format, Output};
use crate::output;

const SAVE_EXAMPLES: &str = "\
Examples:
  feedrail target save-config --socket /run/feedrail/target.sock > saved.json
  feedrail target save-config --format toml --socket /run/feedrail/target.sock > new.toml
  feedrail target save-config --format nvmetcli --socket /run/feedrail/target.sock > nvmet.json";

const LOAD_EXAMPLES: &str = "\
Examples:
  feedrail target load-config saved.json --socket /run/feedrail/target.sock
  feedrail target load-config /etc/nvmet/config.json --socket /run/feedrail/target.sock";

/// Prints the configuration that a target exports now
///
/// Settings that a format cannot express are listed on standard error. The data of namespaces in
/// memory is not saved.
#[derive(Args, Debug)]
#[command(after_help = SAVE_EXAMPLES)]
pub(super) struct SaveConfig {
    /// Format of the output
    #[arg(long, value_enum, default_value_t)]
    format: SavedFormat,
    #[command(flatten)]
    socket: SocketArgs,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum SavedFormat {
    /// JSON for load-config, and for rpc.py load_config of SPDK
    #[default]
    Spdk,
    /// The target's configuration file (TOML), with the changes made at run time
    Toml,
    /// JSON for nvmetcli restore, with which the Linux kernel target exports the same
    Nvmetcli,
}

/// Adds the exports of a saved configuration to those of a running target
///
/// Files written by nvmetcli save are accepted too. If the target rejects a call, the earlier calls
/// are undone. Existing exports stay, so loading a file again changes nothing.
#[derive(Args, Debug)]
#[command(after_help = LOAD_EXAMPLES)]
pub(super) struct LoadConfig {
    /// File written by save-config or nvmetcli, or - for standard input
    file: PathBuf,
    /// Folder for the keys of hosts in a file of nvmetcli, written to files with mode
    /// 0600
    #[arg(long, value_name = "FOLDER")]
    keys_dir: Option<PathBuf>,
    #[command(flatten)]
    socket: SocketArgs,
    #[command(flatten)]
    output: Output,
}

impl SaveConfig {
    pub(super) fn run(&self) -> Result<()> {
        let mut target = RpcClient::connect(&self.socket.socket)?;
        match self.format {
            SavedFormat::Spdk => output::print(&output::json(&saved_calls(&mut target)?)),
            SavedFormat::Nvmetcli => {
                let saved = saved_calls(&mut target)?;
                let Converted { config, warnings, .. } = NvmetConfig::of_calls(calls(&saved));
                warnings.iter().for_each(|warning| warn(warning));
                output::print(&output::json(&serde_json::to_value(config)?))
            }
            SavedFormat::Toml => {
                let saved = target.call("feedrail_get_config_toml", json!({}))?;
                let warnings = items(&saved["warnings"]).filter_map(Value::as_str);
                warnings.for_each(warn);
                output::print(saved["toml"].as_str().unwrap_or_default())
            }
        }
    }
}

fn saved_calls(target: &mut RpcClient) -> Result<Value> {
    let mut saved = Vec::new();
    for part in items(&target.call("framework_get_subsystems", json!({}))?) {
        let name = &part["subsystem"];
        let config = target.call("framework_get_config", json!({ "name": name }))?;
        saved.push(json!({ "subsystem": name, "config": config }));
    }
    let losses = target.call("feedrail_get_config_losses", json!({}))?;
    items(&losses).filter_map(Value::as_str).for_each(warn);
    Ok(json!({ "subsystems": saved }))
}

fn warn(warning: &str) {
    output::note(format_args!("feedrail: warning: {}", output::printable(warning)));
}

/// Iterates over the method calls of a saved configuration.
fn calls(saved: &Value) -> impl Iterator<Item = &Value> {
    items(&saved["subsystems"]).flat_map(|part| items(&part["config"]))
}

impl LoadConfig {
    pub(super) fn run(&self) -> Result<()> {
        let named = || self.file.display().to_string();
        let text = match self.file.as_os_str() == "-" {
            true => {
                let mut text = String::new();
                std::io::stdin().read_to_string(&mut text).map(|_| text)
            }
            false => std::fs::read_to_string(&self.file),
        };
        let saved: Value = serde_json::from_str(&text.with_context(named)?).with_context(named)?;
        ensure!(saved["subsystems"].is_array(), "{}: has no list \"subsystems\"", named());
        let calls: Vec<Value> = match is_of_kernel(&saved) {
            false => calls(&saved).cloned().collect(),
            true => {
                let config = NvmetConfig::deserialize(&saved).with_context(named)?;
                let folder = self.keys_dir.as_ref().map(std::path::absolute).transpose()?;
                let Converted { config, warnings, key_files } =
                    config.into_calls(folder.as_deref());
                warnings.iter().for_each(|warning| warn(warning));
                key_files.iter().try_for_each(write_key)?;
                config
            }
        };
        let mut target = RpcClient::connect(&self.socket.socket)?;
        let loaded = target.call("feedrail_load_config", json!({ "calls": calls }))?;
        for method in items(&loaded["skipped"]).filter_map(Value::as_str) {
            warn(&format!("{method} is skipped: it has no effect on this target"));
        }
        output::print(&match self.output.output_format {
            Format::Json => output::json(&loaded),
            Format::Normal => match (&loaded["made"], &loaded["unchanged"]) {
                (made, unchanged) if *made == 0 => {
                    format!("nothing to change: all {unchanged} calls are in effect\n")
                }
                (made, unchanged) if *unchanged == 0 => format!("{made} calls made\n"),
                (made, unchanged) => {
                    format!("{made} calls made; {unchanged} were in effect already\n")
                }
            },
        })
    }
}

/// Writes a key to a new file that only its owner may read, unless a file has it already.
fn write_key(KeyFile { path, key }: &KeyFile) -> Result<()> {
    if std::fs::read_to_string(path).is_ok_and(|text| text.trim() == key) {
        return Ok(());
    }
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| writeln!(file, "{key}"));
    written.with_context(|| path.display().to_string())
}

/// Whether a configuration is in the format of nvmetcli, in which subsystems have an `nqn`.
fn is_of_kernel(saved: &Value) -> bool {
    saved.get("ports").is_some() || items(&saved["subsystems"]).any(|one| one["nqn"].is_string())
}
