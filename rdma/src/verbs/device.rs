//! The traits of a provider and its device, and the lookup of the device for an address.
#![expect(unsafe_code, reason = "calls rdma-core")]

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cm::VerbsCm;
use super::context::{DeviceInfo, VerbsError, context_of};
use super::domain::Domain;
use super::group::{VerbsGroup, VerbsGroupHandle};
use super::memory::{VerbsRegion, VerbsWindow};
use super::queue_pair::VerbsQp;
use super::shared::{Verbs, VerbsDevice};
use crate::{Access, Caps, Device, DeviceEvent, DeviceStats, GroupConfig, Mem, Provider};

/// An RDMA device and the number of its port that has an address.
#[derive(Clone, Debug)]
pub struct ServingPort {
    /// Properties of the device.
    pub device: DeviceInfo,
    /// Number of the port, from 1.
    pub port: u8,
}

/// Returns the device and port that have a local address.
///
/// # Errors
/// No device has the address, or the libraries cannot be used.
pub fn device_for(local_ip: IpAddr) -> Result<ServingPort, VerbsError> {
    let (context, port) = context_of(local_ip)?;
    Ok(ServingPort { device: context.info.clone(), port })
}

impl Provider for Verbs {
    const NAME: &'static str = "verbs";
    type Device = VerbsDevice;
    type Region = VerbsRegion;
    type Window = VerbsWindow;
    type Group = VerbsGroup;
    type GroupHandle = VerbsGroupHandle;
    type NewQp = VerbsQp;
    type Cm = VerbsCm;
}

impl Device<Verbs> for VerbsDevice {
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
