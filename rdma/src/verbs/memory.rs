//! Memory regions and type-2 memory windows.
#![expect(unsafe_code, reason = "calls rdma-core")]

use core::ffi::{c_int, c_void};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use super::abi::*;
use super::context::Context;
use super::library::Verbs as Functions;
use super::lockable::explain;
use crate::{Access, Bind, Mem, MemoryRegion, MemoryWindow, Op, RegionHandle, WindowHandle};

/// A registered region.
pub struct VerbsRegion {
    context: Arc<Context>,
    raw: *mut ibv_mr,
}

// SAFETY: a region's keys never change, and libibverbs may deregister it from any thread.
unsafe impl Send for VerbsRegion {}
// SAFETY: as above; shared use only reads the keys.
unsafe impl Sync for VerbsRegion {}

impl VerbsRegion {
    /// Registers memory.
    ///
    /// # Safety
    /// As for [`crate::Device::register`].
    pub(crate) unsafe fn register(
        context: &Arc<Context>,
        memory: Mem<'_>,
        access: Access,
    ) -> io::Result<Self> {
        // SAFETY: passed on to the caller.
        let raw = unsafe { register_raw(context, memory, access)? };
        if raw.is_null() {
            let what = format!("the memory to register, {} KiB,", length_of(memory) / 1024);
            return Err(explain(io::Error::last_os_error(), &what));
        }
        Ok(Self { context: Arc::clone(context), raw })
    }
}

/// # Safety
/// As for [`crate::Device::register`].
unsafe fn register_raw(
    context: &Context,
    memory: Mem<'_>,
    access: Access,
) -> io::Result<*mut ibv_mr> {
    let functions = &context.library.verbs;
    match memory {
        Mem::Host { addr, length } => {
            // SAFETY: passed on to the caller.
            Ok(unsafe { register_host(functions, context.pd, addr.cast(), length, access.bits()) })
        }
        Mem::DmaBuf { fd, offset, length, iova } => {
            let register = functions.ibv_reg_dmabuf_mr.ok_or(io::ErrorKind::Unsupported)?;
            let access = access.bits().cast_signed();
            // SAFETY: passed on to the caller; the descriptor is open.
            Ok(unsafe { register(context.pd, offset, length, iova, fd.as_raw_fd(), access) })
        }
    }
}

/// Registers host memory with relaxed ordering where that is to be had. Optional flags may only be passed through
/// `ibv_reg_mr_iova2`, which drops them on kernels that do not know them; rxe in some 2023 kernels refuses them instead.
///
/// # Safety
/// As for [`crate::Device::register`].
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

impl MemoryRegion for VerbsRegion {
    fn lkey(&self) -> u32 {
        // SAFETY: the region lives until we are dropped.
        unsafe { (*self.raw).lkey }
    }

    fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw).rkey }
    }

    fn handle(&self) -> RegionHandle {
        RegionHandle(self.raw as u64)
    }
}

impl Drop for VerbsRegion {
    fn drop(&mut self) {
        // SAFETY: the region was registered by us and is not used any more.
        let rc: c_int = unsafe { (self.context.library.verbs.ibv_dereg_mr)(self.raw) };
        if rc != 0 {
            // The kernel refuses while a window is bound to it; the memory then stays open to the peer.
            let error = io::Error::from_raw_os_error(rc);
            tracing::error!("a memory region could not be deregistered: {error}");
        }
    }
}

/// A type-2 memory window.
pub struct VerbsWindow {
    context: Arc<Context>,
    raw: *mut ibv_mw,
    rkey: u32,
}

// SAFETY: a window is plain data to us; libibverbs may free it from any thread.
unsafe impl Send for VerbsWindow {}

impl VerbsWindow {
    pub(crate) fn allocate(context: &Arc<Context>) -> io::Result<Self> {
        // SAFETY: the context is open.
        let allocate = unsafe { (*context.raw).ops.alloc_mw }.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: the protection domain is alive.
        let raw = unsafe { allocate(context.pd, MW_TYPE_2) };
        if raw.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the window was just allocated.
        let rkey = unsafe { (*raw).rkey };
        Ok(Self { context: Arc::clone(context), raw, rkey })
    }
}

impl MemoryWindow<super::Verbs> for VerbsWindow {
    fn rkey(&self) -> u32 {
        self.rkey
    }

    fn bind(&mut self, region: &VerbsRegion, addr: u64, length: u64, access: Access) -> Op {
        // Drivers tell the kernel by the key in here which window is meant: it is that of the bind before this one.
        // SAFETY: the window lives until we are dropped, and no bind of it is under way.
        unsafe { (*self.raw).rkey = self.rkey };
        self.rkey = next_key(self.rkey);
        let window = WindowHandle(self.raw as u64);
        Op::Bind(Bind { window, rkey: self.rkey, region: region.handle(), addr, length, access })
    }
}

/// A type-2 window's key has eight bits that the consumer counts up with each bind.
fn next_key(rkey: u32) -> u32 {
    rkey & !0xff | rkey.wrapping_add(1) & 0xff
}

impl Drop for VerbsWindow {
    fn drop(&mut self) {
        // SAFETY: the context is open.
        let Some(free) = (unsafe { (*self.context.raw).ops.dealloc_mw }) else { return };
        // SAFETY: the window was allocated by us and is not used any more.
        unsafe { free(self.raw) };
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
