//! The traits of the shared-memory provider and its device.
#![expect(unsafe_code, reason = "registers memory by address")]

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cm::ShmCm;
use super::group::{ShmGroup, ShmGroupHandle, ShmNewQp};
use super::shared::{Shm, ShmDevice};
use crate::software::regions::{SoftwareRegion, Window, table_full};
use crate::{Access, Caps, Device, DeviceStats, GroupConfig, Mem, MemoryWindow, Op, Provider};

impl Provider for Shm {
    const NAME: &'static str = "shm";
    const SHARES_MEMORY: bool = true;
    type Device = ShmDevice;
    type Region = SoftwareRegion;
    type Window = Window;
    type Group = ShmGroup;
    type GroupHandle = ShmGroupHandle;
    type NewQp = ShmNewQp;
    type Cm = ShmCm;
}

impl MemoryWindow<Shm> for Window {
    fn rkey(&self) -> u32 {
        self.rkey()
    }

    fn bind(&mut self, region: &SoftwareRegion, addr: u64, length: u64, access: Access) -> Op {
        Op::Bind(self.bind(region, addr, length, access))
    }
}

impl Device<Shm> for ShmDevice {
    fn caps(&self) -> &Caps {
        &self.shared.caps
    }

    fn local_ip(&self) -> IpAddr {
        self.shared.address
    }

    fn in_new_domain(&self) -> io::Result<Self> {
        let domain = self.shared.regions.new_domain();
        Ok(Self { shared: Arc::clone(&self.shared), domain })
    }

    unsafe fn register(&self, memory: Mem<'_>, access: Access) -> io::Result<SoftwareRegion> {
        // SAFETY: as the caller promises.
        unsafe { SoftwareRegion::register(&self.shared.regions, self.domain, memory, access) }
    }

    fn window(&self) -> io::Result<Window> {
        Window::new(self.shared.regions.clone(), self.domain).ok_or_else(table_full)
    }

    fn group(&self, config: &GroupConfig) -> io::Result<ShmGroup> {
        let index = self.shared.take_group().ok_or_else(|| {
            io::Error::other(format!(
                "all {} groups that the device was opened for are in use",
                self.shared.groups.len()
            ))
        })?;
        ShmGroup::new(Arc::clone(&self.shared), index, config)
            .inspect_err(|_| self.shared.give_group_back(index))
    }

    fn connection_manager(&self) -> io::Result<ShmCm> {
        if self.shared.cm_in_use.swap(true, Ordering::AcqRel) {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "the device's connection manager is in use",
            ));
        }
        ShmCm::new(Arc::clone(&self.shared))
    }

    fn stats(&self) -> DeviceStats {
        DeviceStats {
            regions: self.shared.regions.count(),
            queue_pairs: self.shared.numbers.count(),
            ..DeviceStats::default()
        }
    }
}
