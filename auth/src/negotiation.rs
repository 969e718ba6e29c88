//! Hash functions and groups that the sides offer and allow.

use nvme_proto::auth::{DhChapDescriptor, DhGroupId, HashId};

use crate::group::DhGroup;
use crate::hash::HashFunction;

/// Offer of a host, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthOffer {
    hashes: Vec<HashFunction>,
    groups: Vec<Option<DhGroup>>,
}

impl AuthOffer {
    /// Creates an offer, in which `None` is the null group; `None` if a list is empty or has more
    /// than 30 items.
    pub fn new(hashes: &[HashFunction], groups: &[Option<DhGroup>]) -> Option<Self> {
        let offer = Self { hashes: hashes.to_vec(), groups: groups.to_vec() };
        offer.descriptor().is_some().then_some(offer)
    }

    pub(crate) fn descriptor(&self) -> Option<DhChapDescriptor> {
        let hashes: Vec<HashId> = self.hashes.iter().map(|hash| hash.id()).collect();
        let groups: Vec<DhGroupId> = self.groups.iter().copied().map(DhGroup::id_of).collect();
        DhChapDescriptor::new(&hashes, &groups)
    }

    pub(crate) fn has_hash(&self, hash: HashFunction) -> bool {
        self.hashes.contains(&hash)
    }

    pub(crate) fn has_group(&self, group: Option<DhGroup>) -> bool {
        self.groups.contains(&group)
    }
}

impl Default for AuthOffer {
    /// All hash functions and groups; ffdhe3072 is the first group, and the null group the last.
    fn default() -> Self {
        let mut groups = DhGroup::ALL.map(Some).to_vec();
        groups.swap(0, 1);
        groups.push(None);
        Self { hashes: HashFunction::ALL.to_vec(), groups }
    }
}

/// Choice among what a host offers: the preferred item if the host offers it, else the first of the
/// host's items that is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preference<T> {
    /// Item that is taken if the host offers it.
    pub preferred: Option<T>,
    /// Items that may be taken otherwise.
    pub allowed: Vec<T>,
}

impl<T: Copy + PartialEq> Preference<T> {
    pub(crate) fn choose(&self, mut offered: impl Iterator<Item = T>) -> Option<T> {
        let mut chosen = None;
        offered
            .by_ref()
            .find(|&item| {
                if chosen.is_none() && self.allowed.contains(&item) {
                    chosen = Some(item);
                }
                self.preferred == Some(item)
            })
            .or(chosen)
    }
}

/// Hash functions and groups that a controller accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthPolicy {
    /// Hash functions of the responses.
    pub hashes: Preference<HashFunction>,
    /// Groups, where `None` is the null group.
    pub groups: Preference<Option<DhGroup>>,
}

impl AuthPolicy {
    /// Policy with all hash functions, and groups up to the strongest one, which is preferred.
    ///
    /// Hosts choose the cost of an exponentiation before they have proved anything, and Linux
    /// offers ffdhe8192.
    pub fn up_to(strongest: Option<DhGroup>) -> Self {
        let groups = DhGroup::ALL.map(Some).into_iter().filter(|group| *group <= strongest);
        Self {
            hashes: Preference { preferred: None, allowed: HashFunction::ALL.to_vec() },
            groups: Preference {
                preferred: Some(strongest),
                allowed: groups.chain([None]).collect(),
            },
        }
    }
}

impl Default for AuthPolicy {
    fn default() -> Self {
        Self::up_to(Some(DhGroup::Ffdhe3072))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preferred_item_is_taken_wherever_it_is() {
        let selection = Preference { preferred: Some(3), allowed: vec![1, 2] };
        for (offered, chosen) in [
            (&[2, 1, 3][..], Some(3)),
            (&[9, 2, 1], Some(2)),
            (&[1, 2], Some(1)),
            (&[9, 8], None),
            (&[], None),
        ] {
            assert_eq!(selection.choose(offered.iter().copied()), chosen, "{offered:?}");
        }
    }

    #[test]
    fn linux_gets_the_group_of_the_policy() {
        let offered = || [None].into_iter().chain(DhGroup::ALL.map(Some));
        let choose = |policy: AuthPolicy| policy.groups.choose(offered());
        assert_eq!(choose(AuthPolicy::default()), Some(Some(DhGroup::Ffdhe3072)));
        assert_eq!(choose(AuthPolicy::up_to(None)), Some(None));
        let weak = AuthPolicy::default();
        assert_eq!(weak.groups.choose([Some(DhGroup::Ffdhe8192)].into_iter()), None);
        assert_eq!(weak.groups.choose([None].into_iter()), Some(None));
    }
}
