//! Identifiers of namespaces, controllers, queues, commands and command sets.

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Namespace identifier (Base, 3.2.1).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nsid(pub u32);

impl Nsid {
    /// 0: the field is not used.
    pub const NONE: Self = Self(0);
    /// Broadcast value FFFFFFFFh: all namespaces attached to the controller.
    pub const ALL: Self = Self(0xFFFF_FFFF);
    /// Highest identifier of a single namespace.
    pub const MAX: Self = Self(0xFFFF_FFFE);

    /// Whether it identifies a single namespace, so is neither 0 nor the broadcast value.
    pub const fn is_one(self) -> bool {
        self.0 != Self::NONE.0 && self.0 != Self::ALL.0
    }
}

impl fmt::Display for Nsid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ALL { f.write_str("all") } else { write!(f, "{}", self.0) }
    }
}

impl fmt::Debug for Nsid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nsid({self})")
    }
}

/// Controller identifier, unique within a subsystem (Base, 6.3).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cntlid(pub u16);

impl Cntlid {
    /// Value in Connect for a subsystem of the dynamic controller model, which allocates a
    /// controller.
    pub const DYNAMIC: Self = Self(0xFFFF);
    /// Value in Connect for any controller of a subsystem of the static controller model.
    pub const STATIC: Self = Self(0xFFFE);
    /// Highest identifier of a controller.
    pub const MAX: Self = Self(0xFFEF);
}

impl fmt::Display for Cntlid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::DYNAMIC => f.write_str("dynamic"),
            Self::STATIC => f.write_str("static"),
            Self(value) => write!(f, "{value}"),
        }
    }
}

impl fmt::Debug for Cntlid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cntlid({self})")
    }
}

/// Queue identifier. Over fabrics, a submission queue and its completion queue have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qid(pub u16);

impl Qid {
    /// The Admin Queue, identifier 0.
    pub const ADMIN: Self = Self(0);

    /// Whether it is the admin queue.
    pub const fn is_admin(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Qid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Command identifier, which the host assigns; unique among the outstanding commands of a queue.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cid(pub u16);

impl fmt::Display for Cid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

impl fmt::Debug for Cid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cid({self})")
    }
}

open_enum! {
    /// I/O command set identifier (Base, 5.1.13).
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct Csi(u8) {
        NVM = 0x00, "NVM Command Set";
        KEY_VALUE = 0x01, "Key Value Command Set";
        ZONED = 0x02, "Zoned Namespace Command Set";
    }
}
