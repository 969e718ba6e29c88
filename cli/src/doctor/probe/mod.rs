//! Active measurements of the path to a target.

mod echo;
mod icmp_socket;
mod judge;
mod knock;
#[cfg(test)]
mod tests;
mod transfer;

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use nvme_proto::{Nqn, Nsid};
use rdma::soft::{ROCE_PORT, local_address_for};
use rdma::{ProviderKind, select, sysfs};

use self::echo::{EchoMeasure, EchoProbe};
use self::knock::{CLOSED_PORT, Knock, knock};
use self::transfer::{RoceAnswer, TransferMeasure};
use super::finding::DoctorFinding;
use super::tree::SystemTree;
use crate::options::{Local, ProviderArg};

/// Payloads of RoCE packets to try, in bytes, ascending. A path passes all up to its limit.
const PAYLOADS: [usize; 3] = [1024, 2048, 4096];
/// Bytes of UDP, BTH, RETH and CRC around a payload.
const ROCE_HEADERS: usize = 8 + 12 + 16 + 4;
/// The ECN codepoint ECT(0), and the bits of ECN.
const ECT_0: u8 = 0b10;
const ECN_MASK: u8 = 0b11;

/// Outcome for a packet of a certain length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passage {
    Passes,
    /// This machine refused to send it, or a router reported that it is too long.
    TooLong,
    Silent,
}

/// Target to measure, and the options of connections to it.
pub(crate) struct PathProbe<'a> {
    pub(crate) local: &'a Local,
    pub(crate) address: SocketAddr,
    pub(crate) nqn: Option<Nqn>,
    pub(crate) nsid: Nsid,
}

/// Results of all measurements, from which `judge` derives findings.
#[derive(Clone, Debug)]
struct PathMeasure {
    target: SocketAddr,
    source: IpAddr,
    interface: Option<String>,
    provider: String,
    /// Largest payload for which the local interface's MTU has room, in bytes.
    local_payload: Option<usize>,
    /// Results of ICMP echo requests, or the reason why none could be sent.
    echoes: Result<EchoMeasure, String>,
    /// Outcome for each payload of `PAYLOADS` up to `local_payload`.
    passages: Vec<(usize, Passage)>,
    roce_port: Option<Knock>,
    closed_port: Option<Knock>,
    roce: RoceAnswer,
    transfer: Option<Result<TransferMeasure, String>>,
}

impl PathProbe<'_> {
    pub(crate) fn run(&self, tree: &SystemTree) -> Result<Vec<DoctorFinding>> {
        Ok(judge::judge(&self.measure(tree)?))
    }

    fn measure(&self, tree: &SystemTree) -> Result<PathMeasure> {
        let peer = self.address.ip();
        let source = match self.local.host_traddr {
            Some(source) => source,
            None => local_address_for(peer).with_context(|| format!("no route to {peer}"))?,
        };
        let kind = match self.local.provider {
            ProviderArg::Auto => ProviderKind::Auto,
            ProviderArg::Verbs => ProviderKind::Verbs,
            ProviderArg::Soft => ProviderKind::Soft,
            ProviderArg::Shm => ProviderKind::Shm,
        };
        let provider = select(kind, source).map_or_else(|e| e.to_string(), |s| s.to_string());
        let addresses = tree.addresses()?;
        let interface = addresses.into_iter().find(|address| address.ip == source);
        let interface = interface.map(|address| address.interface);
        let interface = interface.or_else(|| source.is_loopback().then(|| "lo".to_owned()));
        let mtu =
            interface.as_ref().and_then(|name| tree.number(&format!("sys/class/net/{name}/mtu")));
        let local_payload = mtu.and_then(sysfs::roce_payload);
        let tos = self.local.tos.unwrap_or(0) & !ECN_MASK | ECT_0;
        let mut probe = EchoProbe::open(peer, Some(source)).map_err(|error| error.to_string());
        let echoes = match &mut probe {
            Ok(probe) => probe.series(tos).map_err(|error| error.to_string()),
            Err(error) => Err(error.clone()),
        };
        let echoes_work = echoes.as_ref().is_ok_and(|echoes| echoes.answered > 0);
        let passage = |payload: usize| match &mut probe {
            Ok(probe) if echoes_work => {
                probe.passage(payload + ROCE_HEADERS - icmp_socket::ICMP_HEADER)
            }
            // The kernel adds the UDP header.
            _ => knock::passage(source, peer, payload + ROCE_HEADERS - 8),
        };
        let fits = |payload: &usize| *payload <= local_payload.unwrap_or(0);
        let payloads: Vec<usize> = PAYLOADS.into_iter().filter(fits).collect();
        let passages =
            payloads.iter().copied().zip(payloads.iter().copied().map(passage)).collect();
        let roce = transfer::discover(self.local, self.address);
        let reached = matches!(roce, RoceAnswer::Discovered { .. } | RoceAnswer::Refused(_));
        let try_port = |port| if reached { None } else { knock(source, peer, port).ok() };
        let transfer = self.nqn.filter(|_| reached).map(|nqn| {
            transfer::measure(self.local, self.address, nqn, self.nsid)
                .map_err(|error| format!("{error:#}"))
        });
        Ok(PathMeasure {
            target: self.address,
            source,
            interface,
            provider,
            local_payload,
            echoes,
            passages,
            roce_port: try_port(ROCE_PORT),
            closed_port: try_port(CLOSED_PORT),
            roce,
            transfer,
        })
    }
}
