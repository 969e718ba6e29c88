//! One end of a connection: the shared memory, and the socket with which the ends wake each other.

use core::sync::atomic::{AtomicU64, Ordering};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags as SocketFlags, SocketFlags as NewSocketFlags, SocketType,
};

use super::mapping::{RingUse, SharedMapping, ShmEnd};
use super::ring::SharedRing;
use super::sleep_word::{PeerNews, SleepWord};
use crate::WakeFor;

const OPEN: u64 = 0;
const ENDED: u64 = 1;
const FAILED: u64 = 2;

/// How an end closed the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShmClosing {
    /// The queue pair was released, or the connection was disconnected.
    Ended,
    /// The queue pair went to ERROR because of a failure.
    Failed,
}

/// One end of a connection.
pub(super) struct ShmLink {
    mapping: SharedMapping,
    end: ShmEnd,
    /// Socket that wakes its reader by one byte, and hangs up when the peer's process ends. It is
    /// not an eventfd, since the flags of an eventfd are shared by all who have it: a peer could
    /// make our calls block.
    bell: OwnedFd,
    /// True once the bell has hung up.
    hung_up: bool,
    /// The news that the peer was last asked to ring for; it may have rung since.
    asked: Option<WakeFor>,
}

/// The descriptors that the active end passes to the passive one.
pub(super) struct LinkOffer {
    pub(super) memory: OwnedFd,
    pub(super) bell: OwnedFd,
}

impl ShmLink {
    /// Creates the active end of a new link, and the descriptors for the other end.
    pub(super) fn create() -> io::Result<(Self, LinkOffer)> {
        let (mapping, memory) = SharedMapping::create()?;
        let flags = NewSocketFlags::CLOEXEC | NewSocketFlags::NONBLOCK;
        let (ours, bell) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let link = Self { mapping, end: ShmEnd::Active, bell: ours, hung_up: false, asked: None };
        Ok((link, LinkOffer { memory, bell }))
    }

    /// Creates the passive end of a link from a peer's descriptors.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if the descriptors are not safe to use, else the error of the
    /// system call.
    pub(super) fn accept(offer: LinkOffer) -> io::Result<Self> {
        let LinkOffer { memory, bell } = offer;
        let is_bell = rustix::net::sockopt::socket_domain(&bell) == Ok(AddressFamily::UNIX)
            && rustix::net::sockopt::socket_type(&bell) == Ok(SocketType::STREAM);
        if !is_bell {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the peer's bell is no socket"));
        }
        let mapping = SharedMapping::open(memory.as_fd())?;
        Ok(Self { mapping, end: ShmEnd::Passive, bell, hung_up: false, asked: None })
    }

