//! Diffie-Hellman groups of RFC 7919.

use std::fmt;

use nvme_proto::auth::DhGroupId;

use crate::group_primes;

/// Group of RFC 7919, with the generator 2. The null group is the absence of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DhGroup {
    /// Group with 2,048 bits.
    Ffdhe2048,
    /// Group with 3,072 bits.
    Ffdhe3072,
    /// Group with 4,096 bits.
    Ffdhe4096,
    /// Group with 6,144 bits.
    Ffdhe6144,
    /// Group with 8,192 bits.
    Ffdhe8192,
}

impl DhGroup {
    /// All groups, the weakest first.
    pub const ALL: [Self; 5] =
        [Self::Ffdhe2048, Self::Ffdhe3072, Self::Ffdhe4096, Self::Ffdhe6144, Self::Ffdhe8192];

    /// Returns the group that an identifier names, where `Some(None)` is the null group.
    pub const fn of(id: DhGroupId) -> Option<Option<Self>> {
        match id {
            DhGroupId::NULL => Some(None),
            DhGroupId::FFDHE2048 => Some(Some(Self::Ffdhe2048)),
            DhGroupId::FFDHE3072 => Some(Some(Self::Ffdhe3072)),
            DhGroupId::FFDHE4096 => Some(Some(Self::Ffdhe4096)),
            DhGroupId::FFDHE6144 => Some(Some(Self::Ffdhe6144)),
            DhGroupId::FFDHE8192 => Some(Some(Self::Ffdhe8192)),
            _ => None,
        }
    }

    /// Identifier of a group on the wire; that of the null group for `None`.
    pub const fn id_of(group: Option<Self>) -> DhGroupId {
        match group {
            None => DhGroupId::NULL,
            Some(Self::Ffdhe2048) => DhGroupId::FFDHE2048,
            Some(Self::Ffdhe3072) => DhGroupId::FFDHE3072,
            Some(Self::Ffdhe4096) => DhGroupId::FFDHE4096,
            Some(Self::Ffdhe6144) => DhGroupId::FFDHE6144,
            Some(Self::Ffdhe8192) => DhGroupId::FFDHE8192,
        }
    }

    /// Name of a group in configurations; that of the null group for `None`.
    pub const fn name_of(group: Option<Self>) -> &'static str {
        match group {
            None => "null",
            Some(Self::Ffdhe2048) => "ffdhe2048",
            Some(Self::Ffdhe3072) => "ffdhe3072",
            Some(Self::Ffdhe4096) => "ffdhe4096",
            Some(Self::Ffdhe6144) => "ffdhe6144",
            Some(Self::Ffdhe8192) => "ffdhe8192",
        }
    }

    /// Returns the group that has this name in configurations, in which `None` is the null group.
    pub fn named(name: &str) -> Option<Option<Self>> {
        let groups = [None].into_iter().chain(Self::ALL.map(Some));
        groups.into_iter().find(|group| Self::name_of(*group) == name)
    }

    /// Length of a public value in bytes.
    pub const fn value_bytes(self) -> usize {
        self.prime().len()
    }

    /// Length of exponents in bits: the sizes of RFC 7919, appendix A, in whole bytes, and above
    /// the 256 that NVMe asks for (Base, 8.3.4.5.4).
    pub(crate) const fn exponent_bits(self) -> u32 {
        match self {
            Self::Ffdhe2048 => 264,
            Self::Ffdhe3072 => 280,
            Self::Ffdhe4096 => 328,
            Self::Ffdhe6144 => 376,
            Self::Ffdhe8192 => 400,
        }
    }

    /// Prime, the most significant byte first.
    pub(crate) const fn prime(self) -> &'static [u8] {
        match self {
            Self::Ffdhe2048 => &group_primes::FFDHE2048,
            Self::Ffdhe3072 => &group_primes::FFDHE3072,
            Self::Ffdhe4096 => &group_primes::FFDHE4096,
            Self::Ffdhe6144 => &group_primes::FFDHE6144,
            Self::Ffdhe8192 => &group_primes::FFDHE8192,
        }
    }
}

impl fmt::Display for DhGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Self::id_of(Some(*self)).fmt(f)
    }
}
