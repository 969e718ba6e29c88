//! Handles of librdmacm: event channels and identifiers, which are freed when they are dropped.
#![expect(unsafe_code, reason = "calls rdma-core")]

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use socket2::SockAddr;

use super::abi::*;
use super::library::Library;
use crate::ConnOptions;

/// An event channel; outlives the identifiers that report to it.
pub(crate) struct Channel {
    library: &'static Library,
    pub(super) raw: *mut rdma_event_channel,
    /// Serialises librdmacm's accesses to the queue pair of an identifier with its destruction by
    /// another thread. `rdma_get_cm_event` accesses it as well, and the identifier of the event is
    /// known only afterwards, so the lock is per channel.
    queue_pairs: Mutex<()>,
}

// SAFETY: librdmacm lets any thread use a channel; only its connection manager takes events from
// it.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    pub(crate) fn open(library: &'static Library) -> io::Result<Arc<Self>> {
        // SAFETY: the call has no preconditions.
        let raw = unsafe { (library.cm.rdma_create_event_channel)() };
        if raw.is_null() {
            return Err(io::Error::last_os_error());
        }
        let channel = Self { library, raw, queue_pairs: Mutex::new(()) };
        // SAFETY: the channel was just made.
        set_nonblocking(unsafe { (*raw).fd })?;
        Ok(Arc::new(channel))
    }

    pub(super) fn lock_queue_pairs(&self) -> MutexGuard<'_, ()> {
        self.queue_pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: every identifier holds the channel, so none is left.
        unsafe { (self.library.cm.rdma_destroy_event_channel)(self.raw) };
    }
}

/// A communication identifier (`rdma_cm_id`) of a listener or a connection. Its queue pair holds it
/// and is destroyed first.
pub(crate) struct Id {
    pub(super) raw: *mut rdma_cm_id,
    /// True once the connection is established far enough for the queue pair to send.
    ready: AtomicBool,
    /// True once the connection has ended or failed, so that the queue pair is or must be in ERROR.
    ended: AtomicBool,
    pub(super) channel: Arc<Channel>,
}

// SAFETY: librdmacm serialises its own state; the queue pair under it is guarded by the channel's
// lock.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

impl Id {
    pub(crate) fn create(channel: &Arc<Channel>, name: u64) -> io::Result<Self> {
        let mut raw = null_mut();
        let create = channel.library.cm.rdma_create_id;
        // SAFETY: the channel is alive; the context is a number that is never followed.
        check(unsafe { create(channel.raw, &raw mut raw, name as *mut c_void, PS_TCP) })?;
        Ok(Self::from_raw(channel, raw))
    }

    pub(super) fn from_raw(channel: &Arc<Channel>, raw: *mut rdma_cm_id) -> Self {
        let channel = Arc::clone(channel);
        Self { raw, ready: AtomicBool::new(false), ended: AtomicBool::new(false), channel }
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.channel.library
    }

    pub(crate) fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let address = SockAddr::from(address);
        // SAFETY: the address is a socket address of its family.
        check(unsafe { (self.library().cm.rdma_bind_addr)(self.raw, address.as_ptr().cast()) })
    }

    /// The device that the identifier is bound to; null if none.
    pub(crate) fn verbs(&self) -> *mut ibv_context {
        // SAFETY: the identifier is alive.
        unsafe { (*self.raw).verbs }
    }

    /// The port number of the device that the identifier is bound to.
    pub(crate) fn port(&self) -> u8 {
        // SAFETY: the identifier is alive.
        unsafe { (*self.raw).port_num }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(crate) fn note_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    pub(crate) fn note_end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub(crate) fn create_qp(
        &self,
        pd: *mut ibv_pd,
        attr: &mut ibv_qp_init_attr,
    ) -> io::Result<*mut ibv_qp> {
        let _guard = self.channel.lock_queue_pairs();
        // SAFETY: the protection domain and the queues in `attr` are alive and of the identifier's
        // device.
        check(unsafe { (self.library().cm.rdma_create_qp)(self.raw, pd, attr) })?;
        // SAFETY: the identifier is alive.
        Ok(unsafe { (*self.raw).qp })
    }

    pub(crate) fn destroy_qp(&self) {
        let _guard = self.channel.lock_queue_pairs();
        // SAFETY: the identifier is alive, and the caller owns its queue pair.
        unsafe { (self.library().cm.rdma_destroy_qp)(self.raw) };
    }

    pub(super) fn option<T>(&self, option: c_int, mut value: T) -> io::Result<()> {
        let set = self.library().cm.rdma_set_option;
        let address = (&raw mut value).cast();
        // SAFETY: the value is alive and has the size that is given.
        check(unsafe { set(self.raw, OPTION_ID, option, address, size_of::<T>()) })
    }

    /// Moves the queue pair to ERROR and sends a DREQ.
    pub(super) fn disconnect(&self) {
        let _guard = self.channel.lock_queue_pairs();
        self.note_end();
        // SAFETY: the identifier is alive.
        if let Err(error) = check(unsafe { (self.library().cm.rdma_disconnect)(self.raw) }) {
            tracing::debug!("disconnecting: {error}");
        }
    }

    pub(super) fn set_options(&self, options: &ConnOptions) -> io::Result<()> {
        if let Some(tos) = options.type_of_service {
            self.option(OPTION_ID_TOS, tos)?;
        }
        if let Some(exponent) = options.ack_timeout_exponent
            && let Err(error) = self.option(OPTION_ID_ACK_TIMEOUT, exponent)
        {
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                tracing::warn!("the ACK time-out stays at the device's default: {error}");
            });
        }
        Ok(())
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: nothing else holds the identifier, its queue pair is gone, and its events are
        // acknowledged immediately.
        unsafe { (self.library().cm.rdma_destroy_id)(self.raw) };
    }
}

/// Sets `O_NONBLOCK` on a file descriptor.
pub(crate) fn set_nonblocking(fd: c_int) -> io::Result<()> {
    // SAFETY: fcntl has no memory effects for these commands; a bad descriptor is an error.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags < 0 || libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Converts the result of a call that returns 0 or sets `errno`.
pub(crate) fn check(rc: c_int) -> io::Result<()> {
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
