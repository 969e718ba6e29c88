//! Active Namespace ID list, CNS 02h.

use core::fmt;

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Nsid;

/// List of up to 1,024 NSIDs in ascending order, ended by 0 (Base, 5.1.13.2.2). It is also the
/// format of the Changed Attached Namespace List, log page 04h (Base, 5.1.12.1.5).
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub struct NamespaceList([U32; 1024]);

const _: () = assert!(size_of::<NamespaceList>() == 4096);

impl NamespaceList {
    /// Most NSIDs in a list.
    pub const MAX: usize = 1024;

    /// Empty list: all zero.
    pub const EMPTY: Self = Self([U32::ZERO; Self::MAX]);

    /// Changed Attached Namespace List after more than 1,024 changes: its first entry is FFFFFFFFh.
    pub const TOO_MANY: Self = {
        let mut list = Self::EMPTY;
        list.0[0] = U32::new(u32::MAX);
        list
    };

    /// Creates a list of the first 1,024 of `nsids`, which must be in ascending order.
    pub fn new(nsids: impl IntoIterator<Item = Nsid>) -> Self {
        let mut list = Self::EMPTY;
        for (slot, nsid) in list.0.iter_mut().zip(nsids) {
            *slot = U32::new(nsid.0);
        }
        list
    }

    /// Returns the NSIDs before the first 0.
    pub fn iter(&self) -> impl Iterator<Item = Nsid> + '_ {
        self.0.iter().map(|nsid| Nsid(nsid.get())).take_while(|&nsid| nsid != Nsid::NONE)
    }

    /// Returns the NSID to request the next list with: the last one, if this list is full.
    pub fn next_after(&self) -> Option<Nsid> {
        self.iter().nth(self.0.len() - 1).filter(|nsid| nsid.is_one())
    }
}

impl fmt::Debug for NamespaceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
