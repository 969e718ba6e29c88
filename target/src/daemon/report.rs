//! JSON lines on standard output.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};

use super::lines::LineWriter;
use crate::inventory::Inventory;
use crate::target::Target;

/// Writer of the JSON lines on standard output.
pub(super) struct StdoutReport {
    lines: LineWriter,
}

impl StdoutReport {
    pub(super) fn start() -> std::io::Result<Self> {
        let notice = |lines: u64| format!("{}\n", json!({ "event": "dropped", "lines": lines }));
        let lines = LineWriter::to(std::io::stdout(), "feedrail-report", Box::new(notice))?;
        Ok(Self { lines })
    }

    /// Waits until all lines are written, or `timeout` has passed.
    pub(super) fn flush(&self, timeout: Duration) {
        self.lines.flush(timeout);
    }

    /// Writes `listening` for each address and each subsystem served there, and `not_listening` for
    /// each address that cannot be served.
    pub(super) fn listening(&self, target: &Target) {
        for failed in target.not_listening() {
            tracing::error!(address = %failed.address, "not listening: {}", failed.reason);
            self.say(&json!({
                "event": "not_listening",
                "address": failed.address.to_string(),
                "reason": failed.reason,
            }));
        }
        for listening in target.listening() {
            let port = &listening.port;
            tracing::info!(
                address = %listening.address, provider = listening.provider, reason = listening.reason,
                shared_memory = listening.shared_memory, "listening"
            );
            let served: Vec<_> = port.subsystems().into_iter().map(Some).collect();
            // An address without subsystems has a line too; they may be added at run time.
            let none = [None];
            for subsystem in if served.is_empty() { &none[..] } else { &served[..] } {
                let subsystem = subsystem.as_ref();
                self.say(&json!({
                    "event": "listening",
                    "address": listening.address.to_string(),
                    "provider": listening.provider,
                    "reason": listening.reason,
                    "shared_memory": listening.shared_memory,
                    "nqn": subsystem.map(|subsystem| subsystem.nqn.to_string()),
                    "namespaces": subsystem.map_or(0, |subsystem| subsystem.namespaces().len()),
                    "port_id": port.id,
                }));
            }
        }
    }

    /// Writes `ready`, the last line of the start, with the address of the metrics page.
    pub(super) fn ready(&self, metrics: Option<SocketAddr>) {
        let metrics = metrics.map(|address| address.to_string());
        self.say(&json!({ "event": "ready", "metrics": metrics }));
    }

    /// Writes `checked` for each subsystem of a configuration without errors.
    pub(super) fn checked(&self, inventory: &Inventory) {
        for subsystem in inventory.subsystems() {
            self.say(&json!({
                "event": "checked",
                "nqn": subsystem.nqn.as_str(),
                "namespaces": subsystem.namespaces().len(),
            }));
        }
    }

    /// Writes `stats` with the present values of all counters.
    pub(super) fn stats(&self, target: &Target) {
        self.write(target.stats().to_json_line());
    }

    fn say(&self, line: &Value) {
        self.write(line.to_string());
    }

    fn write(&self, mut line: String) {
        line.push('\n');
        self.lines.push(line.into_bytes());
    }
}
