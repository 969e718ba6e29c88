//! Memory regions and type-2 memory windows.
#![expect(unsafe_code, reason = "calls rdma-core")]

use core::ffi::{c_int, c_void};
use core::{mem, ptr};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::abi::*;
use super::domain::Domain;
use super::library::Verbs as Functions;
use super::lockable::explain;
use crate::{
    Access, Bind, Mem, MemoryRegion, MemoryWindow, Op, RegionHandle, StillRegistered, WindowHandle,
};

/// A registered region (`ibv_mr`), deregistered when it is dropped.
pub struct VerbsRegion {
    domain: Arc<Domain>,
    /// Null once deregistration was tried, whether it succeeded or not.
    raw: *mut ibv_mr,
}

// SAFETY: a region's keys never change, and libibverbs may deregister it from any thread.
unsafe impl Send for VerbsRegion {}
// SAFETY: as above; shared use only reads the keys.
unsafe impl Sync for VerbsRegion {}

impl VerbsRegion {
    /// Registers memory, host memory with relaxed ordering if the library supports that.
    ///
    /// # Safety
    /// The caller keeps the contract of [`crate::Device::register`].
    pub(crate) unsafe fn register(
        domain: &Arc<Domain>,
        memory: Mem<'_>,
        access: Access,
    ) -> io::Result<Self> {
        // SAFETY: passed on to the caller.
        let raw = unsafe { register_raw(domain, memory, access)? };
        if raw.is_null() {
            let what = format!("the memory to register, {} KiB,", length_of(memory) / 1024);
            return Err(explain(io::Error::last_os_error(), &what));
        }
        Ok(Self { domain: Arc::clone(domain), raw })
    }
}

/// # Safety
/// The caller keeps the contract of [`crate::Device::register`].
unsafe fn register_raw(
    domain: &Domain,
    memory: Mem<'_>,
    access: Access,
) -> io::Result<*mut ibv_mr> {
    let functions = &domain.library.verbs;
    match memory {
        Mem::Host { addr, length } => {
            // SAFETY: passed on to the caller.
            Ok(unsafe { register_host(functions, domain.raw, addr.cast(), length, access.bits()) })
        }
        Mem::DmaBuf { fd, offset, length, iova } => {
            let register = functions.ibv_reg_dmabuf_mr.ok_or(io::ErrorKind::Unsupported)?;
            let access = access.bits().cast_signed();
            // SAFETY: passed on to the caller; the descriptor is open.
            Ok(unsafe { register(domain.raw, offset, length, iova, fd.as_raw_fd(), access) })
        }
    }
}

/// Registers host memory, with relaxed ordering if `ibv_reg_mr_iova2` exists and succeeds. Only
/// that function accepts optional access flags, and drops those that the kernel does not know; rxe
/// of some 2023 kernels refuses them instead.
///
/// # Safety
/// The caller keeps the contract of [`crate::Device::register`].
unsafe fn register_host(
    functions: &Functions,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: u32,
) -> *mut ibv_mr {
    if let Some(register) = functions.ibv_reg_mr_iova2 {
        let iova = addr as u64;
        // SAFETY: passed on to the caller.
        let raw = unsafe { register(pd, addr, length, iova, access | ACCESS_RELAXED_ORDERING) };
        if !raw.is_null() {
            return raw;
        }
    }
    // SAFETY: passed on to the caller.
    unsafe { (functions.ibv_reg_mr)(pd, addr, length, access.cast_signed()) }
}

fn length_of(memory: Mem<'_>) -> usize {
    match memory {
        Mem::Host { length, .. } | Mem::DmaBuf { length, .. } => length,
    }
}

impl VerbsRegion {
    /// Deregisters the memory unless that was tried before. The device refuses, for instance, while
    /// a window is bound to the region.
    fn release(&mut self) -> Result<(), StillRegistered> {
        let raw = mem::replace(&mut self.raw, ptr::null_mut());
        if raw.is_null() {
            return Ok(());
        }
        // SAFETY: the region was registered by us and is no longer used.
        let rc: c_int = unsafe { (self.domain.library.verbs.ibv_dereg_mr)(raw) };
        if rc == 0 {
            return Ok(());
        }
        self.domain.leaked_regions.fetch_add(1, Ordering::Relaxed);
        let error = io::Error::from_raw_os_error(rc);
        let device = &self.domain.info.caps.name;
        tracing::error!(device, %error, "a memory region stays registered: its memory is not freed");
        Err(StillRegistered)
    }
}

impl MemoryRegion for VerbsRegion {
    fn lkey(&self) -> u32 {
        // SAFETY: the region lives until `release`, after which we are not used.
        unsafe { (*self.raw).lkey }
    }

    fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw).rkey }
    }

    fn handle(&self) -> RegionHandle {
        RegionHandle(self.raw as u64)
    }

    fn deregister(mut self) -> Result<(), StillRegistered> {
        self.release()
    }
}

impl Drop for VerbsRegion {
    fn drop(&mut self) {
        let _ = self.release();
    }
}

/// A type-2 memory window (`ibv_mw`).
pub struct VerbsWindow {
    domain: Arc<Domain>,
    raw: *mut ibv_mw,
    rkey: u32,
}

// SAFETY: a window is plain data to us; libibverbs may free it from any thread.
unsafe impl Send for VerbsWindow {}

impl VerbsWindow {
    pub(crate) fn allocate(domain: &Arc<Domain>) -> io::Result<Self> {
        // SAFETY: the context is open.
        let allocate =
            unsafe { (*domain.raw_context()).ops.alloc_mw }.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: the protection domain is alive.
        let raw = unsafe { allocate(domain.raw, MW_TYPE_2) };
        if raw.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the window was just allocated.
        let rkey = unsafe { (*raw).rkey };
        Ok(Self { domain: Arc::clone(domain), raw, rkey })
    }
}

impl MemoryWindow<super::Verbs> for VerbsWindow {
    fn rkey(&self) -> u32 {
        self.rkey
    }

    fn bind(&mut self, region: &VerbsRegion, addr: u64, length: u64, access: Access) -> Op {
        // The driver identifies the window by the key in here, that of the bind before. SAFETY: the
        // window lives until we are dropped, and no bind of it is in progress.
        unsafe { (*self.raw).rkey = self.rkey };
        self.rkey = next_key(self.rkey);
        let window = WindowHandle(self.raw as u64);
        Op::Bind(Bind { window, rkey: self.rkey, region: region.handle(), addr, length, access })
    }
}

/// The next key of a type-2 window: the consumer increments its low eight bits with each bind.
fn next_key(rkey: u32) -> u32 {
    rkey & !0xff | rkey.wrapping_add(1) & 0xff
}

impl Drop for VerbsWindow {
    fn drop(&mut self) {
        // SAFETY: the context is open.
        let Some(free) = (unsafe { (*self.domain.raw_context()).ops.dealloc_mw }) else { return };
        // SAFETY: the window was allocated by us and is no longer used.
        let rc = unsafe { free(self.raw) };
        if rc != 0 {
            let error = io::Error::from_raw_os_error(rc);
            tracing::warn!("a memory window stays allocated: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_counts_in_its_low_byte_only() {
        assert_eq!(next_key(0x1234_5601), 0x1234_5602);
        assert_eq!(next_key(0x1234_56ff), 0x1234_5600);
    }
}
