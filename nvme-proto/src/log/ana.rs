//! Asymmetric Namespace Access, 0Ch.

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Reserved;

/// Header of the ANA log page (Base, 5.1.12.1.13); [`AnaGroups`] reads the descriptors after it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct AnaHeader {
    /// Change count: increases with each change of the page.
    pub chgcnt: U64,
    /// Number of group descriptors.
    pub nanagrpd: U16,
    reserved_10: Reserved<6>,
}

const _: () = assert!(size_of::<AnaHeader>() == 16);

impl AnaHeader {
    /// Creates the header of a page with `nanagrpd` group descriptors.
    pub fn new(chgcnt: u64, nanagrpd: u16) -> Self {
        Self { chgcnt: U64::new(chgcnt), nanagrpd: U16::new(nanagrpd), reserved_10: Reserved::ZERO }
    }
}

/// ANA Group Descriptor; the NSIDs of the group follow it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct AnaGroup {
    /// Identifier of the ANA group, AGID.
    pub agid: U32,
    /// Number of NSIDs after the descriptor.
    pub nnsid: U32,
    /// Change count of the group; 0 if not reported.
    pub chgcnt: U64,
    /// ANA state of all namespaces of the group.
    pub state: AnaGroupState,
    reserved_17: Reserved<15>,
}

const _: () = assert!(size_of::<AnaGroup>() == 32);

impl AnaGroup {
    /// Creates a descriptor that `nnsid` NSIDs follow, without a change count.
    pub fn new(agid: u32, nnsid: u32, state: AnaState) -> Self {
        Self {
            agid: U32::new(agid),
            nnsid: U32::new(nnsid),
            chgcnt: U64::ZERO,
            state: AnaGroupState::new().with_state(state),
            reserved_17: Reserved::ZERO,
        }
    }
}

/// Byte 16 of the descriptor.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct AnaGroupState {
    /// State in which this controller accesses the namespaces of the group.
    #[bits(4)]
    pub state: AnaState,
    #[bits(4)]
    __: u8,
}

open_enum! {
    /// Asymmetric namespace access state.
    pub struct AnaState(u8) {
        OPTIMIZED = 0x1, "optimized";
        NON_OPTIMIZED = 0x2, "non-optimized";
        INACCESSIBLE = 0x3, "inaccessible";
        PERSISTENT_LOSS = 0x4, "persistent loss";
        CHANGE = 0xF, "change";
    }
}

/// Iterator over the group descriptors of a received page, each with its NSIDs. It stops early if
/// the page is truncated.
#[derive(Clone, Debug)]
pub struct AnaGroups<'a> {
    left: u16,
    rest: &'a [u8],
}

impl<'a> AnaGroups<'a> {
    /// Creates an iterator over a page, which includes the header.
    pub fn new(page: &'a [u8]) -> Self {
        match AnaHeader::ref_from_prefix(page) {
            Ok((header, rest)) => Self { left: header.nanagrpd.get(), rest },
            Err(_) => Self { left: 0, rest: &[] },
        }
    }
}

impl<'a> Iterator for AnaGroups<'a> {
    type Item = (&'a AnaGroup, &'a [U32]);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let (group, rest) = AnaGroup::ref_from_prefix(self.rest).ok()?;
        let count = usize::try_from(group.nnsid.get()).ok()?;
        let (nsids, rest) = <[U32]>::ref_from_prefix_with_elems(rest, count).ok()?;
        self.rest = rest;
        Some((group, nsids))
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use zerocopy::IntoBytes;

    use super::*;

    fn page(groups: u16, nsids: u32) -> Vec<u8> {
        let header = AnaHeader::new(3, groups);
        let group = AnaGroup::new(7, nsids, AnaState::INACCESSIBLE);
        let mut page = header.as_bytes().to_vec();
        page.extend_from_slice(group.as_bytes());
        page.extend_from_slice(&[5, 0, 0, 0, 9, 0, 0, 0]);
        page
    }

    #[test]
    fn groups_come_with_their_namespaces() {
        let page = page(1, 2);
        assert_eq!(page[16 + 16], 3, "the state is in the low bits");
        let groups: Vec<_> = AnaGroups::new(&page).collect();
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].0.agid, U32::new(7));
        assert_eq!(groups[0].1, [U32::new(5), U32::new(9)]);
    }

    #[test]
    fn groups_end_where_a_truncated_page_ends() {
        assert_eq!(AnaGroups::new(&page(2, 2)).count(), 1);
        assert_eq!(AnaGroups::new(&page(1, 3)).count(), 0);
        assert_eq!(AnaGroups::new(&page(1, u32::MAX)).count(), 0);
        assert_eq!(AnaGroups::new(&page(1, 2)[..20]).count(), 0);
        assert_eq!(AnaGroups::new(&[]).count(), 0);
    }
}
