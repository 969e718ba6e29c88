//! The discovery log: what a host may connect to at the port that it asked (Base, 5.1.12.3.1).

use nvme_proto::log::{
    AddressFamily, DiscoveryEntry, DiscoveryHeader, RdmaTsas, SubsystemType, TransportRequirements,
    TransportType,
};
use nvme_proto::{AsciiField, IntoBytes, NqnField, U16};

use super::Controller;
use crate::limits::ADMIN_QUEUE_ENTRIES;
use crate::port::Port;
use crate::subsystem::Subsystem;

/// What is exported does not change while the target runs, so neither does this.
const GENERATION: u64 = 1;

/// The whole page, for the host and the port of this controller.
pub(super) fn page(controller: &Controller) -> Vec<u8> {
    let entries: Vec<_> = controller.port.visible_to(controller.host).collect();
    let header = DiscoveryHeader::new(GENERATION, entries.len() as u64);
    let mut page = header.as_bytes().to_vec();
    for subsystem in entries {
        page.extend_from_slice(entry(&controller.port, subsystem).as_bytes());
    }
    page
}

fn entry(port: &Port, subsystem: &Subsystem) -> DiscoveryEntry {
    let address = port.address();
    let mut entry = DiscoveryEntry::blank();
    entry.trtype = TransportType::RDMA;
    entry.adrfam = if address.is_ipv4() { AddressFamily::IPV4 } else { AddressFamily::IPV6 };
    entry.subtype = SubsystemType::NVM;
    entry.treq = TransportRequirements::new().with_sq_flow_control_disable(true);
    entry.portid = U16::new(port.id);
    entry.asqsz = U16::new(ADMIN_QUEUE_ENTRIES);
    entry.trsvcid = AsciiField::new(&address.port().to_string()).unwrap_or_default();
    entry.subnqn = NqnField::from(subsystem.nqn);
    entry.traddr = AsciiField::new(&address.ip().to_string()).unwrap_or_default();
    entry.tsas = RdmaTsas::reliable_connected();
    entry
}
