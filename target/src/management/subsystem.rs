//! Parameters of the methods that change subsystems and their listeners.

use std::net::{IpAddr, SocketAddr};

use nvme_proto::Nqn;
use serde::Deserialize;
use serde_json::{Value, json};

use super::rpc::{RpcError, params};
use crate::config::values::PrintableText;
use crate::config::{self, HostPolicy, SubsystemSpec, parse_nqn};
use crate::inventory::error::ChangeError;
use crate::inventory::port::Port;
use crate::inventory::referral::Referral;
use crate::limits::{CntlidRange, MAX_ALLOWED_HOSTS};

params! {
    /// Parameters of the method `nvmf_create_subsystem`.
    CreateParams {
        nqn: String,
        serial_number: Option<String>,
        model_number: Option<String>,
        #[serde(default)]
        allow_any_host: bool,
        /// Whether hosts may deallocate logical blocks. SPDK has no such parameter.
        #[serde(default = "yes")]
        deallocate: bool,
        max_namespaces: Option<u32>,
        /// Ignored: ANA states are always reported. SPDK has the parameter.
        #[serde(rename = "ana_reporting", default)]
        _ana_reporting: bool,
        min_cntlid: Option<u16>,
        max_cntlid: Option<u16>,
    }
}

/// Parameters of the method `nvmf_create_transport`, a first call in SPDK. Here the transport
/// exists already, with the settings of the configuration file.
#[derive(Deserialize)]
pub(super) struct TransportParams {
    trtype: String,
}

params! {
    /// Parameters of the method `nvmf_subsystem_add_listener`.
    NewListenerParams {
        nqn: String,
        listen_address: ListenAddress,
        /// ANA state of all groups; Optimized if omitted.
        ana_state: Option<String>,
    }

    /// Parameters of the method `nvmf_subsystem_remove_listener`.
    ListenerParams { nqn: String, listen_address: ListenAddress }

    /// Parameters of the method `nvmf_discovery_add_referral`.
    ReferralParams {
        address: ListenAddress,
        /// Well-known discovery NQN; any other is an error.
        subnqn: Option<String>,
        /// NQNs of the hosts that see the referral; all if omitted. SPDK has no such parameter.
        hosts: Option<Vec<String>>,
    }

    /// Parameters of the method `nvmf_discovery_remove_referral`.
    ReferralName { address: ListenAddress, subnqn: Option<String> }

    /// Transport address, with SPDK's field names.
    ListenAddress {
        trtype: String,
        adrfam: Option<String>,
        traddr: IpAddr,
        trsvcid: Option<String>,
    }
}

fn yes() -> bool {
    true
}

impl CreateParams {
    /// Returns the settings, and the highest NSID unless it is the target's limit. The CNTLID
    /// limits must be omitted or equal to the target's, `cntlids`.
    pub(super) fn subsystem(
        self,
        cntlids: CntlidRange,
    ) -> Result<(SubsystemSpec, Option<u32>), RpcError> {
        let first = self.min_cntlid.unwrap_or(cntlids.first);
        let last = self.max_cntlid.unwrap_or(cntlids.last);
        if (first, last) != (cntlids.first, cntlids.last) {
            return Err(RpcError::invalid_params(format_args!(
                "min_cntlid and max_cntlid: controller ids of this target are {} to {}, which limits.cntlid_min and \
                 limits.cntlid_max of its configuration say",
                cntlids.first, cntlids.last
            )));
        }
        let nqn = parse_nqn(&self.nqn)
            .map_err(|error| RpcError::invalid_params(format_args!("nqn: {error}")))?;
        let hosts = match self.allow_any_host {
            true => HostPolicy::Any,
            false => HostPolicy::Listed(Vec::new()),
        };
        let spec = SubsystemSpec {
            serial: self.serial_number.map(printable).transpose()?,
            model: self.model_number.map(printable).transpose()?,
            deallocate: self.deallocate,
            ..SubsystemSpec::new(nqn, hosts)
        };
        // 0 stands for the default, as in SPDK.
        Ok((spec, self.max_namespaces.filter(|most| *most != 0)))
    }
}

impl TransportParams {
    /// Checks that `trtype` is RDMA, the only transport, which always exists.
    pub(super) fn check(&self) -> Result<(), RpcError> {
        match self.trtype.eq_ignore_ascii_case("rdma") {
            true => Ok(()),
            false => {
                let message = format!("trtype: {:?} is not RDMA", self.trtype);
                Err(RpcError::invalid_params(message))
            }
        }
    }
}

impl ReferralParams {
    pub(super) fn referral(&self) -> Result<Referral, RpcError> {
        let address = service(&self.address, self.subnqn.as_deref())?;
        let hosts = self.hosts.as_ref().map(|hosts| {
            if hosts.len() > MAX_ALLOWED_HOSTS {
                let message = format!("hosts: more than {MAX_ALLOWED_HOSTS}");
                return Err(RpcError::invalid_params(message));
            }
            hosts.iter().map(|host| parse_host(host)).collect()
        });
        Ok(Referral { address, hosts: hosts.transpose()? })
    }
}

impl ReferralName {
    /// Returns the address of the discovery service.
    pub(super) fn service(&self) -> Result<SocketAddr, RpcError> {
        service(&self.address, self.subnqn.as_deref())
    }
}

fn service(address: &ListenAddress, subnqn: Option<&str>) -> Result<SocketAddr, RpcError> {
    match subnqn {
        None | Some("" | "nqn.2014-08.org.nvmexpress.discovery") => address.get(),
        Some(other) => {
            let message = format!("subnqn: {other} is not the name of discovery services");
            Err(RpcError::invalid_params(message))
        }
    }
}

fn printable<const N: usize>(text: String) -> Result<PrintableText<N>, RpcError> {
    PrintableText::try_from(text).map_err(|_| RpcError::invalid_params(ChangeError::NotAscii))
}

pub(super) fn parse_host(text: &str) -> Result<Nqn, RpcError> {
    config::parse_host(text)
        .map_err(|error| RpcError::invalid_params(format_args!("host: {error}")))
}

impl ListenAddress {
    /// Converts the address, which must be one of RDMA; the default port is 4420.
    pub(super) fn get(&self) -> Result<SocketAddr, RpcError> {
        let Self { trtype, adrfam, traddr, trsvcid } = self;
        let invalid = |key: &str, text: &str, expected: &str| {
            let message = format!("listen_address.{key}: {text:?} is not {expected}");
            RpcError::invalid_params(message)
        };
        if !trtype.eq_ignore_ascii_case("rdma") {
            return Err(invalid("trtype", trtype, "RDMA"));
        }
        let family = family(*traddr);
        if let Some(other) = adrfam.as_ref().filter(|other| !other.eq_ignore_ascii_case(family)) {
            return Err(invalid("adrfam", other, family));
        }
        let port = trsvcid.as_deref().unwrap_or("4420");
        let number = port.parse().map_err(|_| invalid("trsvcid", port, "a port number"))?;
        Ok(SocketAddr::new(*traddr, number))
    }
}

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// Describes the address that hosts connect to.
pub(super) fn describe_address(port: &Port) -> Value {
    describe_socket_address(port.address())
}

/// Describes an RDMA transport address in SPDK's fields.
pub(super) fn describe_socket_address(address: SocketAddr) -> Value {
    json!({
        "trtype": "RDMA",
        "adrfam": family(address.ip()),
        "traddr": address.ip().to_string(),
        "trsvcid": address.port().to_string(),
    })
}
