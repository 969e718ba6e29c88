//! Asynchronous events of a device, such as a failure or a port that went down.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rdma::{Device, DeviceEvent, Provider, Time};
use rustix::event::epoll;

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

    pub(crate) fn next<P: Provider>(
        &mut self,
        now: Time,
        device: &P::Device,
    ) -> Option<DeviceEvent> {
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
