//! Zeroed, page-aligned memory with a fixed address.
#![expect(unsafe_code, reason = "maps and unmaps anonymous memory")]

use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// An anonymous private mapping. Pages become resident when they are touched.
#[derive(Debug)]
pub(crate) struct Pages {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to this value alone; code that reaches it through `address`
// answers for aliasing.
unsafe impl Send for Pages {}
// SAFETY: as above; shared access hands out nothing but the address.
unsafe impl Sync for Pages {}

impl Pages {
    /// Length in bytes from which huge pages are requested.
    const HUGE_FROM_BYTES: usize = 2 << 20;

    /// Maps `length` bytes, at least one.
    pub(crate) fn new(length: usize) -> io::Result<Self> {
        let length = length.max(1);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice disturbs no other
        // memory.
        let address = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let address = NonNull::new(address.cast()).expect("mmap does not place memory at zero");
        Ok(Self { address, length })
    }

    /// Maps `length` bytes that will all be used, on huge pages if they are available.
    pub(crate) fn dense(length: usize) -> io::Result<Self> {
        let pages = Self::new(length)?;
        if length >= Self::HUGE_FROM_BYTES {
            let address = pages.address.as_ptr().cast();
            // SAFETY: advice on our own fresh mapping; it does not change its contents. A refusal
            // costs speed only.
            let _ = unsafe { madvise(address, length, Advice::LinuxHugepage) };
        }
        Ok(pages)
    }

    /// Returns the address of the first byte, which is that of a page.
    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Returns the length in bytes, at least one.
    pub(crate) fn length(&self) -> usize {
        self.length
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `address` and `length` are those of a mapping that nothing else unmaps.
        let unmapped = unsafe { munmap(self.address.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "unmapping our own mapping");
    }
}
