//! One epoll descriptor for all events that end a thread's sleep.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// Epoll descriptor that is readable when a socket or a doorbell is.
pub(super) struct Sleep(OwnedFd);

impl Sleep {
    /// Watches the receiving socket, the errors of a sending socket, and a doorbell; returns `None`
    /// on a simulated network, which has no file descriptors.
    pub(super) fn new(
        receiver: Option<BorrowedFd<'_>>,
        sender: Option<BorrowedFd<'_>>,
        doorbell: Option<BorrowedFd<'_>>,
    ) -> io::Result<Option<Self>> {
        let Some(receiver) = receiver else { return Ok(None) };
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, receiver, EventData::new_u64(0), EventFlags::IN)?;
        if let Some(sender) = sender {
            epoll::add(&epoll, sender, EventData::new_u64(1), EventFlags::empty())?;
        }
        if let Some(doorbell) = doorbell {
            epoll::add(&epoll, doorbell, EventData::new_u64(2), EventFlags::IN)?;
        }
        Ok(Some(Self(epoll)))
    }

    /// Starts or stops watching a sending socket for writability: the separate sender, or the
    /// receiver if that sends.
    pub(super) fn watch_for_room(
        &self,
        [receiver, sender]: [Option<BorrowedFd<'_>>; 2],
        wanted: bool,
    ) -> io::Result<()> {
        let (room, writable) = (EventData::new_u64(1), EventFlags::OUT);
        match (sender, receiver) {
            (Some(sender), _) if wanted => epoll::add(&self.0, sender, room, writable)?,
            (Some(sender), _) => epoll::delete(&self.0, sender)?,
            (None, Some(receiver)) => {
                let also = if wanted { writable } else { EventFlags::empty() };
                epoll::modify(&self.0, receiver, EventData::new_u64(0), EventFlags::IN | also)?;
            }
            (None, None) => {}
        }
        Ok(())
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
