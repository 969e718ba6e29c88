//! `feedrail target reload`: makes the target read its configuration file again.

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::set_qos::in_words;
use super::{RpcClient, SocketArgs, items};
use crate::options::{Format, Output};
use crate::output;
use crate::size::human;

const EXAMPLES: &str = "\
Examples:
  feedrail target reload --dry-run --socket /run/feedrail/target.sock
  feedrail target reload --socket /run/feedrail/target.sock";

/// Applies a target's changed configuration file, and prints the changes
///
/// Subsystems, their addresses, namespaces, files of directories and allowed hosts become those of
/// the file; changes made at run time that are not in the file are undone. The reload is atomic:
/// all changes are made, or none. Hosts stay connected. Other keys are read at start only; a file
/// that changes them is rejected.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Reload {
    /// Print the changes without making them
    #[arg(short, long)]
    dry_run: bool,
    #[command(flatten)]
    socket: SocketArgs,
    #[command(flatten)]
    output: Output,
}

impl Reload {
    pub(super) fn run(&self) -> Result<()> {
        let mut target = RpcClient::connect(&self.socket.socket)?;
        let report = target.call("feedrail_reload_config", json!({ "dry_run": self.dry_run }))?;
        for warning in items(&report["warnings"]) {
            let warning = output::printable(warning.as_str().unwrap_or_default());
            output::note(format_args!("feedrail: warning: {warning}"));
        }
        output::print(&match self.output.output_format {
            Format::Json => output::json(&report),
            Format::Normal => table(&report),
        })
    }
}

fn table(report: &Value) -> String {
    let rows: Vec<_> = items(&report["changes"]).map(row).collect();
    match rows.is_empty() {
        true => "nothing to change\n".to_owned(),
        false => output::table(&["Change", "Subsystem", "NSID", "Name", "Detail"], &rows),
    }
}

fn row(change: &Value) -> Vec<String> {
    let text = |key: &str| output::printable(change[key].as_str().unwrap_or_default());
    let size = || human(change["size_bytes"].as_u64().unwrap_or_default());
    let (nsid, name, detail) = match change["change"].as_str() {
        Some("add_ns") => (change["nsid"].to_string(), text("name"), size()),
        Some("remove_ns") => (change["nsid"].to_string(), text("name"), String::new()),
        Some("replace_ns") => {
            (change["nsid"].to_string(), text("name"), format!("{}; {}", text("reason"), size()))
        }
        Some("allow_any_host") => {
            let detail = if change["allow_any_host"] == true { "yes" } else { "no" };
            (String::new(), String::new(), detail.to_owned())
        }
        Some("limit_ns") => (change["nsid"].to_string(), text("name"), in_words(&change["limits"])),
        Some("limit_host" | "limit_each_host") => {
            (String::new(), text("host"), in_words(&change["limits"]))
        }
        Some("add_listener" | "remove_listener") => (String::new(), String::new(), text("address")),
        _ => (String::new(), text("host"), String::new()),
    };
    let kind = text("change").replace('_', "-");
    vec![kind, text("nqn"), nsid, name, detail]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_has_a_line() {
        let report = json!({ "changes": [
            { "change": "add_ns", "nqn": "nqn.a", "nsid": 3, "name": "c", "size_bytes": 2048 },
            { "change": "remove_ns", "nqn": "nqn.a", "nsid": 4, "name": "d" },
            { "change": "replace_ns", "nqn": "nqn.a", "nsid": 5, "name": "e", "size_bytes": 512,
              "reason": "why" },
            { "change": "add_host", "nqn": "nqn.a", "host": "nqn.h\u{7}" },
            { "change": "allow_any_host", "nqn": "nqn.a", "allow_any_host": false },
            { "change": "add_subsystem", "nqn": "nqn.b" },
            { "change": "add_listener", "nqn": "nqn.b", "address": "192.0.2.1:7" },
            { "change": "limit_ns", "nqn": "nqn.b", "nsid": 6, "name": "f",
              "limits": { "r_mbytes_per_sec": 9 } },
            { "change": "limit_host", "nqn": "nqn.b", "host": "nqn.h", "limits": {} },
        ] });
        let shown = table(&report);
        let lines: Vec<Vec<&str>> =
            shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["add-ns", "nqn.a", "3", "c", "2.00", "KiB"]);
        assert_eq!(lines[2], ["remove-ns", "nqn.a", "4", "d"]);
        assert_eq!(lines[3], ["replace-ns", "nqn.a", "5", "e", "why;", "512", "B"]);
        assert_eq!(lines[4], ["add-host", "nqn.a", "nqn.h\\u{7}"]);
        assert_eq!(lines[5], ["allow-any-host", "nqn.a", "no"]);
        assert_eq!(lines[6], ["add-subsystem", "nqn.b"]);
        assert_eq!(lines[7], ["add-listener", "nqn.b", "192.0.2.1:7"]);
        assert_eq!(lines[8], ["limit-ns", "nqn.b", "6", "f", "9", "MiB/s", "read"]);
        assert_eq!(lines[9], ["limit-host", "nqn.b", "nqn.h", "-"]);
        assert_eq!(table(&json!({ "changes": [] })), "nothing to change\n");
    }
}
