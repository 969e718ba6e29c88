//! The JSON lines on standard output.

use std::io::Write as _;

use serde_json::{Value, json};

use crate::registry::Registry;
use crate::target::Target;

/// One line for each address and each subsystem that is served there, and one for each address that is not.
pub(super) fn listening(target: &Target) {
    for failed in target.not_listening() {
        tracing::error!(address = %failed.address, "not listening: {}", failed.reason);
        say(&json!({
            "event": "not_listening",
            "address": failed.address.to_string(),
            "reason": failed.reason,
        }));
    }
    for listening in target.listening() {
        let port = &listening.port;
        tracing::info!(
            address = %listening.address, provider = listening.provider, reason = listening.reason,
            "listening"
        );
        for subsystem in port.subsystems() {
            say(&json!({
                "event": "listening",
                "address": listening.address.to_string(),
                "provider": listening.provider,
                "reason": listening.reason,
                "nqn": subsystem.nqn.as_str(),
                "namespaces": subsystem.namespaces().len(),
                "port_id": port.id,
            }));
        }
    }
}

/// One line for each subsystem that could be exported.
pub(super) fn checked(registry: &Registry) {
    for subsystem in registry.subsystems() {
        say(&json!({
            "event": "checked",
            "nqn": subsystem.nqn.as_str(),
            "namespaces": subsystem.namespaces().len(),
        }));
    }
}

/// The counters.
pub(super) fn stats(target: &Target) {
    write(&target.stats().to_json_line());
}

fn say(line: &Value) {
    write(&line.to_string());
}

/// A reader that went away is no reason to stop serving.
fn write(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
