//! `feedrail target save-config` and `load-config`: what a target exports as calls of its methods,
//! in the format of SPDK's `rpc.py save_config`.

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde_json::{Value, json};

use super::{RpcClient, SocketArgs, items};
use crate::output;

/// Prints what a target exports, as JSON that load-config takes
///
/// Bytes of media in memory are not saved. rpc.py load_config of SPDK takes it, too.
#[derive(Args, Debug)]
pub(super) struct SaveConfig {
    #[command(flatten)]
    socket: SocketArgs,
}

/// Has a target export what was saved, beside what it exports already
///
/// The first call that the target refuses ends it; what was loaded before stays.
#[derive(Args, Debug)]
pub(super) struct LoadConfig {
    /// The file that save-config has printed, or - for standard input
    file: PathBuf,
    #[command(flatten)]
    socket: SocketArgs,
}

impl SaveConfig {
    pub(super) fn run(&self) -> Result<()> {
        let mut target = RpcClient::connect(&self.socket.socket)?;
        let mut saved = Vec::new();
        for part in items(&target.call("framework_get_subsystems", json!({}))?) {
            let name = &part["subsystem"];
            let config = target.call("framework_get_config", json!({ "name": name }))?;
            saved.push(json!({ "subsystem": name, "config": config }));
        }
        output::print(&output::json(&json!({ "subsystems": saved })))
    }
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
        let mut target = RpcClient::connect(&self.socket.socket)?;
        for call in items(&saved["subsystems"]).flat_map(|part| items(&part["config"])) {
            let method = call["method"].as_str().unwrap_or_default();
            let params = call.get("params").cloned().unwrap_or_else(|| json!({}));
            target.call(method, params.clone()).with_context(|| format!("{method} {params}"))?;
        }
        Ok(())
    }
}
