//! The traits of a provider and its device, implemented for every [`Fabric`].
#![expect(unsafe_code, reason = "registers memory by address")]

use std::io;
use std::net::IpAddr;
use std::sync::atomic::Ordering;

use super::cm::RoceCm;
use super::fabric::Fabric;
use super::group::RoceGroup;
use super::new_qp::NewQp;
use super::regions::{SoftwareRegion, Window, table_full};
use super::shared::{GroupHandle, RoceDevice};
use crate::{
    Access, Caps, Device, DeviceEvent, DeviceStats, GroupConfig, Mem, MemoryWindow, Op, Provider,
};

impl<F: Fabric> Provider for F {
    const NAME: &'static str = F::NAME;
    type Device = RoceDevice<F>;
    type Region = SoftwareRegion;
    type Window = Window;
    type Group = RoceGroup<F>;
    type GroupHandle = GroupHandle;
    type NewQp = NewQp;
    type Cm = RoceCm<F>;
}

impl<F: Fabric> MemoryWindow<F> for Window {
    fn rkey(&self) -> u32 {
        self.rkey()
    }

    fn bind(&mut self, region: &SoftwareRegion, addr: u64, length: u64, access: Access) -> Op {
        Op::Bind(self.bind(region, addr, length, access))
    }
}

impl<F: Fabric> Device<F> for RoceDevice<F> {
    fn caps(&self) -> &Caps {
        &self.shared.caps
    }

    fn local_ip(&self) -> IpAddr {
        self.shared.fabric.endpoint().ip()
    }

    fn in_new_domain(&self) -> io::Result<Self> {
        let domain = self.shared.regions.new_domain();
        Ok(Self { shared: self.shared.clone(), domain })
    }

    unsafe fn register(&self, memory: Mem<'_>, access: Access) -> io::Result<SoftwareRegion> {
        // SAFETY: as the caller promises.
        unsafe { SoftwareRegion::register(&self.shared.regions, self.domain, memory, access) }
    }

    fn window(&self) -> io::Result<Window> {
        Window::new(self.shared.regions.clone(), self.domain).ok_or_else(table_full)
    }

    fn group(&self, config: &GroupConfig) -> io::Result<RoceGroup<F>> {
        for index in 1..=self.shared.groups.len() {
            if let Some(wire) = self.shared.fabric.take_wire(index) {
                return RoceGroup::new(self.shared.clone(), index, wire, config);
            }
        }
        Err(io::Error::other(format!(
            "all {} groups that the device was opened for are in use",
            self.shared.groups.len()
        )))
    }

    fn connection_manager(&self) -> io::Result<RoceCm<F>> {
        let wire = self.shared.fabric.take_wire(0).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::AlreadyExists,
                "the device's connection manager is in use",
            )
        })?;
        RoceCm::new(self.shared.clone(), wire)
    }

    fn next_async(&self) -> io::Result<Option<DeviceEvent>> {
        Ok(self.shared.fabric.next_async())
    }

    fn stats(&self) -> DeviceStats {
        let counters = &self.shared.counters;
        DeviceStats {
            mads_sent: counters.mads_sent.load(Ordering::Relaxed),
            mads_received: counters.mads_received.load(Ordering::Relaxed),
            mads_dropped: counters.mads_dropped.load(Ordering::Relaxed),
            regions: self.shared.regions.count(),
            leaked_regions: 0,
            queue_pairs: self.shared.numbers.count(),
        }
    }
}
