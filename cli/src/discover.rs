//! `feedrail discover`: prints the discovery log page (70h) of a target.

use std::net::IpAddr;

use anyhow::Result;
use clap::Args;
use feedrail_initiator::DiscoveryLog;
use nvme_proto::log::{DiscoveryEntry, EntryFlags, TransportRequirements, TransportType};
use serde_json::{Value, json};

use crate::options::{FabricArgs, Format, Output};
use crate::{output, session};

const EXAMPLES: &str = "\
Examples:
  feedrail discover -a 192.0.2.10
  feedrail discover -a 192.0.2.10 -s 4421 -w 192.0.2.20 -o json
  feedrail discover -a 192.0.2.10 --persistent";

/// Shows the discovery log page of an address, in nvme-cli's formats
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Discover {
    /// Keep the discovery controller connected, and print the log page after each change, until
    /// interrupted
    #[arg(short, long)]
    persistent: bool,
    #[command(flatten)]
    fabric: FabricArgs,
    #[command(flatten)]
    output: Output,
}

impl Discover {
    pub(crate) fn run(&self) -> Result<()> {
        match self.persistent {
            false => self.print(&session::discover(&self.fabric)?),
            true => session::follow_discovery(&self.fabric, |log| self.print(log)),
        }
    }

    fn print(&self, log: &DiscoveryLog) -> Result<()> {
        output::print(&match self.output.output_format {
            Format::Json => output::json(&to_json(log)),
            Format::Normal => to_text(log),
        })
    }
}

fn to_json(log: &DiscoveryLog) -> Value {
    json!({
        "genctr": log.genctr,
        "records": log.entries.iter().map(record).collect::<Value>(),
    })
}

fn record(entry: &DiscoveryEntry) -> Value {
    let mut record = json!({
        "trtype": entry.trtype.to_string(),
        "adrfam": entry.adrfam.to_string(),
        "subtype": entry.subtype.to_string(),
        "treq": requirements(entry.treq),
        "portid": entry.portid.get(),
        "trsvcid": entry.trsvcid.to_string(),
        "subnqn": name(entry),
        "traddr": entry.traddr.to_string(),
        "eflags": flags(entry.eflags),
    });
    if entry.trtype == TransportType::RDMA {
        record["rdma_prtype"] = entry.tsas.prtype.to_string().into();
        record["rdma_qptype"] = entry.tsas.qptype.to_string().into();
        record["rdma_cms"] = entry.tsas.cms.to_string().into();
        record["rdma_pkey"] = entry.tsas.pkey.get().into();
    }
    record
}

fn to_text(log: &DiscoveryLog) -> String {
    let mut text = format!(
        "Discovery Log Number of Records {}, Generation counter {}\n",
        log.entries.len(),
        log.genctr
    );
    for (number, entry) in log.entries.iter().enumerate() {
        text += &format!("=====Discovery Log Entry {number}======\n");
        for (key, value) in record(entry).as_object().into_iter().flatten() {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            text += &format!("{:<13}{value}\n", format!("{key}:"));
        }
    }
    text
}

/// The subsystem's NQN; if it is not a valid one, its text escaped for a terminal.
fn name(entry: &DiscoveryEntry) -> String {
    match entry.subnqn.parse() {
        Ok(nqn) => nqn.to_string(),
        Err(_) => format!("{:?}", entry.subnqn),
    }
}

/// Transport address and service ID of an entry; `None` if they are not an IP address and port.
pub(crate) fn address(entry: &DiscoveryEntry) -> Option<std::net::SocketAddr> {
    let ip: IpAddr = entry.traddr.text()?.parse().ok()?;
    Some((ip, entry.trsvcid.text()?.parse().ok()?).into())
}

fn requirements(treq: TransportRequirements) -> String {
    let mut text = treq.secure_channel().to_string();
    if treq.sq_flow_control_disable() {
        text += ", sq flow control disable supported";
    }
    text
}

fn flags(eflags: EntryFlags) -> String {
    let names = [
        (eflags.persistent_connection(), "explicit discovery connections"),
        (eflags.duplicate_information(), "duplicate discovery information"),
        (eflags.no_cdc(), "no cdc connectivity"),
    ];
    let set: Vec<&str> = names.into_iter().filter(|(set, _)| *set).map(|(_, name)| name).collect();
    if set.is_empty() { "none".into() } else { set.join(", ") }
}

#[cfg(test)]
mod tests {
    use nvme_proto::log::{AddressFamily, RdmaTsas, SubsystemType};
    use nvme_proto::{AsciiField, Nqn, NqnField, U16};

    use super::*;

    fn log() -> DiscoveryLog {
        let mut entry = DiscoveryEntry::blank();
        entry.trtype = TransportType::RDMA;
        entry.adrfam = AddressFamily::IPV4;
        entry.subtype = SubsystemType::NVM;
        entry.treq.set_sq_flow_control_disable(true);
        entry.portid = U16::new(1);
        entry.trsvcid = AsciiField::new("4420").unwrap();
        entry.traddr = AsciiField::new("192.0.2.10").unwrap();
        entry.subnqn = NqnField::from(Nqn::new("nqn.2026-01.org.example:a").unwrap());
        entry.tsas = RdmaTsas::reliable_connected();
        DiscoveryLog { genctr: 7, entries: vec![entry] }
    }

    #[test]
    fn json_is_nvme_clis() {
        let expected = json!({
            "genctr": 7,
            "records": [{
                "trtype": "rdma",
                "adrfam": "ipv4",
                "subtype": "nvme subsystem",
                "treq": "not specified, sq flow control disable supported",
                "portid": 1,
                "trsvcid": "4420",
                "subnqn": "nqn.2026-01.org.example:a",
                "traddr": "192.0.2.10",
                "eflags": "none",
                "rdma_prtype": "not specified",
                "rdma_qptype": "connected",
                "rdma_cms": "rdma-cm",
                "rdma_pkey": 0,
            }],
        });
        assert_eq!(to_json(&log()), expected);
    }

    #[test]
    fn text_has_a_line_per_field() {
        let text = to_text(&log());
        assert!(text.starts_with("Discovery Log Number of Records 1, Generation counter 7\n"));
        assert!(text.contains("\ntrtype:      rdma\n"), "{text}");
        assert!(text.contains("\nsubnqn:      nqn.2026-01.org.example:a\n"), "{text}");
    }

    #[test]
    fn a_strange_entry_is_shown_and_not_followed() {
        let mut log = log();
        log.entries[0].traddr = AsciiField::new("not an address").unwrap();
        log.entries[0].trtype = TransportType(77);
        log.entries[0].subnqn = nvme_proto::FromZeros::new_zeroed();
        assert_eq!(address(&log.entries[0]), None);
        assert_eq!(to_json(&log)["records"][0]["trtype"], "0x4d");
        assert_eq!(to_json(&log)["records"][0]["subnqn"], "\"\"");
    }
}
