//! The state shared by the groups and the connection manager of a shared-memory device.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use super::agreement::{LinkAgreement, MAX_DEPTH};
use super::trust::{PeerTrust, SharingGroup};
use crate::Caps;
use crate::software::mailbox::Mailbox;
use crate::software::numbers::{MAX_GROUPS, Numbers};
use crate::software::random::{Entropy, SystemEntropy};
use crate::software::regions::{DomainId, Regions};

/// The provider for peers on the same machine.
pub struct Shm;

/// A shared-memory device with a protection domain. Clones refer to the same.
pub struct ShmDevice {
    pub(super) shared: Arc<ShmDeviceShared>,
    pub(super) domain: DomainId,
}

/// Options to open a shared-memory device.
#[derive(Clone, Copy, Debug)]
pub struct ShmOptions {
    /// The local address of the device; peers find a listener by address and port.
    pub address: IpAddr,
    /// Maximum number of groups.
    pub groups: usize,
    /// Group whose members may share memory with us, in addition to our own user and root.
    pub sharing_group: Option<SharingGroup>,
}

/// The state that all handles of a device share.
pub(super) struct ShmDeviceShared {
    pub(super) address: IpAddr,
    pub(super) trust: PeerTrust,
    pub(super) regions: Arc<Regions>,
    pub(super) numbers: Arc<Numbers>,
    /// The groups; that with index `i` is at `i - 1`.
    pub(super) groups: Box<[GroupPlace]>,
    pub(super) cm_in_use: AtomicBool,
    pub(super) caps: Caps,
}

pub(super) struct GroupPlace {
    mailbox: Mailbox<ShmGroupMessage>,
    in_use: Mutex<bool>,
}

/// A message to the thread that owns a group.
pub(super) enum ShmGroupMessage {
    /// Connect a queue pair.
    Connect {
        /// Number and serial of the queue pair.
        number: (u32, u64),
        agreement: LinkAgreement,
    },
    /// Move a queue pair to ERROR.
    Fail {
        /// Number and serial of the queue pair.
        number: (u32, u64),
    },
}

impl ShmOptions {
    /// The options of a device at `address` with one group.
    pub const fn new(address: IpAddr) -> Self {
        Self { address, groups: 1, sharing_group: None }
    }
}

impl ShmDevice {
    /// Opens a device. It reserves no address: that is done when its connection manager listens.
    ///
    /// # Errors
    /// The address is the wildcard, `groups` is out of range, or a system call failed.
    pub fn open(options: &ShmOptions) -> io::Result<Self> {
        let ShmOptions { address, groups, sharing_group } = *options;
        let invalid = |text| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        if address.is_unspecified() {
            return invalid(format!("{address} is not one address: name the one to serve"));
        }
        if !(1..=MAX_GROUPS).contains(&groups) {
            return invalid(format!("{groups} groups: a device has 1 to {MAX_GROUPS}"));
        }
        let places: io::Result<_> = (0..groups)
            .map(|_| Ok(GroupPlace { mailbox: Mailbox::new(true)?, in_use: Mutex::new(false) }))
            .collect();
        let mut caps = Caps::software(format!("shm {address}"));
        (caps.max_initiator_depth, caps.max_responder_resources) = (MAX_DEPTH, MAX_DEPTH);
        caps.trains = false;
        let shared = ShmDeviceShared {
            address,
            trust: PeerTrust { group: sharing_group },
            regions: Arc::new(Regions::new(groups, SystemEntropy.stream()?)),
            numbers: Arc::new(Numbers::new(SystemEntropy.stream()?)),
            groups: places?,
            cm_in_use: AtomicBool::new(false),
            caps,
        };
        let domain = shared.regions.new_domain();
        Ok(Self { shared: Arc::new(shared), domain })
    }

    #[cfg(test)]
    pub(super) fn shared_for_tests(&self) -> Arc<ShmDeviceShared> {
        Arc::clone(&self.shared)
    }

    /// The protection domain of this handle.
    pub(super) fn domain(&self) -> DomainId {
        self.domain
    }
}

impl ShmDeviceShared {
    /// The mailbox of a group; `None` if there is no such group.
    pub(super) fn mailbox(&self, group: u8) -> Option<&Mailbox<ShmGroupMessage>> {
        Some(&self.groups.get(usize::from(group).checked_sub(1)?)?.mailbox)
    }

    pub(super) fn take_group(&self) -> Option<u8> {
        let place = self.groups.iter().position(|place| {
            let mut in_use = place.in_use.lock().unwrap_or_else(PoisonError::into_inner);
            !std::mem::replace(&mut *in_use, true)
        });
        u8::try_from(place? + 1).ok()
    }

    pub(super) fn give_group_back(&self, group: u8) {
        if let Some(place) = self.groups.get(usize::from(group) - 1) {
            *place.in_use.lock().unwrap_or_else(PoisonError::into_inner) = false;
        }
    }
}

impl Clone for ShmDevice {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), domain: self.domain }
    }
}
