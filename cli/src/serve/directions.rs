//! Commands with which a person reads from a target.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use feedrail_dataset::url::{DEFAULT_PORT, SourceUrl, TargetUrl, UrlHost};
use feedrail_initiator::NamespaceInfo;
use nvme_proto::Nqn;

use crate::options::ProviderArg;
use crate::output;
use crate::session::{Session, is_no_namespace};
use crate::size::human;
use crate::target_child::{ListeningLine, TargetChild};

/// Namespaces that are listed; a directory may have thousands.
const LISTED: usize = 8;

/// The commands that read from a target, with its addresses filled in.
pub(super) struct Directions<'a> {
    listening: &'a [ListeningLine],
    metrics: Option<SocketAddr>,
    writable: bool,
    /// The first namespaces, as a host sees them, or why no host can.
    namespaces: Result<Vec<NamespaceInfo>>,
}

impl<'a> Directions<'a> {
    /// Connects to the target as a host to see what it serves.
    pub(super) fn new(target: &'a TargetChild, writable: bool) -> Self {
        let listening = target.listening();
        let namespaces = local(listening).map_or_else(|| Ok(Vec::new()), first_namespaces);
        Self { listening, metrics: target.metrics(), writable, namespaces }
    }

    pub(super) fn to_text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text).expect("a string takes any text");
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        let Some(here) = local(self.listening) else { return Ok(()) };
        let access = if self.writable { "read and write" } else { "read-only" };
        let plural = if here.namespaces == 1 { "" } else { "s" };
        writeln!(text, "serving {} namespace{plural}, {access}, to any host", here.namespaces)?;
        self.write_namespaces(here, text)?;
        writeln!(text, "\nsubsystem  {}", here.nqn)?;
        let addresses: BTreeSet<_> = self.listening.iter().map(|line| line.address).collect();
        for address in &addresses {
            writeln!(text, "address    {address}")?;
        }
        writeln!(text, "provider   {} ({})", here.provider, here.reason)?;
        if let Some(address) = self.metrics {
            writeln!(text, "status     http://{address}/")?;
        }
        writeln!(text, "\nread it on this machine:")?;
        self.write_commands(here.address, here.nqn, text)?;
        for address in addresses.iter().filter(|address| !address.ip().is_loopback()) {
            writeln!(text, "\nread it on another machine, over {}:", address.ip())?;
            self.write_commands(*address, here.nqn, text)?;
            writeln!(text, "  {}", kernel_command(*address, here.nqn))?;
        }
        writeln!(text, "\nCtrl-C stops serving")
    }

    fn write_namespaces(&self, here: &ListeningLine, text: &mut String) -> std::fmt::Result {
        let namespaces = match &self.namespaces {
            Ok(namespaces) => namespaces,
            Err(error) => {
                return writeln!(text, "  a host on this machine cannot read it: {error:#}");
            }
        };
        let row = |info: &NamespaceInfo| {
            let name = info.name.as_deref().map(output::printable).unwrap_or_default();
            vec![format!("  {}", info.nsid), human(info.size_bytes), name]
        };
        let rows: Vec<_> = namespaces.iter().map(row).collect();
        text.push_str(&output::table(&["  NSID", "Size", "Name"], &rows));
        match here.namespaces.saturating_sub(namespaces.len() as u64) {
            0 => Ok(()),
            more => writeln!(text, "  and {more} more: {}", list_command(here.address)),
        }
    }

    /// One command for each kind of program.
    fn write_commands(&self, address: SocketAddr, nqn: Nqn, text: &mut String) -> std::fmt::Result {
        let target = TargetUrl { host: UrlHost::Address(address.ip()), port: address.port() };
        let url = SourceUrl { target, nqn, namespace: None };
        writeln!(text, "  python3 -c 'import feedrail; print(feedrail.open(\"{url}\").shards)'")?;
        writeln!(text, "  feedrail mount {url} /mnt")?;
        let first = self.namespaces.as_ref().ok().and_then(|namespaces| namespaces.first());
        let nsid = first.map_or(1, |info| info.nsid.0);
        writeln!(
            text,
            "  feedrail read -a {}{} -n {nqn} --namespace-id {nsid} --length 64K > part",
            address.ip(),
            port_option(address)
        )
    }
}

/// The line of an address that hosts on this machine reach best.
fn local(listening: &[ListeningLine]) -> Option<&ListeningLine> {
    listening.iter().find(|line| line.address.ip().is_loopback()).or(listening.first())
}

fn first_namespaces(target: &ListeningLine) -> Result<Vec<NamespaceInfo>> {
    let session = Session::nearby(target.address, target.nqn, ProviderArg::Auto)?;
    let mut infos = Vec::new();
    for nsid in session.active_namespaces()?.into_iter().take(LISTED) {
        match session.info(nsid) {
            Ok(info) => infos.push(info),
            // Its file was removed after it was listed.
            Err(error) if is_no_namespace(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(infos)
}

fn port_option(address: SocketAddr) -> String {
    match address.port() {
        DEFAULT_PORT => String::new(),
        port => format!(" -s {port}"),
    }
}

fn list_command(address: SocketAddr) -> String {
    format!("feedrail list -a {}{}", address.ip(), port_option(address))
}

/// The command of Linux hosts, which need an RDMA device.
fn kernel_command(address: SocketAddr, nqn: Nqn) -> String {
    let (ip, port): (IpAddr, u16) = (address.ip(), address.port());
    format!("nvme connect -t rdma -a {ip} -s {port} -n {nqn}")
}
