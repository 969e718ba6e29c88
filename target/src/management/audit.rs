//! Audit log: one line for each call that may change something.

use std::borrow::Cow;

use rdma::LocalPeer;
use serde_json::{Value, json};

use super::rpc::{Params, RpcError};
use super::spdk_framework;
use crate::log_level::AUDIT;

/// Most bytes of a text field; longer texts are truncated.
const MAX_TEXT_BYTES: usize = 1024;
/// Methods that change nothing, although their names lack `_get_`.
const READING: [&str; 2] = ["feedrail_trace_commands", "framework_wait_init"];

/// Call that may change something, recorded before it is executed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AuditedCall {
    method: String,
    /// Parameters in JSON, truncated to [`MAX_TEXT_BYTES`].
    params: String,
}

impl AuditedCall {
    /// Returns `None` if the method only reads or has no effect. Unknown methods are recorded.
    pub(super) fn of(method: &str, params: &Params) -> Option<Self> {
        let is_dry_run =
            method == "feedrail_reload_config" && params.get("dry_run") == Some(&json!(true));
        let is_foreign = spdk_framework::names_without_effect().any(|name| name == method);
        if method.contains("_get_") || READING.contains(&method) || is_dry_run || is_foreign {
            return None;
        }
        let params = serde_json::to_string(params).unwrap_or_default();
        Some(Self { method: cut(method), params: cut(&params) })
    }

    /// Writes the line to the log. Texts are quoted, so that none of them looks like another field.
    pub(super) fn log(&self, peer: LocalPeer, result: &Result<Value, RpcError>) {
        let LocalPeer { pid, uid, .. } = peer;
        let Self { method, params } = self;
        let (method, params, result) = (method.as_str(), params.as_str(), outcome(result));
        let result = result.as_str();
        tracing::info!(target: AUDIT, uid, pid, method, params, result, "audit");
    }
}

/// Writes the line of a call that is part of the method `of` (`feedrail_load_config`).
pub(super) fn log_part(of: &str, method: &str, params: &Params, result: &Result<Value, RpcError>) {
    let params = cut(&serde_json::to_string(params).unwrap_or_default());
    let (params, result) = (params.as_str(), outcome(result));
    let result = result.as_str();
    tracing::info!(target: AUDIT, of, method, params, result, "audit");
}

fn outcome(result: &Result<Value, RpcError>) -> String {
    match result {
        Ok(value) => cut(&value.to_string()),
        Err(RpcError { code, message }) => cut(&format!("error {code}: {message}")),
    }
}

/// Returns the text without secrets, or its beginning with the number of bytes that are left out.
fn cut(text: &str) -> String {
    let text = &*without_secrets(text);
    if text.len() <= MAX_TEXT_BYTES {
        return text.to_owned();
    }
    let kept = text.floor_char_boundary(MAX_TEXT_BYTES);
    format!("{}... ({} bytes more)", &text[..kept], text.len() - kept)
}

/// Replaces secrets that a client has given by mistake instead of the name of a key.
fn without_secrets(text: &str) -> Cow<'_, str> {
    const PREFIX: &str = "DHHC-1:";
    if !text.contains(PREFIX) {
        return text.into();
    }
    let mut parts = text.split(PREFIX);
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_of_secret = |c: char| c.is_ascii_alphanumeric() || "+/=:".contains(c);
        kept.push_str("[a secret]");
        kept.push_str(part.trim_start_matches(is_of_secret));
    }
    kept.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::management::method::method_names;

    fn params(value: Value) -> Params {
        let Value::Object(params) = value else { panic!("an object") };
        params
    }

    #[test]
    fn only_methods_that_read_are_left_out() {
        let reading: Vec<_> = method_names()
            .filter(|method| AuditedCall::of(method, &Params::new()).is_none())
            .collect();
        assert_eq!(
            reading,
            [
                "bdev_get_bdevs",
                "bdev_get_iostat",
                "feedrail_get_config_losses",
                "feedrail_get_config_toml",
                "feedrail_get_metrics_address",
                "feedrail_trace_commands",
                "framework_get_config",
                "framework_get_reactors",
                "framework_get_subsystems",
                "framework_wait_init",
                "keyring_get_keys",
                "log_get_flags",
                "log_get_level",
                "log_get_print_level",
                "nvmf_discovery_get_referrals",
                "nvmf_get_stats",
                "nvmf_get_subsystems",
                "nvmf_get_transports",
                "nvmf_subsystem_get_controllers",
                "nvmf_subsystem_get_listeners",
                "nvmf_subsystem_get_qpairs",
                "rpc_get_methods",
                "spdk_get_version",
            ]
        );
        let reload = |dry_run| params(json!({ "dry_run": dry_run }));
        assert_eq!(AuditedCall::of("feedrail_reload_config", &reload(true)), None);
        assert!(AuditedCall::of("feedrail_reload_config", &reload(false)).is_some());
        assert_eq!(AuditedCall::of("sock_set_default_impl", &Params::new()), None);
    }

    #[test]
    fn secrets_are_left_out() {
        let given = params(json!({ "dhchap_key": "DHHC-1:01:c2VjcmV0+/8=:", "host": "h" }));
        let call = AuditedCall::of("m", &given).expect("it may change something");
        assert_eq!(call.params, r#"{"dhchap_key":"[a secret]","host":"h"}"#);
    }

    #[test]
    fn texts_of_clients_are_bounded() {
        let call = AuditedCall::of(&"m".repeat(9000), &params(json!({ "a": "ü".repeat(9000) })));
        let AuditedCall { method, params } = call.expect("it may change something");
        for text in [method, params, outcome(&Err(RpcError::internal("e".repeat(9000))))] {
            assert!(text.len() < MAX_TEXT_BYTES + 32 && text.ends_with(" bytes more)"), "{text}");
        }
        assert_eq!(outcome(&Ok(json!(true))), "true");
        let refused = outcome(&Err(RpcError::no_method()));
        assert_eq!(refused, "error -32601: Method not found");
    }
}
