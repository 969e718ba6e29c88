//! Methods that set limits of hosts and namespaces.

use serde_json::Value;

use super::bdev::bdev_name;
use super::method::{Methods, done, parse_nqn};
use super::method_params::{BdevLimitParams, HostLimitParams};
use super::rpc::{Params, RpcError, read};
use super::subsystem::parse_host;
use crate::config::{QosLimits, QosOverride};
use crate::inventory::allowed_host::HostsChange;
use crate::inventory::published::OwnedNamespace;

impl Methods {
    /// Limits the namespace of a bdev, now or once there is one.
    pub(super) fn set_bdev_limits(&self, params: Params) -> Result<Value, RpcError> {
        let BdevLimitParams { name, limits } = read(params)?;
        let limits = parse(limits)?;
        let mut bdevs = self.bdevs();
        let found = self.namespaces_named(&name);
        match &found[..] {
            [] => {
                bdevs.get(&name)?;
                bdevs.limit(&name, limits);
            }
            [OwnedNamespace { subsystem, namespace }] => {
                let (nqn, nsid) = (subsystem.nqn, namespace.nsid);
                self.associations.edit(|edit| edit.limit_namespace(&nqn, nsid, limits))?;
                namespace.bdev.iter().for_each(|name| bdevs.limit(name, limits));
            }
            [_, ..] => {
                return Err(RpcError::invalid_params(format_args!(
                    "name: {} namespaces have the name {name}; give NQN/NSID",
                    found.len()
                )));
            }
        }
        Ok(true.into())
    }

    /// Namespaces with this name, which is that of their bdev or `NQN/NSID`. Those of the
    /// configuration file have their own names instead of a bdev's.
    fn namespaces_named(&self, name: &str) -> Vec<OwnedNamespace> {
        let is_it = |OwnedNamespace { subsystem, namespace }: &OwnedNamespace| {
            bdev_name(namespace) == name || format!("{}/{}", subsystem.nqn, namespace.nsid) == name
        };
        self.associations.inventory().owned().filter(is_it).collect()
    }

    /// Limits a host of a subsystem, or each host that has no limits of its own.
    pub(super) fn set_host_limits(&self, params: Params) -> Result<Value, RpcError> {
        let HostLimitParams { nqn, host, limits } = read(params)?;
        let nqn = parse_nqn(&nqn)?;
        let host = host.as_deref().map(parse_host).transpose()?;
        let limits = parse(limits)?;
        let subsystem = self.associations.inventory().find_subsystem(&nqn)?;
        let before = subsystem.hosts().limits;
        let change = match host {
            Some(host) => HostsChange::Limit(host, limits.or(before.own(&host))),
            None => HostsChange::LimitEach(limits.over(before.each)),
        };
        done(self.associations.edit(|edit| edit.change_hosts(&nqn, change)))
    }
}

/// Parses limits, which are all that is left of the parameters. At least one must be given.
fn parse(mut given: Params) -> Result<QosOverride, RpcError> {
    let number = |key: &str| match given.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            value.as_u64().map(Some).ok_or_else(|| format!("{value} is not a whole number"))
        }
    };
    let limits = QosOverride::parse(number).map_err(RpcError::invalid_params)?;
    let keys = QosLimits::KEYS.join(", ");
    if let Some(unknown) = given.keys().next() {
        let message = format!("Invalid params: unknown field `{unknown}`, not one of {keys}");
        return Err(RpcError::invalid_params(message));
    }
    match limits.is_empty() {
        true => Err(RpcError::invalid_params(format_args!("give one of {keys}"))),
        false => Ok(limits),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn limits(given: Value) -> Result<QosOverride, RpcError> {
        let Value::Object(given) = given else { panic!("an object") };
        parse(given)
    }

    fn one(value: Value) -> Result<QosOverride, RpcError> {
        limits(json!({ "rw_ios_per_sec": value, "r_mbytes_per_sec": null }))
    }

    #[test]
    fn limits_are_what_is_left_of_the_parameters() {
        let Value::Object(given) = json!({ "nqn": "n", "rw_ios_per_sec": 1000, "ios": 1 }) else {
            panic!("an object")
        };
        let HostLimitParams { nqn, host, limits } = read(given).expect("a host's");
        assert_eq!((nqn.as_str(), host, limits.len()), ("n", None, 2));
        let error = parse(limits).expect_err("an unknown name");
        assert!(error.message.contains("unknown field `ios`"), "{}", error.message);
    }

    #[test]
    fn limits_are_whole_numbers_of_their_units() {
        assert_eq!(one(json!(2000)).expect("valid").given().next(), Some(("rw_ios_per_sec", 2000)));
        for (value, words) in [
            (json!(1500), "rw_ios_per_sec: is 1500; must be 0 (no limit) or a multiple of 1000"),
            (json!(-1), "rw_ios_per_sec: -1 is not a whole number"),
            (json!(1000.5), "rw_ios_per_sec: 1000.5 is not"),
            (json!("1000"), "rw_ios_per_sec: \"1000\" is not"),
            (json!(u64::MAX), "rw_ios_per_sec: is 18446744073709551615; must be"),
        ] {
            let error = one(value).expect_err(words);
            assert!(error.message.starts_with(words), "{}", error.message);
        }
        let error = limits(json!({ "w_mbytes_per_sec": 1_000_001 })).expect_err("too many");
        assert!(error.message.starts_with("w_mbytes_per_sec: is 1000001; must be 0 to 1000000"));
        let error = limits(json!({})).expect_err("nothing is given");
        assert!(error.message.starts_with("give one of rw_ios"), "{}", error.message);
    }
}
