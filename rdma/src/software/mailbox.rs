//! Messages between the threads of a connection manager and of groups.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crossbeam::queue::SegQueue;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::sync::{AtomicBool, Ordering};

/// A queue of messages, with an event file descriptor that wakes the reader.
pub(crate) struct Mailbox<M> {
    messages: SegQueue<M>,
    doorbell: Option<MailboxDoorbell>,
}

struct MailboxDoorbell<S = OwnedFd> {
    signal: S,
    /// Whether the signal was raised and not cleared since: raising it again would be a useless
    /// call.
    rung: AtomicBool,
}

/// The signal that a sleeping reader waits for (an eventfd).
trait MailboxSignal {
    /// Wakes the reader; the signal stays raised until it is cleared.
    fn raise(&self);

    /// Clears the signal; returns false if it was not raised.
    fn clear(&self) -> bool;
}

impl<M> Mailbox<M> {
    /// Creates a mailbox, with a doorbell if `doorbell` is true; readers cannot sleep without one.
    pub(crate) fn new(doorbell: bool) -> io::Result<Self> {
        let doorbell = if doorbell { Some(MailboxDoorbell::new()?) } else { None };
        Ok(Self { messages: SegQueue::new(), doorbell })
    }

    pub(crate) fn send(&self, message: M) {
        self.messages.push(message);
        if let Some(doorbell) = &self.doorbell {
            doorbell.ring();
        }
    }

    pub(crate) fn receive(&self) -> Option<M> {
        // To pop from an empty queue costs a fence, and readers poll.
        if self.messages.is_empty() { None } else { self.messages.pop() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Clears the doorbell, so that later messages ring it again. Receive messages after this call.
    pub(crate) fn quiet(&self) {
        if let Some(doorbell) = &self.doorbell {
            doorbell.quiet();
        }
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.doorbell.as_ref().map(|doorbell| doorbell.signal.as_fd())
    }
}

impl MailboxDoorbell {
    fn new() -> io::Result<Self> {
        let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { signal, rung: AtomicBool::new(false) })
    }
}

impl<S: MailboxSignal> MailboxDoorbell<S> {
    fn ring(&self) {
        if !self.rung.swap(true, Ordering::SeqCst) {
            self.signal.raise();
        }
    }

    fn quiet(&self) {
        // If the signal was not raised, a slow sender is about to raise it, and the flag must stay
        // set: with the flag cleared, the signal would stay raised and end every sleep immediately.
        if self.rung.load(Ordering::Relaxed) && self.signal.clear() {
            // A read-modify-write: messages of senders that found the flag set are visible after
            // it.
            self.rung.swap(false, Ordering::SeqCst);
        }
    }
}

impl MailboxSignal for OwnedFd {
    fn raise(&self) {
        let one = 1u64.to_ne_bytes();
        while rustix::io::write(self, &one) == Err(Errno::INTR) {}
    }

    fn clear(&self) -> bool {
        let mut count = [0; 8];
        loop {
            match rustix::io::read(self, &mut count) {
                Err(Errno::INTR) => {}
                result => return result.is_ok(),
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn is_readable(doorbell: &MailboxDoorbell) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&doorbell.signal, PollFlags::IN)], Some(&now)).unwrap() == 1
    }

    #[test]
    fn it_is_readable_from_ring_to_quiet() {
        let doorbell = MailboxDoorbell::new().unwrap();
        for _ in 0..2 {
            assert!(!is_readable(&doorbell));
            doorbell.ring();
            doorbell.ring();
            assert!(is_readable(&doorbell));
            doorbell.quiet();
        }
        assert!(!is_readable(&doorbell));
    }

    /// The reader looks between the two halves of a ring.
    #[test]
    fn a_slow_ringer_wakes_the_reader_once() {
        let doorbell = MailboxDoorbell::new().unwrap();
        assert!(!doorbell.rung.swap(true, Ordering::SeqCst));
        doorbell.quiet();
        doorbell.signal.raise();
        assert!(is_readable(&doorbell));
        doorbell.quiet();
        assert!(!is_readable(&doorbell));
        doorbell.ring();
        assert!(is_readable(&doorbell));
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
