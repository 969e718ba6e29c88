//! Parameters of SPDK's methods that concern features which this target does not have. `rpc.py` and
//! saved configurations of SPDK send them even if the user has not set them.

use serde_json::Value;

use super::rpc::{Params, RpcError};

/// Values of a parameter that request no feature, so that it can be ignored.
#[derive(Clone, Copy)]
enum Neutral {
    /// False: the feature is off.
    Off,
    /// Zero: a size or type of none.
    Zero,
    /// Any value: a hint, or a limit that the target replaces by its own.
    Any,
}

use Neutral::{Any, Off, Zero};

/// Parameters by method; those of `nvmf_subsystem_add_ns` are members of its `namespace`.
const FOREIGN: [(&str, &[(&str, Neutral)]); 9] = [
    ("bdev_aio_create", &[("fallocate", Off), ("nowait", Off)]),
    ("bdev_get_iostat", &[("per_channel", Off)]),
    (
        "bdev_malloc_create",
        &[
            ("dif_is_head_of_md", Off),
            ("dif_pi_format", Zero),
            ("dif_type", Zero),
            ("md_interleave", Off),
            ("md_size", Zero),
            ("numa_id", Any),
            ("optimal_io_boundary", Any),
            ("physical_block_size", Any),
        ],
    ),
    (
        "bdev_null_create",
        &[
            ("dif_is_head_of_md", Off),
            ("dif_pi_format", Zero),
            ("dif_type", Zero),
            ("md_size", Zero),
            ("optimal_write_size", Any),
            ("physical_block_size", Any),
            ("preferred_unmap_alignment", Any),
            ("preferred_unmap_granularity", Any),
            ("preferred_write_alignment", Any),
            ("preferred_write_granularity", Any),
        ],
    ),
    ("framework_get_config", &[("with_batches", Off)]),
    (
        "nvmf_create_subsystem",
        &[
            ("admin_label", Any),
            ("dmrsl", Any),
            ("enable_nssr", Off),
            ("max_discard_size_kib", Any),
            ("max_write_zeroes_size_kib", Any),
            ("passthrough", Off),
            ("wzsl", Any),
        ],
    ),
    ("nvmf_discovery_add_referral", &[("secure_channel", Off), ("allow_any_host", Off)]),
    ("nvmf_subsystem_add_listener", &[("secure_channel", Off), ("sock_impl", Any)]),
    ("nvmf_subsystem_add_ns", &[("hide_metadata", Off)]),
];

/// Removes these parameters from a call.
///
/// # Errors
/// A parameter requests a feature that the target does not have.
pub(super) fn take_foreign(method: &str, params: &mut Params) -> Result<(), RpcError> {
    let Some((_, foreign)) = FOREIGN.iter().find(|(name, _)| *name == method) else {
        return Ok(());
    };
    let params = match (method, params.get_mut("namespace")) {
        ("nvmf_subsystem_add_ns", Some(Value::Object(namespace))) => namespace,
        ("nvmf_subsystem_add_ns", _) => return Ok(()),
        _ => params,
    };
    for (name, neutral) in *foreign {
        if params.remove(*name).is_some_and(|value| !neutral.permits(&value)) {
            let message = format!("{name}: this target does not offer that; leave it out");
            return Err(RpcError::invalid_params(message));
        }
    }
    Ok(())
}

impl Neutral {
    fn permits(self, value: &Value) -> bool {
        match self {
            Off => *value == false,
            Zero => *value == 0,
            Any => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn taken(method: &str, params: Value) -> Result<Value, RpcError> {
        let Value::Object(mut params) = params else { panic!("an object") };
        take_foreign(method, &mut params).map(|()| params.into())
    }

    #[test]
    fn parameters_that_ask_for_nothing_are_taken_out() {
        let rest = taken("bdev_aio_create", json!({ "nowait": false, "name": "a" }));
        assert_eq!(rest, Ok(json!({ "name": "a" })));
        let namespace = json!({ "namespace": { "hide_metadata": false }, "nqn": "n" });
        let rest = taken("nvmf_subsystem_add_ns", namespace);
        assert_eq!(rest, Ok(json!({ "namespace": {}, "nqn": "n" })));
        let saved =
            json!({ "name": "m", "md_size": 0, "physical_block_size": 4096, "numa_id": -1 });
        assert_eq!(taken("bdev_malloc_create", saved), Ok(json!({ "name": "m" })));
        let unknown = json!({ "nowait": false });
        assert_eq!(taken("bdev_null_create", unknown.clone()), Ok(unknown));
    }

    #[test]
    fn parameters_that_ask_for_something_are_refused() {
        for value in [json!(true), json!(1), json!("false"), Value::Null] {
            let refused = taken("bdev_aio_create", json!({ "fallocate": value }));
            assert!(refused.expect_err("on").message.starts_with("fallocate: "));
        }
        let refused = taken("bdev_malloc_create", json!({ "md_size": 8 }));
        assert!(refused.expect_err("metadata").message.starts_with("md_size: "));
    }
}
