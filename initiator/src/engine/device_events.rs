//! Asynchronous events of a device, such as a failure or a port that went down.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rdma::{Device, DeviceEvent, Group, Provider, Time};
use rustix::event::epoll;

use crate::engine::HostEngine;
use crate::engine::controller::ControllerPhase;
use crate::engine::queue::HostQueue;
use crate::engine::results::Outbox;
use crate::types::error::ErrorKind;

/// Pause between polls for events by an engine that never sleeps, since each is a system call.
const INTERVAL: Duration = Duration::from_millis(100);

/// State of polling a device for asynchronous events.
pub(crate) struct DeviceEvents {
    /// Descriptor that is readable when the device has events; `None` for simulated devices. It is
    /// an epoll instance on the descriptor of the device, so that it can be closed after the device
    /// failed, whose descriptor may stay readable.
    wake: Option<OwnedFd>,
    /// Time of the next poll, unless a wake-up comes earlier.
    ask_at: Time,
    /// Whether the device has failed, after which it is not polled.
    over: bool,
}

impl DeviceEvents {
    pub(crate) fn of<P: Provider>(device: &P::Device) -> io::Result<Self> {
        let wake = device.async_fd().map(watch).transpose()?;
        Ok(Self { wake, ask_at: Time::ZERO, over: false })
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.wake.as_ref().map(AsFd::as_fd)
    }

    /// Records a wake-up, which may have been for an event.
    pub(crate) fn woken(&mut self) {
        self.ask_at = Time::ZERO;
    }

    fn next<P: Provider>(&mut self, now: Time, device: &P::Device) -> Option<DeviceEvent> {
        if self.over || (self.wake.is_some() && now < self.ask_at) {
            return None;
        }
        // A device whose events cannot be read is treated as failed.
        let event = device.next_async().unwrap_or(Some(DeviceEvent::DeviceFatal));
        match event {
            None => self.ask_at = now + INTERVAL,
            Some(DeviceEvent::DeviceFatal) => {
                self.over = true;
                self.wake = None;
            }
            Some(_) => {}
        }
        event
    }
}

fn watch(device: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, device, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    Ok(epoll)
}

impl<P: Provider> HostEngine<P> {
    pub(crate) fn drain_device_events(&mut self, now: Time, outbox: &mut Outbox) -> bool {
        let mut worked = false;
        while let Some(event) = self.device_events.next::<P>(now, &self.device) {
            worked = true;
            let (address, caps) = (self.device.local_ip(), self.device.caps());
            let device = caps.name.as_str();
            match event {
                DeviceEvent::PortUp => tracing::info!(%address, device, "the port is up"),
                DeviceEvent::PortDown => tracing::warn!(%address, device, "the port is down"),
                DeviceEvent::QpFatal { qpn } => self.queue_pair_failed(now, qpn, outbox),
                DeviceEvent::DeviceFatal | DeviceEvent::CqError => self.device_failed(now, outbox),
                other => tracing::debug!(%address, device, ?other, "an event of the device"),
            }
        }
        worked
    }

    fn queue_pair_failed(&mut self, now: Time, qpn: u32, outbox: &mut Outbox) {
        let mut queues = self.queues.values();
        let failed = queues.find(|queue| self.group.qpn(queue.qp()) == qpn);
        let Some(controller) = failed.map(HostQueue::controller) else { return };
        drop(queues);
        let cause = ErrorKind::ConnectionLost("the RDMA device reports a failed queue pair");
        self.end_association(now, controller, cause.into(), outbox);
    }

    fn device_failed(&mut self, now: Time, outbox: &mut Outbox) {
        let keys: Vec<_> = self.controllers.keys().collect();
        for key in keys {
            let phase = self.controllers.get(key).map(|controller| &controller.phase);
            if let Some(
                ControllerPhase::Opening(_)
                | ControllerPhase::Live(_)
                | ControllerPhase::Closing(_),
            ) = phase
            {
                let cause = ErrorKind::ConnectionLost("the RDMA device failed");
                self.end_association(now, key, cause.into(), outbox);
            }
        }
    }
}
