//! Asymmetric Namespace Access log page: the ANA groups, their states, and their namespaces.

use std::collections::BTreeMap;

use nvme_proto::log::{AnaGroup, AnaHeader};
use nvme_proto::{IntoBytes, Nsid};

use crate::controller::state::Controller;

/// Returns the ANA log page of a controller: the groups of the namespaces that its host may see,
/// with their states at the port that the host connected to. `groups_only` omits the NSIDs (RGO).
pub(super) fn page(controller: &Controller, groups_only: bool) -> Vec<u8> {
    let associations = controller.associations.upgrade();
    let (Some(subsystem), Some(associations)) = (controller.subsystem(), associations) else {
        return Vec::new();
    };
    let exports = associations.inventory().exports();
    let mut groups: BTreeMap<_, Vec<Nsid>> = BTreeMap::new();
    let namespaces = exports.list(subsystem.index).iter();
    for namespace in namespaces.filter(|namespace| namespace.is_visible_to(&controller.host)) {
        groups.entry(namespace.ana_group).or_default().push(namespace.nsid);
    }
    // Change Count (CHGC): neither number ever shrinks; each change of the page increases one.
    let changes = controller.ana.changes() + exports.generation().get();
    let header = AnaHeader::new(changes, groups.len() as u16);
    let mut page = header.as_bytes().to_vec();
    for (group, nsids) in groups {
        let listed = if groups_only { &[] } else { nsids.as_slice() };
        let state = controller.ana.state(group);
        let head = AnaGroup::new(group.get(), listed.len() as u32, state);
        page.extend_from_slice(head.as_bytes());
        page.extend(listed.iter().flat_map(|nsid| nsid.0.to_le_bytes()));
    }
    page
}
