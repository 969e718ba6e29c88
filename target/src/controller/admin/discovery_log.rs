//! Discovery log page: the subsystems that a host may connect to at the port that it connected to,
//! their other ports, and the discovery services of other targets (Base, 5.1.12.3.1).

use std::net::SocketAddr;
use std::sync::Arc;

use nvme_proto::log::{
    AddressFamily, DiscoveryEntry, DiscoveryHeader, EntryFlags, RdmaTsas, SubsystemType,
    TransportRequirements, TransportType,
};
use nvme_proto::{AsciiField, IntoBytes, Nqn, NqnField, U16};

use crate::controller::state::Controller;
use crate::inventory::port::Port;
use crate::inventory::subsystem::Subsystem;
use crate::limits::ADMIN_QUEUE_ENTRIES;

/// Returns the complete page for the host and port of this controller: the subsystems that the host
/// may connect to here with all of their ports, the discovery service at those ports, and
/// referrals.
pub(super) fn page(controller: &Controller) -> Vec<u8> {
    let associations = controller.associations.upgrade();
    // Generation Counter. It is read before the entries, so that they are at least as new.
    let changes = associations.as_ref().map_or(0, |associations| associations.discovery_changes());
    let inventory = associations.as_ref().map(|associations| associations.inventory());
    let own = &controller.port;
    let name = controller.discovery_nqn();
    let here = own.visible_to(&controller.host);
    let mut entries: Vec<_> = here.iter().map(|subsystem| entry(own, subsystem)).collect();
    let mut services = vec![service(own, name, true)];
    let ports = inventory.map(|inventory| inventory.ports()).unwrap_or_default();
    for port in ports.iter().filter(|port| is_beside(own, port)) {
        let there = port.visible_to(&controller.host);
        let shared: Vec<_> = there.iter().filter(|one| has(&here, one)).collect();
        if !shared.is_empty() {
            let is_same = shared.len() == here.len() && shared.len() == there.len();
            services.push(service(port, name, is_same));
        }
        entries.extend(shared.into_iter().map(|subsystem| entry(port, subsystem)));
    }
    entries.extend(services);
    let referrals = inventory.map(|inventory| inventory.referrals().list()).unwrap_or_default();
    let told = referrals.iter().filter(|referral| referral.is_visible_to(&controller.host));
    entries.extend(told.map(|referral| self::referral(referral.address)));
    let header = DiscoveryHeader::new(changes, entries.len() as u64);
    [header.as_bytes(), entries.as_bytes()].concat()
}

/// Whether the log at port `own` also lists `other`: a port that is listened on, and not at a
/// loopback address unless `own` is at one as well.
fn is_beside(own: &Arc<Port>, other: &Arc<Port>) -> bool {
    let is_loopback = |port: &Port| port.address().ip().is_loopback();
    !Arc::ptr_eq(own, other) && other.is_bound() && (is_loopback(own) || !is_loopback(other))
}

fn has(subsystems: &[Arc<Subsystem>], one: &Arc<Subsystem>) -> bool {
    subsystems.iter().any(|subsystem| Arc::ptr_eq(subsystem, one))
}

fn entry(port: &Port, subsystem: &Subsystem) -> DiscoveryEntry {
    let mut entry = at_address(port.address());
    entry.subtype = SubsystemType::NVM;
    entry.treq = TransportRequirements::new().with_sq_flow_control_disable(true);
    entry.portid = U16::new(port.id);
    entry.subnqn = NqnField::from(subsystem.nqn);
    entry
}

/// Returns the entry of the discovery service at a port; `is_same` if the host gets the same log.
fn service(port: &Port, name: Nqn, is_same: bool) -> DiscoveryEntry {
    let mut entry = at_address(port.address());
    entry.subtype = SubsystemType::CURRENT_DISCOVERY;
    entry.portid = U16::new(port.id);
    entry.eflags =
        EntryFlags::new().with_duplicate_information(is_same).with_persistent_connection(true);
    entry.subnqn = NqnField::from(name);
    entry
}

fn referral(address: SocketAddr) -> DiscoveryEntry {
    let mut entry = at_address(address);
    entry.subtype = SubsystemType::DISCOVERY;
    entry.subnqn = NqnField::from(Nqn::DISCOVERY);
    entry
}

fn at_address(address: SocketAddr) -> DiscoveryEntry {
    let mut entry = DiscoveryEntry::blank();
    entry.trtype = TransportType::RDMA;
    entry.adrfam = if address.is_ipv4() { AddressFamily::IPV4 } else { AddressFamily::IPV6 };
    entry.asqsz = U16::new(ADMIN_QUEUE_ENTRIES);
    entry.trsvcid = AsciiField::new(&address.port().to_string()).unwrap_or_default();
    entry.traddr = AsciiField::new(&address.ip().to_string()).unwrap_or_default();
    entry.tsas = RdmaTsas::reliable_connected();
    entry
}
