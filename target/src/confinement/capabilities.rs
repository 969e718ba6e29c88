//! Capabilities that the daemon keeps.

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// Capabilities that a target started by root still needs: to open files of all users, to lock
/// memory, to lease files, and to listen on ports below 1024 when an address appears.
const NEEDED: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::LEASE)
    .union(CapabilitySet::NET_BIND_SERVICE);

/// Drops all capabilities of the calling thread but those that are needed, for good.
///
/// # Errors
/// The kernel refuses it.
pub(crate) fn drop_unneeded() -> Result<(), Errno> {
    let present = rustix::thread::capabilities(None)?;
    for capability in CapabilitySet::all().difference(NEEDED) {
        // Fails without CAP_SETPCAP, where there is nothing to gain, since nothing is executed.
        let _ = rustix::thread::remove_capability_from_bounding_set(capability);
    }
    let permitted = present.permitted & NEEDED;
    if present.permitted == permitted && NEEDED.contains(present.inheritable) {
        // As the systemd unit starts it, which refuses the call below.
        return Ok(());
    }
    let sets = CapabilitySets {
        effective: present.effective & permitted,
        permitted,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, sets)
}
