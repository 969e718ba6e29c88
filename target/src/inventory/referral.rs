//! Referrals: other discovery services that hosts are told to ask (NVMe-oF, discovery log).

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::inventory::change::ChangeError;
use crate::limits::MAX_REFERRALS;

/// The addresses of the discovery services of others, in the order in which they were added.
#[derive(Debug, Default)]
pub(crate) struct Referrals(Mutex<Vec<SocketAddr>>);

impl Referrals {
    /// Tells hosts of another one.
    ///
    /// # Errors
    /// They are told of it already, or of too many.
    pub(crate) fn add(&self, address: SocketAddr) -> Result<(), ChangeError> {
        let mut addresses = self.lock();
        if addresses.contains(&address) {
            return Err(ChangeError::ReferralTaken(address));
        }
        if addresses.len() >= MAX_REFERRALS {
            return Err(ChangeError::TooManyReferrals);
        }
        addresses.push(address);
        Ok(())
    }

    /// Tells hosts no more of one.
    ///
    /// # Errors
    /// They are not told of it.
    pub(crate) fn remove(&self, address: SocketAddr) -> Result<(), ChangeError> {
        let mut addresses = self.lock();
        let before = addresses.len();
        addresses.retain(|other| *other != address);
        match addresses.len() == before {
            true => Err(ChangeError::NoReferral(address)),
            false => Ok(()),
        }
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SocketAddr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 7], port))
    }

    #[test]
    fn each_is_there_once() {
        let referrals = Referrals::default();
        referrals.add(address(8009)).expect("new");
        assert!(matches!(referrals.add(address(8009)), Err(ChangeError::ReferralTaken(_))));
        referrals.add(address(4420)).expect("new");
        referrals.remove(address(8009)).expect("there");
        assert!(matches!(referrals.remove(address(8009)), Err(ChangeError::NoReferral(_))));
        assert_eq!(referrals.addresses(), [address(4420)]);
    }

    #[test]
    fn their_number_is_bounded() {
        let referrals = Referrals::default();
        (0..MAX_REFERRALS).for_each(|at| referrals.add(address(at as u16)).expect("room"));
        assert!(matches!(referrals.add(address(9999)), Err(ChangeError::TooManyReferrals)));
    }
}
