//! Explicit congestion notification (ECN) in the IP header.

/// The ECN field: the lower two bits of the type of service or traffic class (RFC 3168, 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Ecn {
    /// Not ECN-capable: a congested queue drops the packet instead of marking it.
    #[default]
    NotEct = 0b00,
    /// ECN-capable, but not in general use (RFC 8311).
    Ect1 = 0b01,
    /// ECN-capable; used for packets of connections.
    Ect0 = 0b10,
    /// Congestion Experienced: set by a congested queue on the path.
    Ce = 0b11,
}

impl Ecn {
    const MASK: u8 = 0b11;

    /// The ECN field of this type of service or traffic class.
    pub const fn of(traffic_class: u8) -> Self {
        match traffic_class & Self::MASK {
            0b00 => Self::NotEct,
            0b01 => Self::Ect1,
            0b10 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// This type of service or traffic class with its ECN field replaced; the DSCP is kept.
    pub const fn within(self, traffic_class: u8) -> u8 {
        traffic_class & !Self::MASK | self as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_its_dscp_and_its_field() {
        for class in 0..=u8::MAX {
            assert_eq!(Ecn::of(class).within(class), class);
            for ecn in [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce] {
                let other = ecn.within(class);
                assert_eq!((Ecn::of(other), other >> 2), (ecn, class >> 2));
            }
        }
        assert_eq!((Ecn::Ect0.within(104), Ecn::Ce.within(0)), (106, 3));
    }
}
