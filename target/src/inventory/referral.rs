//! Referrals: entries of the discovery log for discovery services of other targets.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nvme_proto::Nqn;

use crate::inventory::error::ChangeError;
use crate::inventory::named_host::NamedHost;
use crate::limits::MAX_REFERRALS;

/// Discovery services of other targets, in the order in which they were added.
#[derive(Debug, Default)]
pub(crate) struct Referrals(Mutex<Vec<Referral>>);

/// Referral to the discovery service of another target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Referral {
    pub(crate) address: SocketAddr,
    /// NQNs of the hosts whose discovery log lists it; `None` for all hosts.
    pub(crate) hosts: Option<BTreeSet<Nqn>>,
}

impl Referral {
    /// Whether the discovery log of a host lists it.
    pub(crate) fn is_visible_to(&self, host: &NamedHost) -> bool {
        host.is_among(self.hosts.as_ref())
    }
}

impl Referrals {
    /// Adds a referral to the discovery log.
    ///
    /// # Errors
    /// The address is listed already, or there are too many referrals.
    pub(crate) fn add(&self, referral: Referral) -> Result<(), ChangeError> {
        let mut referrals = self.lock();
        if referrals.iter().any(|other| other.address == referral.address) {
            return Err(ChangeError::ReferralTaken(referral.address));
        }
        if referrals.len() >= MAX_REFERRALS {
            return Err(ChangeError::TooManyReferrals);
        }
        tracing::info!(address = %referral.address, "referral added");
        referrals.push(referral);
        Ok(())
    }

    /// Removes the referral to an address.
    ///
    /// # Errors
    /// The address is not listed.
    pub(crate) fn remove(&self, address: SocketAddr) -> Result<(), ChangeError> {
        let mut referrals = self.lock();
        let before = referrals.len();
        referrals.retain(|other| other.address != address);
        if referrals.len() == before {
            return Err(ChangeError::NoReferral(address));
        }
        tracing::info!(%address, "referral removed");
        Ok(())
    }

    pub(crate) fn list(&self) -> Vec<Referral> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Referral>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 7], port))
    }

    fn for_all(port: u16) -> Referral {
        Referral { address: address(port), hosts: None }
    }

    #[test]
    fn each_is_there_once() {
        let referrals = Referrals::default();
        referrals.add(for_all(8009)).expect("new");
        assert!(matches!(referrals.add(for_all(8009)), Err(ChangeError::ReferralTaken(_))));
        referrals.add(for_all(4420)).expect("new");
        referrals.remove(address(8009)).expect("there");
        assert!(matches!(referrals.remove(address(8009)), Err(ChangeError::NoReferral(_))));
        assert_eq!(referrals.list(), [for_all(4420)]);
    }

    #[test]
    fn their_number_is_bounded() {
        let referrals = Referrals::default();
        (0..MAX_REFERRALS).for_each(|at| referrals.add(for_all(at as u16)).expect("room"));
        assert!(matches!(referrals.add(for_all(9999)), Err(ChangeError::TooManyReferrals)));
    }
}
