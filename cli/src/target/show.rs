//! `feedrail target show`: prints the subsystems of a target, their namespaces, addresses and
//! hosts.

use std::collections::BTreeSet;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::client::RpcClient;
use super::{SocketArgs, items};
use crate::options::{Format, Output};
use crate::output;
use crate::size::human;

/// Shows the subsystems of a target: their namespaces, addresses and hosts
#[derive(Args, Debug)]
pub(super) struct Show {
    #[command(flatten)]
    socket: SocketArgs,
    #[command(flatten)]
    output: Output,
}

impl Show {
    pub(super) fn run(&self) -> Result<()> {
        let mut target = RpcClient::connect(&self.socket.socket)?;
        let subsystems = target.call("nvmf_get_subsystems", json!({}))?;
        let metrics = target.call("feedrail_get_metrics_address", json!({}))?;
        output::print(&match self.output.output_format {
            Format::Json => output::json(&json!({ "subsystems": subsystems, "metrics": metrics })),
            Format::Normal => text(&subsystems) + &status_page(&metrics),
        })
    }
}

fn text(subsystems: &Value) -> String {
    let heading = [
        "Subsystem",
        "NSID",
        "Size",
        "Block",
        "Access",
        "Name",
        "UUID",
        "Visible to",
        "Description",
    ];
    let rows: Vec<_> = items(subsystems).flat_map(namespaces).collect();
    let namespaces = output::table(&heading, &rows);
    let rows: Vec<_> = items(subsystems).map(access).collect();
    let access = output::table(&["Subsystem", "Addresses", "Hosts"], &rows);
    let left_out: String = items(subsystems).filter_map(left_out).collect();
    format!("{namespaces}\n{access}{}{left_out}", not_listening(subsystems))
}

fn status_page(metrics: &Value) -> String {
    metrics
        .as_str()
        .map(|address| format!("\nstatus page: http://{address}/\n"))
        .unwrap_or_default()
}

fn printed(value: &Value) -> String {
    output::printable(value.as_str().unwrap_or_default())
}

/// Table rows of a subsystem's namespaces; without namespaces one row with the NQN alone.
fn namespaces(subsystem: &Value) -> Vec<Vec<String>> {
    let row = |namespace: &Value| {
        vec![
            printed(&subsystem["nqn"]),
            namespace["nsid"].to_string(),
            human(namespace["size_bytes"].as_u64().unwrap_or_default()),
            namespace["block_size"].to_string(),
            if namespace["read_only"] == true { "ro" } else { "rw" }.to_owned(),
            printed(&namespace["name"]),
            printed(&namespace["uuid"]),
            if namespace["hosts"].is_null() { "all".into() } else { hosts(&namespace["hosts"]) },
            printed(&namespace["description"]),
        ]
    };
    match subsystem["namespaces"].as_array() {
        Some(namespaces) if !namespaces.is_empty() => namespaces.iter().map(row).collect(),
        _ => vec![vec![printed(&subsystem["nqn"]), "none".to_owned()]],
    }
}

/// Table row of a subsystem's addresses and permitted hosts.
fn access(subsystem: &Value) -> Vec<String> {
    let any = subsystem["allow_any_host"] == true;
    vec![
        printed(&subsystem["nqn"]),
        joined(items(&subsystem["listen_addresses"]).map(address)),
        if any { "any".to_owned() } else { hosts(&subsystem["hosts"]) },
    ]
}

fn address(listener: &Value) -> String {
    let (host, port) = (printed(&listener["traddr"]), printed(&listener["trsvcid"]));
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Line about each address on which the target does not listen, with the reason.
fn not_listening(subsystems: &Value) -> String {
    let listeners = items(subsystems).flat_map(|subsystem| items(&subsystem["listeners"]));
    let failed = listeners.filter(|listener| listener["state"] == "not_listening");
    let line = |listener: &Value| {
        let [address, reason] = ["address", "reason"].map(|key| printed(&listener[key]));
        format!("{address}: not listening: {reason}\n")
    };
    // Subsystems share ports.
    let lines: BTreeSet<_> = failed.map(line).collect();
    lines.into_iter().collect()
}

fn hosts(list: &Value) -> String {
    joined(items(list).map(|host| printed(&host["nqn"])))
}

fn joined(words: impl Iterator<Item = String>) -> String {
    let words: Vec<_> = words.collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

/// Line about the files in a subsystem's directories that are not exported; `None` if all are.
fn left_out(subsystem: &Value) -> Option<String> {
    let count = subsystem["left_out_files"].as_u64().filter(|count| *count > 0)?;
    let nqn = printed(&subsystem["nqn"]);
    Some(format!("{nqn}: {count} files left out; the log says which and why\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsystems_are_shown_with_addresses_and_hosts() {
        let subsystems = json!([
            { "nqn": "nqn.a", "namespaces": [], "left_out_files": 2, "allow_any_host": true,
              "hosts": [{ "nqn": "nqn.h" }], "listeners": [
                { "address": "192.0.2.1:4420", "state": "not_listening", "reason": "in use" },
                { "address": "[fd00::1]:4421", "state": "listening", "provider": "soft" },
              ], "listen_addresses": [
                { "traddr": "192.0.2.1", "trsvcid": "4420" }, { "traddr": "fd00::1", "trsvcid": "4421" },
            ] },
            { "nqn": "nqn.b", "allow_any_host": false, "hosts": [{ "nqn": "nqn.h" }, { "nqn": "nqn.i" }],
              "listen_addresses": [], "namespaces": [
                { "nsid": 3, "size_bytes": 4096, "block_size": 512, "read_only": true, "name": "x\u{1b}", "uuid": "u" },
                { "nsid": 4, "size_bytes": 4096, "block_size": 512, "name": "y", "uuid": "v", "hosts": [{ "nqn": "nqn.h" }] },
                { "nsid": 5, "size_bytes": 4096, "block_size": 512, "name": "z", "uuid": "w", "hosts": [] },
            ] },
        ]);
        let shown = text(&subsystems);
        let lines: Vec<Vec<_>> = shown
            .lines()
            .map(|line| line.split("  ").filter(|cell| !cell.is_empty()).collect())
            .collect();
        let cells = |line: usize| lines[line].iter().map(|cell| cell.trim()).collect::<Vec<_>>();
        assert_eq!(cells(1), ["nqn.a", "none"], "{shown}");
        assert_eq!(cells(2)[4..], ["ro", "x\\u{1b}", "u", "all"], "{shown}");
        assert_eq!(cells(3)[4..], ["rw", "y", "v", "nqn.h"], "{shown}");
        assert_eq!(cells(4).last(), Some(&"none"), "{shown}");
        assert_eq!(cells(7), ["nqn.a", "192.0.2.1:4420, [fd00::1]:4421", "any"], "{shown}");
        assert_eq!(cells(8), ["nqn.b", "none", "nqn.h, nqn.i"], "{shown}");
        assert_eq!(lines[9][0], "192.0.2.1:4420: not listening: in use");
        assert_eq!(lines[10][0], "nqn.a: 2 files left out; the log says which and why");
    }
}
