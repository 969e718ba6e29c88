//! Protection domains of a device (`ibv_pd`).
#![expect(unsafe_code, reason = "calls rdma-core")]

use core::ops::Deref;
use std::io;
use std::sync::Arc;

use super::abi::*;
use super::context::Context;

/// A protection domain. Regions, windows and queue pairs hold it, since it must be deallocated
/// after them.
pub(crate) struct Domain {
    context: Arc<Context>,
    pub(crate) raw: *mut ibv_pd,
}

// SAFETY: libibverbs serialises what it must; protection domains may be used from any thread.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub(crate) fn allocate(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.library.verbs.ibv_alloc_pd)(context.raw) };
        if raw.is_null() {
            let error = io::Error::last_os_error();
            let name = &context.info.caps.name;
            let message = format!("{name} has no protection domain left: {error}");
            return Err(io::Error::new(error.kind(), message));
        }
        Ok(Arc::new(Self { context: Arc::clone(context), raw }))
    }

    /// The device of the domain.
    pub(crate) fn raw_context(&self) -> *mut ibv_context {
        self.context.raw
    }
}

impl Deref for Domain {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: allocated by us, and all that we made in it is gone.
        let rc = unsafe { (self.library.verbs.ibv_dealloc_pd)(self.raw) };
        if rc != 0 {
            // A region that could not be deregistered keeps it allocated.
            let error = io::Error::from_raw_os_error(rc);
            tracing::warn!("a protection domain stays allocated: {error}");
        }
    }
}
