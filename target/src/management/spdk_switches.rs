//! Parameters with which SPDK's `rpc.py` switches things on that this target does not offer. It
//! sends them as false where they are not asked for.

use serde_json::Value;

use super::method::Params;
use super::rpc::RpcError;

/// The switches of each method; those of `nvmf_subsystem_add_ns` are in its `namespace`.
const SWITCHES: [(&str, &[&str]); 9] = [
    ("bdev_aio_create", &["fallocate", "nowait"]),
    ("bdev_get_iostat", &["per_channel"]),
    ("bdev_malloc_create", &["md_interleave", "dif_is_head_of_md"]),
    ("bdev_null_create", &["dif_is_head_of_md"]),
    ("framework_get_config", &["with_batches"]),
    ("nvmf_create_subsystem", &["passthrough", "enable_nssr"]),
    ("nvmf_discovery_add_referral", &["secure_channel", "allow_any_host"]),
    ("nvmf_subsystem_add_listener", &["secure_channel"]),
    ("nvmf_subsystem_add_ns", &["hide_metadata"]),
];

/// Takes those out that are off.
///
/// # Errors
/// One is on, or neither on nor off.
pub(super) fn take_switches(method: &str, params: &mut Params) -> Result<(), RpcError> {
    let Some((_, switches)) = SWITCHES.iter().find(|(name, _)| *name == method) else {
        return Ok(());
    };
    let params = match (method, params.get_mut("namespace")) {
        ("nvmf_subsystem_add_ns", Some(Value::Object(namespace))) => namespace,
        ("nvmf_subsystem_add_ns", _) => return Ok(()),
        _ => params,
    };
    for switch in *switches {
        if params.remove(*switch).is_some_and(|value| value != false) {
            let message = format!("{switch}: this target does not offer that; leave it out");
            return Err(RpcError::invalid_params(message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn taken(method: &str, params: Value) -> Result<Value, RpcError> {
        let Value::Object(mut params) = params else { panic!("an object") };
        take_switches(method, &mut params).map(|()| params.into())
    }

    #[test]
    fn switches_that_are_off_are_taken_out() {
        let rest = taken("bdev_aio_create", json!({ "nowait": false, "name": "a" }));
        assert_eq!(rest, Ok(json!({ "name": "a" })));
        let namespace = json!({ "namespace": { "hide_metadata": false }, "nqn": "n" });
        let rest = taken("nvmf_subsystem_add_ns", namespace);
        assert_eq!(rest, Ok(json!({ "namespace": {}, "nqn": "n" })));
        let unknown = json!({ "nowait": false });
        assert_eq!(taken("bdev_null_create", unknown.clone()), Ok(unknown));
    }

    #[test]
    fn switches_that_are_on_are_refused() {
        for value in [json!(true), json!(1), json!("false"), Value::Null] {
            let refused = taken("bdev_aio_create", json!({ "fallocate": value }));
            assert!(refused.expect_err("on").message.starts_with("fallocate: "));
        }
    }
}
