//! Result of the method `feedrail_reload_config`.

use serde_json::{Value, json};

use crate::inventory::allowed_host::HostsChange;
use crate::inventory::reload::{ExportChange, ExportChangeKind, ReloadReport, Replacement};

pub(super) fn describe_reload(report: &ReloadReport, dry_run: bool) -> Value {
    json!({
        "dry_run": dry_run,
        "changes": report.changes.iter().map(describe_change).collect::<Value>(),
        "warnings": report.warnings,
    })
}

fn describe_change(change: &ExportChange) -> Value {
    let mut described = match &change.kind {
        ExportChangeKind::Added { nsid, name, size_bytes } => {
            json!({ "change": "add_ns", "nsid": nsid.0, "name": name, "size_bytes": size_bytes })
        }
        ExportChangeKind::Removed { nsid, name } => {
            json!({ "change": "remove_ns", "nsid": nsid.0, "name": name })
        }
        ExportChangeKind::Replaced { nsid, name, size_bytes, why } => json!({
            "change": "replace_ns", "nsid": nsid.0, "name": name, "size_bytes": size_bytes,
            "reason": reason(*why),
        }),
        ExportChangeKind::Host(HostsChange::Add(host)) => {
            json!({ "change": "add_host", "host": host.as_str() })
        }
        ExportChangeKind::Host(HostsChange::Remove(host)) => {
            json!({ "change": "remove_host", "host": host.as_str() })
        }
        ExportChangeKind::SubsystemAdded => json!({ "change": "add_subsystem" }),
        ExportChangeKind::SubsystemRemoved => json!({ "change": "remove_subsystem" }),
        ExportChangeKind::ListenerAdded(address) => {
            json!({ "change": "add_listener", "address": address.to_string() })
        }
        ExportChangeKind::ListenerRemoved(address) => {
            json!({ "change": "remove_listener", "address": address.to_string() })
        }
        ExportChangeKind::Host(HostsChange::AllowAny(any)) => {
            json!({ "change": "allow_any_host", "allow_any_host": any })
        }
    };
    described["nqn"] = change.nqn.as_str().into();
    described
}

fn reason(why: Replacement) -> &'static str {
    match why {
        Replacement::Keys => "its keys have changed",
        Replacement::File => "another file has its path",
        Replacement::Size => "its file has another size",
    }
}
