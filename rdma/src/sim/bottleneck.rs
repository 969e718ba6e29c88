//! A bottleneck of the simulated network: one link in each direction, shared by all packets between
//! the devices behind it and all others.

use std::collections::BTreeSet;
use std::net::IpAddr;

use splitmix64::SplitMix64;

use super::link::{Link, LinkConfig, LinkStats};
use crate::Time;

/// The direction of packets through a bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LinkDirection {
    /// Packets to the devices behind the bottleneck.
    Inward,
    /// Packets from the devices behind the bottleneck.
    Outward,
}

/// Counters of a bottleneck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BottleneckStats {
    /// Counters of the link to the devices behind the bottleneck.
    pub inward: LinkStats,
    /// Counters of the link from the devices behind the bottleneck.
    pub outward: LinkStats,
}

pub(super) struct SimBottleneck {
    behind: BTreeSet<IpAddr>,
    inward: Link,
    outward: Link,
}

impl SimBottleneck {
    pub(super) fn new(
        behind: BTreeSet<IpAddr>,
        [inward, outward]: [LinkConfig; 2],
        now: Time,
        random: &mut SplitMix64,
    ) -> Self {
        let inward = Link::new(inward, now, random);
        let outward = Link::new(outward, now, random);
        Self { behind, inward, outward }
    }

    pub(super) fn set(
        &mut self,
        behind: BTreeSet<IpAddr>,
        [inward, outward]: [LinkConfig; 2],
        now: Time,
    ) {
        self.behind = behind;
        self.inward.set(inward, now);
        self.outward.set(outward, now);
    }

    /// The direction in which packets between two addresses pass the bottleneck; `None` if they do
    /// not.
    pub(super) fn passage(&self, from: IpAddr, to: IpAddr) -> Option<LinkDirection> {
        match (self.behind.contains(&from), self.behind.contains(&to)) {
            (false, true) => Some(LinkDirection::Inward),
            (true, false) => Some(LinkDirection::Outward),
            _ => None,
        }
    }

    pub(super) const fn link(&mut self, passage: LinkDirection) -> &mut Link {
        match passage {
            LinkDirection::Inward => &mut self.inward,
            LinkDirection::Outward => &mut self.outward,
        }
    }

    pub(super) fn stats(&mut self, now: Time) -> BottleneckStats {
        BottleneckStats { inward: self.inward.stats(now), outward: self.outward.stats(now) }
    }
}
