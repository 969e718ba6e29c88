//! Methods that set limits of hosts and namespaces.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::bdev::bdev_name;
use super::method::{Methods, parse_nqn, refusal};
use super::rpc::{Params, RpcError, read};
use super::subsystem::parse_host;
use crate::config::QosOverride;
use crate::inventory::allowed_host::HostsChange;
use crate::inventory::namespace::Namespace;
use crate::inventory::published::OwnedNamespace;

/// Parameters of `bdev_set_qos_limit`, as in SPDK. Limits that are omitted stay; 0 is no limit.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BdevLimitParams {
    name: String,
    rw_ios_per_sec: Option<Value>,
    rw_mbytes_per_sec: Option<Value>,
    r_mbytes_per_sec: Option<Value>,
    w_mbytes_per_sec: Option<Value>,
}

/// Parameters of `feedrail_set_host_qos`. Limits that are omitted stay; 0 is no limit.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostLimitParams {
    nqn: String,
    /// Host to limit; if omitted, each host that has no limits of its own.
    host: Option<String>,
    rw_ios_per_sec: Option<Value>,
    rw_mbytes_per_sec: Option<Value>,
    r_mbytes_per_sec: Option<Value>,
    w_mbytes_per_sec: Option<Value>,
}

impl Methods {
    /// Limits the namespace of a bdev, now or once there is one.
    pub(super) fn set_bdev_limits(&self, params: Params) -> Result<Value, RpcError> {
        let params: BdevLimitParams = read(params)?;
        let limits = limits(
            params.rw_ios_per_sec,
            params.rw_mbytes_per_sec,
            params.r_mbytes_per_sec,
            params.w_mbytes_per_sec,
        )?;
        let mut bdevs = self.bdevs();
        let found = self.namespaces_named(&params.name);
        match &found[..] {
            [] => {
                bdevs.get(&params.name)?;
                bdevs.limit(&params.name, limits);
            }
            [OwnedNamespace { subsystem, namespace }] => {
                let (nqn, nsid) = (subsystem.nqn, namespace.nsid);
                self.edit(|edit| edit.limit_namespace(&nqn, nsid, limits))?;
                namespace.bdev.iter().for_each(|name| bdevs.limit(name, limits));
            }
            [_, ..] => {
                return Err(RpcError::invalid_params(format_args!(
                    "name: {} namespaces have the name {}; give NQN/NSID",
                    found.len(),
                    params.name
                )));
            }
        }
        Ok(true.into())
    }

    /// Namespaces with this name, which is that of their bdev or `NQN/NSID`. Those of the
    /// configuration file have their own names instead of a bdev's.
    fn namespaces_named(&self, name: &str) -> Vec<OwnedNamespace> {
        let mut found = Vec::new();
        for subsystem in self.associations.inventory().subsystems() {
            let list = subsystem.namespaces();
            let is_it = |one: &&Arc<Namespace>| {
                bdev_name(one) == name || format!("{}/{}", subsystem.nqn, one.nsid) == name
            };
            found.extend(list.iter().filter(is_it).map(|one| OwnedNamespace::new(&subsystem, one)));
        }
        found
    }

    /// Limits a host of a subsystem, or each host that has no limits of its own.
    pub(super) fn set_host_limits(&self, params: Params) -> Result<Value, RpcError> {
        let params: HostLimitParams = read(params)?;
        let nqn = parse_nqn(&params.nqn)?;
        let host = params.host.as_deref().map(parse_host).transpose()?;
        let limits = limits(
            params.rw_ios_per_sec,
            params.rw_mbytes_per_sec,
            params.r_mbytes_per_sec,
            params.w_mbytes_per_sec,
        )?;
        let subsystem = self.associations.inventory().find_subsystem(&nqn).map_err(refusal)?;
        let before = subsystem.hosts().limits;
        let change = match host {
            Some(host) => HostsChange::Limit(host, limits.or(before.own(&host))),
            None => HostsChange::LimitEach(limits.over(before.each)),
        };
        self.edit(|edit| edit.change_hosts(&nqn, change))?;
        Ok(true.into())
    }
}

/// Parses limits. At least one must be given.
fn limits(
    rw_ios: Option<Value>,
    rw_mbytes: Option<Value>,
    r_mbytes: Option<Value>,
    w_mbytes: Option<Value>,
) -> Result<QosOverride, RpcError> {
    let limits = QosOverride {
        rw_ios: limit("rw_ios_per_sec", rw_ios)?,
        rw_mbytes: limit("rw_mbytes_per_sec", rw_mbytes)?,
        r_mbytes: limit("r_mbytes_per_sec", r_mbytes)?,
        w_mbytes: limit("w_mbytes_per_sec", w_mbytes)?,
    };
    match limits.is_empty() {
        true => Err(RpcError::invalid_params(
            "give one of rw_ios_per_sec, rw_mbytes_per_sec, r_mbytes_per_sec and w_mbytes_per_sec",
        )),
        false => Ok(limits),
    }
}

fn limit<T: TryFrom<u64, Error = String>>(
    key: &str,
    given: Option<Value>,
) -> Result<Option<T>, RpcError> {
    let parse = |value: Value| {
        let number = value.as_u64().ok_or_else(|| format!("{value} is not a whole number"));
        let limit = number.and_then(T::try_from);
        limit.map_err(|error| RpcError::invalid_params(format_args!("{key}: {error}")))
    };
    given.map(parse).transpose()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn one(value: Value) -> Result<QosOverride, RpcError> {
        limits(Some(value), None, None, None)
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
        let error = limits(None, None, None, Some(json!(1_000_001))).expect_err("too many");
        assert!(error.message.starts_with("w_mbytes_per_sec: is 1000001; must be 0 to 1000000"));
        let error = limits(None, None, None, None).expect_err("nothing is given");
        assert!(error.message.starts_with("give one of"), "{}", error.message);
    }
}
