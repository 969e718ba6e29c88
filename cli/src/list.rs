//! `feedrail list`: the namespaces of all subsystems in the discovery log page of an address.

use std::net::SocketAddr;

use anyhow::{Result, bail};
use clap::Args;
use feedrail_initiator::NamespaceInfo;
use nvme_proto::Nqn;
use nvme_proto::log::{SubsystemType, TransportType};
use serde_json::{Value, json};

use crate::fields::hex_digits;
use crate::options::{FabricArgs, Format, Output};
use crate::session::{self, Session, is_no_namespace};
use crate::size::human;
use crate::{discover, output};

const EXAMPLES: &str = "\
Examples:
  feedrail list -a 192.0.2.10
  feedrail list -a 192.0.2.10 -o json";

/// Lists the namespaces of all subsystems that discovery shows at an address
///
/// A Feedrail target reports names and sizes in bytes; other targets report whole blocks only.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct List {
    #[command(flatten)]
    fabric: FabricArgs,
    #[command(flatten)]
    output: Output,
}

/// Namespace, with its subsystem's NQN and address.
struct Found {
    subnqn: Nqn,
    address: SocketAddr,
    info: NamespaceInfo,
}

impl List {
    pub(crate) fn run(&self) -> Result<()> {
        let mut found = Vec::new();
        let mut failed = 0;
        for (address, subnqn) in self.subsystems()? {
            // An error of one subsystem or namespace is printed, and the others are still listed.
            let mut note = |error: &anyhow::Error| {
                failed += 1;
                output::note(format_args!("feedrail: {subnqn} at {address}: {error:#}"));
            };
            match self.namespaces(address, subnqn, &mut note) {
                Ok(infos) => {
                    found.extend(infos.into_iter().map(|info| Found { subnqn, address, info }))
                }
                Err(error) => note(&error),
            }
        }
        output::print(&match self.output.output_format {
            Format::Json => output::json(&to_json(&found)),
            Format::Normal => to_text(&found),
        })?;
        if failed > 0 {
            bail!("the list is incomplete: {failed} subsystems or namespaces could not be read");
        }
        Ok(())
    }

    /// Address of each subsystem: the first one, if the log has several for a subsystem.
    fn subsystems(&self) -> Result<Vec<(SocketAddr, Nqn)>> {
        let log = session::discover(&self.fabric)?;
        let mut subsystems: Vec<(SocketAddr, Nqn)> = Vec::new();
        for entry in &log.entries {
            if entry.trtype != TransportType::RDMA || entry.subtype != SubsystemType::NVM {
                continue;
            }
            let (Ok(nqn), Some(address)) = (entry.subnqn.parse(), discover::address(entry)) else {
                continue;
            };
            if subsystems.iter().all(|(_, known)| *known != nqn) {
                subsystems.push((address, nqn));
            }
        }
        Ok(subsystems)
    }

    /// Returns the namespaces of a subsystem. `note` receives the errors of those that cannot be
    /// read.
    fn namespaces(
        &self,
        address: SocketAddr,
        subnqn: Nqn,
        mut note: impl FnMut(&anyhow::Error),
    ) -> Result<Vec<NamespaceInfo>> {
        let session = Session::connect(address, subnqn, &self.fabric.local)?;
        let mut infos = Vec::new();
        for nsid in session.active_namespaces()? {
            match session.info(nsid) {
                Ok(info) => infos.push(info),
                // A namespace that was removed after it was listed is no error.
                Err(error) if is_no_namespace(&error) => {}
                Err(error) => note(&error.context(format!("namespace {nsid}"))),
            }
        }
        Ok(infos)
    }
}

fn to_json(found: &[Found]) -> Value {
    json!({ "namespaces": found.iter().map(Found::to_json).collect::<Value>() })
}

fn to_text(found: &[Found]) -> String {
    let heading = ["Subsystem", "Address", "NSID", "Size", "Bytes", "Block", "Access", "Name"];
    output::table(&heading, &found.iter().map(Found::row).collect::<Vec<_>>())
}

impl Found {
    fn to_json(&self) -> Value {
        let info = &self.info;
        json!({
            "subnqn": self.subnqn.as_str(),
            "traddr": self.address.ip().to_string(),
            "trsvcid": self.address.port().to_string(),
            "nsid": info.nsid.0,
            "length": info.size_bytes,
            "lba_size": info.block_bytes,
            "lba_count": info.blocks,
            "read_only": info.write_protected,
            "uuid": info.uuid.map(|uuid| uuid::Uuid::from_bytes(uuid).to_string()),
            "nguid": info.nguid.map(|nguid| hex_digits(&nguid)),
            "name": info.name,
        })
    }

    fn row(&self) -> Vec<String> {
        let info = &self.info;
        vec![
            self.subnqn.to_string(),
            self.address.to_string(),
            info.nsid.0.to_string(),
            human(info.size_bytes),
            info.size_bytes.to_string(),
            info.block_bytes.to_string(),
            if info.write_protected { "ro" } else { "rw" }.to_owned(),
            info.name.as_deref().map(output::printable).unwrap_or_default(),
        ]
    }
}
