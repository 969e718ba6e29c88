//! The discovery log: the subsystems that a host may connect to at the port that it asked, and the
//! discovery services of others (Base, 5.1.12.3.1).

use std::hash::{DefaultHasher, Hasher as _};
use std::net::SocketAddr;

use nvme_proto::log::{
    AddressFamily, DiscoveryEntry, DiscoveryHeader, RdmaTsas, SubsystemType, TransportRequirements,
    TransportType,
};
use nvme_proto::{AsciiField, IntoBytes, Nqn, NqnField, U16};

use crate::controller::state::Controller;
use crate::inventory::port::Port;
use crate::inventory::subsystem::Subsystem;
use crate::limits::ADMIN_QUEUE_ENTRIES;

/// The whole page, for the host and the port of this controller.
pub(super) fn page(controller: &Controller) -> Vec<u8> {
    let visible = controller.port.visible_to(&controller.host);
    let mut entries: Vec<_> =
        visible.iter().map(|subsystem| entry(&controller.port, subsystem)).collect();
    let associations = controller.associations.upgrade();
    let referrals = associations.map(|of| of.registry().referrals().addresses());
    entries.extend(referrals.unwrap_or_default().into_iter().map(referral));
    let header = DiscoveryHeader::new(generation(&entries), entries.len() as u64);
    [header.as_bytes(), entries.as_bytes()].concat()
}

/// The generation counter follows from the entries, so that it differs when they do, also after the
/// target was started again with another configuration. A host only asks whether it is another than
/// before.
fn generation(entries: &[DiscoveryEntry]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(entries.as_bytes());
    hasher.finish()
}

fn entry(port: &Port, subsystem: &Subsystem) -> DiscoveryEntry {
    let mut entry = at_address(port.address());
    entry.subtype = SubsystemType::NVM;
    entry.treq = TransportRequirements::new().with_sq_flow_control_disable(true);
    entry.portid = U16::new(port.id);
    entry.subnqn = NqnField::from(subsystem.nqn);
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
