//! `feedrail_load_config`: executes all calls of a saved configuration. If one fails, those before
//! it are undone.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::audit;
use super::limit_calls::without_limits;
use super::rpc::{Params, RpcError, read};
use super::spdk_framework;
use super::spdk_params::take_foreign;

/// Parameters of the method; the calls are executed in this order.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadParams {
    calls: Vec<GivenCall>,
}

#[derive(Deserialize)]
struct GivenCall {
    method: String,
    params: Option<Params>,
}

/// Name of a method, and its parameters.
type Call = (&'static str, Params);
/// Function that returns the call to undo a call with these parameters and this result.
type Undo = fn(&Params, &Value) -> Call;

/// Method that a saved configuration may contain.
struct Loadable {
    method: &'static str,
    /// JSON pointers to the parameters that identify what the call creates or sets.
    names: &'static [&'static str],
    /// Function for the call that undoes it; `None` if the method changes nothing.
    undo: Option<Undo>,
}

/// Method whose effect the call of `undo` undoes.
const fn undone(method: &'static str, names: &'static [&'static str], undo: Undo) -> Loadable {
    Loadable { method, names, undo: Some(undo) }
}

const LOADABLE: [Loadable; 18] = [
    undone("bdev_aio_create", &["/name"], |_, name| ("bdev_aio_delete", named(name))),
    undone("bdev_malloc_create", &["/name"], |_, name| ("bdev_malloc_delete", named(name))),
    undone("bdev_null_create", &["/name"], |_, name| ("bdev_null_delete", named(name))),
    undone("bdev_uring_create", &["/name"], |_, name| ("bdev_uring_delete", named(name))),
    undone("bdev_set_qos_limit", &["/name"], |params, _| {
        ("bdev_set_qos_limit", without_limits(params, &["name"]))
    }),
    undone("feedrail_set_host_qos", &["/nqn", "/host"], |params, _| {
        ("feedrail_set_host_qos", without_limits(params, &["nqn", "host"]))
    }),
    undone(PROTECT, &["/nqn", "/nsid"], |params, _| {
        (PROTECT, with(params, "protected", false.into()))
    }),
    undone("keyring_file_add_key", &["/name"], |params, _| {
        ("keyring_file_remove_key", only(params, &["name"]))
    }),
    undone("nvmf_set_config", &[], |_, _| ("nvmf_set_config", Params::new())),
    undone("nvmf_create_subsystem", &["/nqn"], |params, _| {
        ("nvmf_delete_subsystem", only(params, &["nqn"]))
    }),
    // These methods only check their parameters.
    Loadable { method: "nvmf_create_transport", names: &["/trtype"], undo: None },
    Loadable { method: "nvmf_set_max_subsystems", names: &[], undo: None },
    undone("nvmf_discovery_add_referral", &["/address/traddr", "/address/trsvcid"], |params, _| {
        ("nvmf_discovery_remove_referral", only(params, &["address"]))
    }),
    undone("nvmf_ns_add_host", &["/nqn", "/nsid", "/host"], |params, _| {
        ("nvmf_ns_remove_host", params.clone())
    }),
    undone("nvmf_subsystem_add_host", &["/nqn", "/host"], |params, _| {
        ("nvmf_subsystem_remove_host", only(params, &["nqn", "host"]))
    }),
    undone(
        "nvmf_subsystem_add_listener",
        &["/nqn", "/listen_address/traddr", "/listen_address/trsvcid"],
        |params, _| ("nvmf_subsystem_remove_listener", only(params, &["nqn", "listen_address"])),
    ),
    undone(ADD_NAMESPACE, &["/nqn", "/namespace/nsid"], |params, nsid| {
        ("nvmf_subsystem_remove_ns", with(&only(params, &["nqn"]), "nsid", nsid.clone()))
    }),
    undone(
        SET_ANA_STATE,
        &["/nqn", "/listen_address/traddr", "/listen_address/trsvcid", "/anagrpid"],
        |params, _| (SET_ANA_STATE, with(params, "ana_state", "optimized".into())),
    ),
];

const LOAD: &str = "feedrail_load_config";
const ADD_NAMESPACE: &str = "nvmf_subsystem_add_ns";
const PROTECT: &str = "feedrail_protect_ns";
const SET_ANA_STATE: &str = "nvmf_subsystem_listener_set_ana_state";

struct LoadCall {
    loadable: &'static Loadable,
    params: Params,
}

/// Identity of what a call creates or sets: its method, and the values of `Loadable::names`.
type Subject = (&'static str, Vec<String>);

/// Parameters of the calls that would restore the present exports, by subject.
struct ExportedCalls(BTreeMap<Subject, Params>);

/// Executes the calls of a saved configuration by `call`. `exported` are the calls that restore the
/// present exports; those are skipped, so that loading a configuration again changes nothing.
///
/// # Errors
/// A method that no saved configuration of this target has, before any call is executed; or the
/// error of the first call that fails, after those before it were undone.
pub(super) fn load(
    params: Params,
    exported: Vec<Value>,
    call: &dyn Fn(&str, Params) -> Result<Value, RpcError>,
) -> Result<Value, RpcError> {
    let LoadParams { calls } = read(params)?;
    let (calls, skipped) = sort(calls)?;
    let exported = ExportedCalls::of(exported);
    let mut undo = Vec::new();
    let (mut made, mut unchanged) = (0_u32, 0_u32);
    for LoadCall { loadable, params } in calls {
        if exported.says(loadable, &params) {
            unchanged += 1;
            continue;
        }
        let result = call(loadable.method, params.clone());
        audit::log_part(LOAD, loadable.method, &params, &result);
        match result {
            Ok(result) => undo.extend(exported.undo(loadable, &params, &result)),
            Err(error) => return Err(failed(call, undo, loadable.method, &params, &error)),
        }
        made += 1;
    }
    Ok(json!({ "made": made, "unchanged": unchanged, "skipped": skipped }))
}

/// Returns the calls to execute, and the names of the methods without effect on this target.
fn sort(given: Vec<GivenCall>) -> Result<(Vec<LoadCall>, Vec<String>), RpcError> {
    let (mut calls, mut skipped) = (Vec::new(), Vec::new());
    for GivenCall { method, params } in given {
        let mut params = params.unwrap_or_default();
        if spdk_framework::names_without_effect().any(|name| name == method) {
            skipped.push(method);
            continue;
        }
        let Some(loadable) = LOADABLE.iter().find(|one| one.method == method) else {
            let message = format!("{method}: this target cannot load that; nothing was loaded");
            return Err(RpcError::invalid_params(message));
        };
        take_foreign(&method, &mut params).map_err(|error| {
            let message = format!("{method}: {}; nothing was loaded", error.message);
            RpcError { message, ..error }
        })?;
        calls.push(LoadCall { loadable, params });
    }
    Ok((calls, skipped))
}

/// Executes the `undo` calls, the last first. Returns the error for the client.
fn failed(
    call: &dyn Fn(&str, Params) -> Result<Value, RpcError>,
    undo: Vec<Call>,
    method: &str,
    params: &Params,
    error: &RpcError,
) -> RpcError {
    let mut kept = Vec::new();
    for (method, params) in undo.into_iter().rev() {
        let result = call(method, params.clone());
        audit::log_part(LOAD, method, &params, &result);
        if let Err(RpcError { message, .. }) = result {
            kept.push(format!("{method} {}: {message}", Value::Object(params)));
        }
    }
    let rest = match kept.is_empty() {
        true => "nothing was loaded".to_owned(),
        false => format!("these could not be undone: {}", kept.join("; ")),
    };
    let params = Value::Object(params.clone());
    RpcError { code: error.code, message: format!("{method} {params}: {}; {rest}", error.message) }
}

impl ExportedCalls {
    fn of(calls: Vec<Value>) -> Self {
        let call = |call: Value| {
            let call: GivenCall = serde_json::from_value(call).ok()?;
            let loadable = LOADABLE.iter().find(|one| one.method == call.method)?;
            let params = call.params.unwrap_or_default();
            Some((loadable.subject(&params), params))
        };
        Self(calls.into_iter().filter_map(call).collect())
    }

    /// Whether the target already exports what the call would create or set.
    fn says(&self, loadable: &Loadable, params: &Params) -> bool {
        if let Some(current) = self.0.get(&loadable.subject(params)) {
            return includes(current, params);
        }
        // A namespace without an NSID, which the target would choose, is identified by its other
        // parameters.
        let nsid = params.get("namespace").and_then(|namespace| namespace.get("nsid"));
        loadable.method == ADD_NAMESPACE
            && nsid.is_none()
            && self
                .0
                .iter()
                .any(|((method, _), current)| *method == ADD_NAMESPACE && includes(current, params))
    }

    /// Returns the call that undoes another: it restores former parameters, or reverses the call.
    fn undo(&self, loadable: &Loadable, params: &Params, result: &Value) -> Option<Call> {
        match self.0.get(&loadable.subject(params)) {
            Some(before) => Some((loadable.method, before.clone())),
            None => loadable.undo.map(|undo| undo(params, result)),
        }
    }
}

impl Loadable {
    fn subject(&self, params: &Params) -> Subject {
        let name = |pointer: &&str| {
            let mut keys = pointer.split('/').skip(1);
            let first = keys.next().and_then(|key| params.get(key));
            let value = keys.try_fold(first, |value, key| Some(value?.get(key)));
            value.flatten().map(Value::to_string).unwrap_or_default()
        };
        (self.method, self.names.iter().map(name).collect())
    }
}

fn named(name: &Value) -> Params {
    with(&Params::new(), "name", name.clone())
}

/// Copies the parameters and sets one of them.
fn with(params: &Params, key: &str, value: Value) -> Params {
    let mut params = params.clone();
    params.insert(key.to_owned(), value);
    params
}

/// Copies only the parameters with these names.
fn only(params: &Params, keys: &[&str]) -> Params {
    let kept = keys.iter().filter_map(|key| Some(((*key).to_owned(), params.get(*key)?.clone())));
    kept.collect()
}

/// Whether the parameters `said` of an exported object satisfy all that are `wanted`.
fn includes(said: &Params, wanted: &Params) -> bool {
    wanted.iter().all(|(key, wanted)| match (said.get(key).unwrap_or(&Value::Null), wanted) {
        (Value::Object(said), Value::Object(wanted)) => includes(said, wanted),
        (Value::String(said), Value::String(wanted)) => {
            let uuid = |text: &str| Uuid::try_parse(text).ok();
            said.eq_ignore_ascii_case(wanted)
                || uuid(said).is_some_and(|of| uuid(wanted) == Some(of))
        }
        // An omitted switch is off, and an omitted limit or name has the target's own value.
        (Value::Null, Value::Bool(false) | Value::Null) => true,
        (Value::Null, _) => matches!(key.as_str(), "ana_reporting" | "max_cntlid" | "min_cntlid"),
        (said, wanted) => said == wanted,
    })
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
    fn methods_that_load_and_undo_exist() {
        let exists = |method: &str| method_names().any(|name| name == method);
        for Loadable { method, undo, .. } in &LOADABLE {
            assert!(exists(method), "{method}");
            assert!(undo.is_none_or(|undo| exists(undo(&Params::new(), &Value::Null).0)));
        }
    }

    #[test]
    fn parameters_that_ask_for_nothing_are_included() {
        let said = params(json!({
            "nqn": "n", "size": 1, "nguid": "00112233-4455-6677-8899-aabbccddeeff",
            "listen_address": { "trtype": "RDMA", "traddr": "fd00::a" },
        }));
        for (wanted, expected) in [
            (json!({ "nqn": "n", "min_cntlid": 1 }), true),
            (json!({ "nguid": "00112233445566778899AABBCCDDEEFF" }), true),
            (json!({ "listen_address": { "trtype": "rdma", "traddr": "FD00::A" } }), true),
            (json!({ "secure_channel": false, "host": null }), true),
            (json!({ "nqn": "other" }), false),
            (json!({ "size": 2 }), false),
            (json!({ "listen_address": { "traddr": "::2" } }), false),
            (json!({ "secure_channel": true }), false),
        ] {
            assert_eq!(includes(&said, &params(wanted.clone())), expected, "{wanted}");
        }
    }

    #[test]
    fn calls_are_made_skipped_or_refused_by_name() {
        let given = |names: &[&str]| {
            let call = |name: &&str| GivenCall { method: (*name).to_owned(), params: None };
            sort(names.iter().map(call).collect())
        };
        let (calls, skipped) = given(&["nvmf_set_crdt", "bdev_null_create"]).expect("known");
        assert_eq!((calls.len(), skipped), (1, vec!["nvmf_set_crdt".to_owned()]));
        for name in ["bdev_nvme_attach_controller", "framework_get_config", ""] {
            let error = given(&["bdev_null_create", name]).err().expect("refused");
            assert!(error.message.starts_with(&format!("{name}: ")), "{error:?}");
        }
    }

    #[test]
    fn what_was_changed_is_taken_back_to_what_it_was() {
        let state = |state: &str| {
            json!({
                "nqn": "n", "listen_address": { "traddr": "::1", "trsvcid": "4420" },
                "anagrpid": 1, "ana_state": state,
            })
        };
        let before = state("inaccessible");
        let exported =
            ExportedCalls::of(vec![json!({ "method": SET_ANA_STATE, "params": before })]);
        let loadable = LOADABLE.iter().find(|one| one.method == SET_ANA_STATE).expect("listed");
        let wanted = params(state("non_optimized"));
        assert!(!exported.says(loadable, &wanted));
        let undo = |exported: &ExportedCalls| exported.undo(loadable, &wanted, &Value::Null);
        assert_eq!(undo(&exported), Some((SET_ANA_STATE, params(before))));
        let undone = undo(&ExportedCalls::of(Vec::new()));
        assert_eq!(undone, Some((SET_ANA_STATE, params(state("optimized")))));
    }
}
