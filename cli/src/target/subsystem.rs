//! `feedrail target add-subsystem` and related commands: subsystems, their listen addresses, and
//! referrals.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use clap::Args;
use feedrail_dataset::url::DEFAULT_PORT;
use nvme_proto::Nqn;
use serde_json::{Map, Value, json};

use super::{RpcClient, SocketArgs};

/// Adds a subsystem without namespaces
///
/// Hosts can connect to it at the addresses of --listen, and at those added later.
#[derive(Args, Debug)]
pub(super) struct AddSubsystem {
    /// NQN of the subsystem
    subnqn: Nqn,
    /// Local address of the target to listen on, IP or IP:PORT (default port 4420); may be given
    /// several times
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    listen: Vec<SocketAddr>,
    /// Allow any host to connect
    #[arg(long)]
    allow_any_host: bool,
    /// Serial number (SN), at most 20 characters [default: derived from the machine ID and the NQN]
    #[arg(long)]
    serial: Option<String>,
    /// Model number (MN), at most 40 characters
    #[arg(long)]
    model: Option<String>,
    #[command(flatten)]
    socket: SocketArgs,
}

/// Removes a subsystem with all its namespaces
///
/// Its hosts are disconnected. Written data is flushed to the media before this returns.
#[derive(Args, Debug)]
pub(super) struct RemoveSubsystem {
    /// NQN of the subsystem
    subnqn: Nqn,
    #[command(flatten)]
    socket: SocketArgs,
}

/// Subsystem and address of `add-listener` and `remove-listener`.
#[derive(Args, Debug)]
struct ListenerArgs {
    /// NQN of the subsystem
    subnqn: Nqn,
    /// Local address of the target, IP or IP:PORT (default port 4420)
    #[arg(value_parser = parse_address)]
    address: SocketAddr,
    #[command(flatten)]
    socket: SocketArgs,
}

/// Adds a listener: serves a subsystem at a further local address of the target
#[derive(Args, Debug)]
pub(super) struct AddListener {
    #[command(flatten)]
    listener: ListenerArgs,
}

/// Removes a listener: stops serving a subsystem at an address
///
/// Hosts that are connected to the subsystem there are disconnected.
#[derive(Args, Debug)]
pub(super) struct RemoveListener {
    #[command(flatten)]
    listener: ListenerArgs,
}

/// Adds a referral to another discovery service to the discovery log page
///
/// `nvme connect-all` and `nvme discover` follow referrals.
#[derive(Args, Debug)]
pub(super) struct AddReferral {
    /// Show the referral to this host only; may be given several times
    #[arg(long = "host", value_name = "NQN")]
    hosts: Vec<Nqn>,
    #[command(flatten)]
    referral: ReferralArgs,
}

/// Removes a referral to another discovery service
#[derive(Args, Debug)]
pub(super) struct RemoveReferral {
    #[command(flatten)]
    referral: ReferralArgs,
}

/// Address of `add-referral` and `remove-referral`.
#[derive(Args, Debug)]
struct ReferralArgs {
    /// Address of the discovery service, IP or IP:PORT (default port 4420)
    #[arg(value_parser = parse_address)]
    address: SocketAddr,
    #[command(flatten)]
    socket: SocketArgs,
}

impl AddReferral {
    pub(super) fn run(&self) -> Result<()> {
        let mut params = self.referral.params();
        if !self.hosts.is_empty() {
            params["hosts"] = self.hosts.iter().map(Nqn::as_str).collect();
        }
        self.referral.change("nvmf_discovery_add_referral", params)
    }
}

impl RemoveReferral {
    pub(super) fn run(&self) -> Result<()> {
        self.referral.change("nvmf_discovery_remove_referral", self.referral.params())
    }
}

impl ReferralArgs {
    fn params(&self) -> Value {
        json!({ "address": transport_address(self.address) })
    }

    fn change(&self, method: &str, params: Value) -> Result<()> {
        RpcClient::connect(&self.socket.socket)?.call(method, params).map(drop)
    }
}

impl AddSubsystem {
    pub(super) fn run(&self) -> Result<()> {
        let mut target = RpcClient::connect(&self.socket.socket)?;
        let nqn = self.subnqn.as_str();
        let mut params = Map::new();
        params.insert("nqn".into(), nqn.into());
        params.insert("allow_any_host".into(), self.allow_any_host.into());
        for (key, value) in [("serial_number", &self.serial), ("model_number", &self.model)] {
            if let Some(value) = value {
                params.insert(key.into(), value.as_str().into());
            }
        }
        target.call("nvmf_create_subsystem", Value::Object(params))?;
        for address in &self.listen {
            let params = listener(nqn, *address);
            if let Err(error) = target.call("nvmf_subsystem_add_listener", params) {
                // The subsystem is deleted again. The error that is returned is that of the
                // address.
                let _ = target.call("nvmf_delete_subsystem", json!({ "nqn": nqn }));
                return Err(error);
            }
        }
        Ok(())
    }
}

impl RemoveSubsystem {
    pub(super) fn run(&self) -> Result<()> {
        let mut target = RpcClient::connect(&self.socket.socket)?;
        target.call("nvmf_delete_subsystem", json!({ "nqn": self.subnqn.as_str() })).map(drop)
    }
}

impl AddListener {
    pub(super) fn run(&self) -> Result<()> {
        self.listener.change("nvmf_subsystem_add_listener")
    }
}

impl RemoveListener {
    pub(super) fn run(&self) -> Result<()> {
        self.listener.change("nvmf_subsystem_remove_listener")
    }
}

impl ListenerArgs {
    fn change(&self, method: &str) -> Result<()> {
        let params = listener(self.subnqn.as_str(), self.address);
        RpcClient::connect(&self.socket.socket)?.call(method, params).map(drop)
    }
}

pub(super) fn listener(nqn: &str, address: SocketAddr) -> Value {
    json!({ "nqn": nqn, "listen_address": transport_address(address) })
}

pub(super) fn transport_address(address: SocketAddr) -> Value {
    json!({
        "trtype": "RDMA",
        "adrfam": if address.is_ipv4() { "IPv4" } else { "IPv6" },
        "traddr": address.ip().to_string(),
        "trsvcid": address.port().to_string(),
    })
}

pub(super) fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let with_default = |ip: IpAddr| SocketAddr::new(ip, DEFAULT_PORT);
    text.parse()
        .or_else(|_| text.trim_matches(['[', ']']).parse().map(with_default))
        .map_err(|_| "expected an IP address, or IP:PORT".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_port() {
        for (text, expected) in [
            ("192.0.2.1", "192.0.2.1:4420"),
            ("192.0.2.1:7", "192.0.2.1:7"),
            ("2001:db8::1", "[2001:db8::1]:4420"),
            ("[2001:db8::1]:7", "[2001:db8::1]:7"),
        ] {
            assert_eq!(parse_address(text).map(|address| address.to_string()), Ok(expected.into()));
        }
        assert!(parse_address("host").is_err());
    }
}