    /// A ring that this end writes.
    pub(super) fn outgoing(&self, which: RingUse) -> SharedRing<'_> {
        self.mapping.ring(self.end, which)
    }

    /// A ring that the peer writes.
    pub(super) fn incoming(&self, which: RingUse) -> SharedRing<'_> {
        self.mapping.ring(self.end.other(), which)
    }

    /// Marks this end as closed. The peer still reads everything that was published before.
    pub(super) fn close(&self, how: ShmClosing) {
        let how = match how {
            ShmClosing::Ended => ENDED,
            ShmClosing::Failed => FAILED,
        };
        self.mapping.closed(self.end).store(how, Ordering::Release);
        self.mapping.news(self.end).count();
        self.tell(PeerNews { records: true, read: true });
    }

    /// Stores an arbitrary closing value, as a faulty peer could.
    #[cfg(test)]
    pub(super) fn close_for_tests(&self, value: u64) {
        self.mapping.closed(self.end).store(value, Ordering::Release);
        self.mapping.news(self.end).count();
    }

    /// The word in shared memory that changes whenever the peer has published something.
    pub(super) fn peer_news(&self) -> &AtomicU64 {
        self.mapping.news(self.end.other()).word()
    }

    /// Changes the news count without news, so that the peer polls the link.
    #[cfg(test)]
    pub(super) fn count_news_for_tests(&self) {
        self.mapping.news(self.end).count();
    }

    /// How the peer closed the link; `None` while it is open. Everything that the peer published
    /// before is visible after this.
    pub(super) fn peer_closing(&self) -> Option<ShmClosing> {
        match self.mapping.closed(self.end.other()).load(Ordering::Acquire) {
            OPEN if self.hung_up => Some(ShmClosing::Failed),
            OPEN => None,
            ENDED => Some(ShmClosing::Ended),
            _ => Some(ShmClosing::Failed),
        }
    }

    /// Requests that the peer rings for `what`. The caller must check for news afterwards, before
    /// it sleeps.
    pub(super) fn fall_asleep(&mut self, what: WakeFor) {
        self.asked = Some(what);
        SleepWord(self.mapping.asleep(self.end)).fall_asleep(what);
    }

    /// Whether the peer has been asked to ring for `what`, and the request was not withdrawn.
    pub(super) fn is_asleep(&self, what: WakeFor) -> bool {
        self.asked == Some(WakeFor::Everything) || self.asked == Some(what)
    }

    /// Withdraws the request to ring.
    pub(super) fn wake_up(&mut self) {
        self.asked = None;
        SleepWord(self.mapping.asleep(self.end)).wake_up();
    }

    /// Rings the peer if it sleeps and has asked to be woken for these news.
    pub(super) fn tell(&self, news: PeerNews) {
        if SleepWord(self.mapping.asleep(self.end.other())).must_ring(news) {
            // A full socket is readable already, and a closed one is detected by its hang-up.
            let flags = SocketFlags::DONTWAIT | SocketFlags::NOSIGNAL;
            let _ = rustix::net::send(&self.bell, &[1], flags);
        }
    }

    /// The socket to sleep on, readable when the peer has rung.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Reads the bytes that were rung, without blocking, and detects a hang-up.
    pub(super) fn silence(&mut self) {
        let mut bytes = [0u8; 64];
        match rustix::net::recv(&self.bell, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((0, _)) => self.hung_up = true,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.hung_up = true,
        }
    }

    /// Whether the peer's process has ended or its end was closed.
    pub(super) fn hung_up(&self) -> bool {
        self.hung_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (ShmLink, ShmLink) {
        let (active, offer) = ShmLink::create().unwrap();
        (active, ShmLink::accept(offer).unwrap())
    }

    fn rang(link: &ShmLink) -> bool {
        let mut bytes = [0u8; 1];
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        rustix::net::recv(&link.bell, &mut bytes, flags).is_ok()
    }

    #[test]
    fn only_a_sleeping_peer_is_rung_and_once() {
        let (left, mut right) = pair();
        let news = PeerNews { records: true, read: true };
        left.tell(news);
        assert!(!rang(&right));
        right.fall_asleep(WakeFor::Everything);
        left.tell(PeerNews::default());
        assert!(!rang(&right));
        left.tell(PeerNews { records: false, read: true });
        assert!(rang(&right));
        right.silence();
        left.tell(news);
        assert!(!rang(&right), "it was told already");
        right.fall_asleep(WakeFor::Arrivals);
        left.tell(PeerNews { records: false, read: true });
        assert!(!rang(&right));
        left.tell(PeerNews { records: true, read: false });
        assert!(rang(&right));
    }

    #[test]
    fn an_end_that_is_gone_is_noticed() {
        let (left, mut right) = pair();
        right.silence();
        assert_eq!((right.peer_closing(), right.hung_up()), (None, false));
        drop(left);
        right.silence();
        assert_eq!((right.peer_closing(), right.hung_up()), (Some(ShmClosing::Failed), true));
    }

    #[test]
    fn an_end_that_closes_rings_the_peer() {
        for how in [ShmClosing::Ended, ShmClosing::Failed] {
            let (left, mut right) = pair();
            right.fall_asleep(WakeFor::Arrivals);
            left.close(how);
            assert_eq!(right.peer_closing(), Some(how));
            assert!(rang(&right));
        }
    }

    #[test]
    fn a_bell_of_another_kind_is_refused() {
        let (_, memory) = SharedMapping::create().unwrap();
        let bell = std::net::TcpListener::bind("127.0.0.1:0").unwrap().into();
        let error = ShmLink::accept(LinkOffer { memory, bell }).err().expect("refused");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    /// The peer shares the flags of the bell it passed, but no call of ours heeds them.
    #[test]
    fn a_bell_that_blocks_does_not_block_us() {
        let (_left, offer) = ShmLink::create().unwrap();
        let theirs = offer.bell.try_clone().unwrap();
        let mut right = ShmLink::accept(offer).unwrap();
        rustix::io::ioctl_fionbio(&theirs, false).unwrap();
        right.silence();
        assert!(!right.hung_up());
    }
}
