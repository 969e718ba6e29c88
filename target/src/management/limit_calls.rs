//! Calls of a saved configuration that set limits of hosts and namespaces.

use serde_json::{Map, Value, json};

use super::rpc::Params;
use crate::config::QosLimits;

/// Call that limits a bdev; `None` without limits.
pub(super) fn bdev_limit_call(name: &str, limits: &QosLimits) -> Option<Value> {
    let mut params = json!({ "name": name });
    limits.present().for_each(|(key, limit)| params[key] = limit.into());
    (!limits.is_none()).then(|| json!({ "method": "bdev_set_qos_limit", "params": params }))
}

/// Call that limits a host, or each host if `host` is `None`.
pub(super) fn host_limit_call(
    nqn: &str,
    host: Option<&str>,
    limits: impl Iterator<Item = (&'static str, u64)>,
) -> Value {
    let mut params = json!({ "nqn": nqn });
    if let Some(host) = host {
        params["host"] = host.into();
    }
    limits.for_each(|(key, limit)| params[key] = limit.into());
    json!({ "method": "feedrail_set_host_qos", "params": params })
}

/// Parameters of `method` that set all limits to none.
pub(super) fn without_limits(params: &Params, names: &[&str]) -> Params {
    let names = names.iter().filter_map(|name| Some(((*name).into(), params.get(*name)?.clone())));
    let none = QosLimits::default().by_key().map(|(key, limit)| (key.to_owned(), limit.into()));
    names.chain(none).collect::<Map<_, _>>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_the_limits_that_are_there() {
        let limits = QosLimits { rw_ios: 3000.try_into().expect("valid"), ..QosLimits::default() };
        let call = bdev_limit_call("b", &limits).expect("limited");
        assert_eq!(call["params"], json!({ "name": "b", "rw_ios_per_sec": 3000 }));
        assert_eq!(bdev_limit_call("b", &QosLimits::default()), None);
        let call = host_limit_call("n", Some("h"), [("r_mbytes_per_sec", 0)].into_iter());
        assert_eq!(call["params"], json!({ "nqn": "n", "host": "h", "r_mbytes_per_sec": 0 }));
        let Value::Object(params) = call["params"].clone() else { panic!("an object") };
        let undo = without_limits(&params, &["nqn", "host"]);
        assert_eq!(undo.len(), 6);
        assert_eq!(undo["w_mbytes_per_sec"], 0);
    }
}
