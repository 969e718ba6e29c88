//! RDMA devices: options to open one, and the state that its groups and connection manager share.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::context::{Context, DeviceInfo, Events, VerbsError, context_of};
use super::domain::Domain;
use super::quirks::DeviceFeature;
use crate::Caps;

/// The provider for RDMA devices through libibverbs.
#[derive(Debug)]
pub enum Verbs {}

/// Options to open a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct VerbsOptions {
    /// Never use SEND with Invalidate, even if the device supports it.
    pub no_send_with_invalidate: bool,
    /// Never use memory windows, even if the device supports them.
    pub no_memory_windows: bool,
    /// Use all features that the device reports, even if known to be faulty: to test the device.
    pub ignore_quirks: bool,
}

impl VerbsOptions {
    /// Logs which features of a device are not used, and why.
    fn log(self, device: &DeviceInfo) {
        let log = |feature, obstacle: Option<&str>, switched_off: bool| {
            if let Some(reason) = obstacle.or(switched_off.then_some("switched off")) {
                tracing::info!(device = device.caps.name, reason, "{feature} not used");
            }
        };
        if self.ignore_quirks {
            return;
        }
        let obstacle = device.no_send_with_invalidate;
        log("SEND with Invalidate is", obstacle, self.no_send_with_invalidate);
        log("memory windows are", device.no_memory_windows, self.no_memory_windows);
    }
}

/// An RDMA device as seen through one local address, with a protection domain.
#[derive(Clone)]
pub struct VerbsDevice {
    pub(super) opened: Arc<OpenedContext>,
    pub(super) domain: Arc<Domain>,
}

/// The state that the handles of a device share.
pub(super) struct OpenedContext {
    pub(super) context: Arc<Context>,
    pub(super) caps: Caps,
    pub(super) local_ip: IpAddr,
    pub(super) has_cm: AtomicBool,
    pub(super) events: Arc<Events>,
}

impl VerbsDevice {
    /// Opens the device that owns a local address.
    ///
    /// # Errors
    /// No device has the address, it is an iWARP device, or the libraries cannot be used.
    pub fn open(local_ip: IpAddr, options: VerbsOptions) -> Result<Self, VerbsError> {
        let (context, _port) = context_of(local_ip)?;
        let mut caps = context.info.caps.clone();
        if caps.iwarp {
            return Err(VerbsError::Iwarp(caps.name));
        }
        if options.ignore_quirks {
            caps.send_with_invalidate =
                DeviceFeature::SendWithInvalidate.is_offered(context.cap_flags);
            caps.memory_windows = DeviceFeature::MemoryWindows.is_offered(context.cap_flags);
        }
        caps.send_with_invalidate &= !options.no_send_with_invalidate;
        caps.memory_windows &= !options.no_memory_windows;
        options.log(&context.info);
        let has_cm = AtomicBool::new(false);
        let events = context.listen();
        let domain = Domain::allocate(&context)
            .map_err(|error| VerbsError::System { address: local_ip, reason: error.to_string() })?;
        let opened = Arc::new(OpenedContext { context, caps, local_ip, has_cm, events });
        Ok(Self { opened, domain })
    }

    /// The protection domain of this handle.
    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }
}
