//! An RDMA device as seen through one local address.
#![expect(unsafe_code, reason = "calls rdma-core")]

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::cm::VerbsCm;
use super::context::{Context, DeviceInfo, Events, VerbsError, context_of};
use super::domain::Domain;
use super::group::VerbsGroup;
use super::memory::{VerbsRegion, VerbsWindow};
use super::quirks::DeviceFeature;
use crate::{Access, Caps, Device, DeviceEvent, DeviceStats, GroupConfig, Mem};

/// How to open a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct VerbsOptions {
    /// Never use SEND with Invalidate, even where the device offers it.
    pub no_send_with_invalidate: bool,
    /// Never use memory windows, even where the device offers them.
    pub no_memory_windows: bool,
    /// Use what the device says it can do even where it is known not to do it well: for testing the
    /// device.
    pub ignore_quirks: bool,
}

impl VerbsOptions {
    /// Says what of a device is not used.
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

/// An RDMA device as seen through one local address, and a protection domain of it.
#[derive(Clone)]
pub struct VerbsDevice {
    opened: Arc<OpenedContext>,
    domain: Arc<Domain>,
}

struct OpenedContext {
    context: Arc<Context>,
    caps: Caps,
    local_ip: IpAddr,
    has_cm: AtomicBool,
    events: Arc<Events>,
}

impl VerbsDevice {
    /// Opens the device that owns a local address.
    ///
    /// # Errors
    /// No device does, or the libraries are not usable.
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

    /// The protection domain that this handle stands for.
    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }
}

/// A device and the port of it that has an address.
#[derive(Clone, Debug)]
pub struct ServingPort {
    /// The device: its limits, firmware and ports.
    pub device: DeviceInfo,
    /// The port's number, from 1.
    pub port: u8,
}

/// The device that serves a local address, without using it.
///
/// # Errors
/// None does, or the libraries are not usable.
pub fn device_for(local_ip: IpAddr) -> Result<ServingPort, VerbsError> {
    let (context, port) = context_of(local_ip)?;
    Ok(ServingPort { device: context.info.clone(), port })
}

impl Device<super::Verbs> for VerbsDevice {
    fn caps(&self) -> &Caps {
        &self.opened.caps
    }

    fn local_ip(&self) -> IpAddr {
        self.opened.local_ip
    }

    fn in_new_domain(&self) -> io::Result<Self> {
        let domain = Domain::allocate(&self.opened.context)?;
        Ok(Self { opened: Arc::clone(&self.opened), domain })
    }

    unsafe fn register(&self, memory: Mem<'_>, access: Access) -> io::Result<VerbsRegion> {
        // SAFETY: passed on to the caller.
        unsafe { VerbsRegion::register(&self.domain, memory, access) }
    }

    fn window(&self) -> io::Result<VerbsWindow> {
        if !self.opened.caps.memory_windows {
            return Err(io::ErrorKind::Unsupported.into());
        }
        VerbsWindow::allocate(&self.domain)
    }

    fn group(&self, config: &GroupConfig) -> io::Result<VerbsGroup> {
        VerbsGroup::new(&self.opened.context, config)
    }

    fn connection_manager(&self) -> io::Result<VerbsCm> {
        if self.opened.has_cm.swap(true, Ordering::Relaxed) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        VerbsCm::new(&self.opened.context, &self.opened.caps, self.opened.local_ip)
    }

    fn async_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the context, and with it the descriptor, stays open as long as this device.
        Some(unsafe { BorrowedFd::borrow_raw((*self.opened.context.raw).async_fd) })
    }

    fn next_async(&self) -> io::Result<Option<DeviceEvent>> {
        if self.opened.events.is_empty() {
            self.opened.context.fetch_events()?;
        }
        Ok(self.opened.events.pop())
    }

    fn stats(&self) -> DeviceStats {
        let leaked_regions = self.opened.context.leaked_regions.load(Ordering::Relaxed);
        DeviceStats { leaked_regions, ..DeviceStats::default() }
    }
}
