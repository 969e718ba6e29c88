//! Memory that stays mapped as long as a device has it registered.
#![expect(unsafe_code, reason = "ties memory to its registration")]

use core::mem::ManuallyDrop;
use std::io;

use crate::memory::{Access, Mem};
use crate::traits::{Device, MemoryRegion, Provider};

/// Memory with its registration. When dropped, it is deregistered and then freed; if the device
/// refuses to deregister, the memory is leaked.
pub struct Registered<P: Provider, M> {
    region: ManuallyDrop<P::Region>,
    memory: ManuallyDrop<M>,
}

impl<P: Provider, M> Registered<P, M> {
    /// Registers `place`, a range of memory that `memory` owns.
    ///
    /// # Errors
    /// Those of [`Device::register`]; `memory` is dropped then.
    ///
    /// # Safety
    /// The place stays mapped until `memory` is dropped, wherever that is moved. Else as for
    /// [`Device::register`].
    pub unsafe fn new(
        device: &P::Device,
        memory: M,
        place: Mem<'_>,
        access: Access,
    ) -> io::Result<Self> {
        // SAFETY: `memory` is dropped only after the region was deregistered.
        let region = unsafe { device.register(place, access) }?;
        Ok(Self::from_parts(region, memory))
    }

    /// Joins an existing registration with the owner of its memory.
    pub(crate) fn from_parts(region: P::Region, memory: M) -> Self {
        Self { region: ManuallyDrop::new(region), memory: ManuallyDrop::new(memory) }
    }

    /// The registered region, for its keys.
    pub fn region(&self) -> &P::Region {
        &self.region
    }

    /// The memory, which stays registered while it is borrowed.
    pub fn memory(&self) -> &M {
        &self.memory
    }
}

impl<P: Provider, M> Drop for Registered<P, M> {
    fn drop(&mut self) {
        // SAFETY: both are taken here only, and nothing uses them afterwards.
        unsafe {
            if ManuallyDrop::take(&mut self.region).deregister().is_ok() {
                ManuallyDrop::drop(&mut self.memory);
            }
        }
    }
}
