//! Messages between threads: the connection manager a group, and a group the connection
//! manager.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crossbeam::queue::SegQueue;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::sync::{AtomicBool, Ordering};

/// A queue of messages and a doorbell that wakes the reader.
pub(crate) struct Mailbox<M> {
    messages: SegQueue<M>,
    doorbell: Option<MailboxDoorbell>,
}

struct MailboxDoorbell<S = OwnedFd> {
    signal: S,
    /// Whether it was rung and the reader has not looked yet: ringing again would only cost a call.
    rung: AtomicBool,
}

/// The signal that a reader sleeps on.
trait MailboxSignal {
    /// Wakes the reader, and every sleep that begins before it is cleared.
    fn raise(&self);

    /// Clears the signal, so that the reader may sleep; false if it was not raised.
    fn clear(&self) -> bool;
}

impl<M> Mailbox<M> {
    /// A mailbox, with a doorbell where readers sleep.
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
        self.messages.pop()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Makes the doorbell ring again for what comes from now on. Look into the mailbox afterwards.
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
        // If it was not raised, a slow ringer is about to do it, and the flag must stay up: with
        // the flag down what it raises would stay, and end every sleep immediately.
        if self.rung.load(Ordering::Relaxed) && self.signal.clear() {
            // Read and write in one step: a message that was sent by a thread that found it rung is
            // seen after this.
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
