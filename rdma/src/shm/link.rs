//! One end of a connection: the shared memory, and the socket by which the ends wake each other.

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

/// How an end left the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShmClosing {
    /// The queue pair was released, or its connection was ended.
    Ended,
    /// The queue pair went to ERROR by itself.
    Failed,
}

/// One end of a connection.
pub(super) struct ShmLink {
    mapping: SharedMapping,
    end: ShmEnd,
    /// A byte in it wakes the one that reads it; it ends when the peer's process does. A socket
    /// and not an eventfd: the flags of an eventfd belong to all who have it, so a peer could make
    /// the calls of others wait.
    bell: OwnedFd,
    /// The peer's process or connection is gone.
    hung_up: bool,
    /// The news that the peer was last asked to ring for. It may have rung since.
    asked: Option<WakeFor>,
}

/// The memory and the socket that the active end passes to the passive one.
pub(super) struct LinkOffer {
    pub(super) memory: OwnedFd,
    pub(super) bell: OwnedFd,
}

impl ShmLink {
    /// The active end of a new link, and what makes the other.
    pub(super) fn create() -> io::Result<(Self, LinkOffer)> {
        let (mapping, memory) = SharedMapping::create()?;
        let flags = NewSocketFlags::CLOEXEC | NewSocketFlags::NONBLOCK;
        let (ours, bell) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let link = Self { mapping, end: ShmEnd::Active, bell: ours, hung_up: false, asked: None };
        Ok((link, LinkOffer { memory, bell }))
    }

    /// The passive end of a link that a peer offers.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if it is none that is safe to use, else the error of the
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

    /// A ring that we write.
    pub(super) fn outgoing(&self, which: RingUse) -> SharedRing<'_> {
        self.mapping.ring(self.end, which)
    }

    /// A ring that the peer writes.
    pub(super) fn incoming(&self, which: RingUse) -> SharedRing<'_> {
        self.mapping.ring(self.end.other(), which)
    }

    /// Says that we have left. Everything that was published before is still read.
    pub(super) fn close(&self, how: ShmClosing) {
        let how = match how {
            ShmClosing::Ended => ENDED,
            ShmClosing::Failed => FAILED,
        };
        self.mapping.closed(self.end).store(how, Ordering::Release);
        self.mapping.news(self.end).count();
        self.tell(PeerNews { records: true, read: true });
    }

    /// Writes what a peer of ours would not.
    #[cfg(test)]
    pub(super) fn close_for_tests(&self, value: u64) {
        self.mapping.closed(self.end).store(value, Ordering::Release);
        self.mapping.news(self.end).count();
    }

    /// The word that changes whenever the peer has published anything.
    pub(super) fn peer_news(&self) -> &AtomicU64 {
        self.mapping.news(self.end.other()).word()
    }

    /// Makes the peer look, as publishing does.
    #[cfg(test)]
    pub(super) fn count_news_for_tests(&self) {
        self.mapping.news(self.end).count();
    }

    /// Whether the peer has left. Everything that it published before is seen after this.
    pub(super) fn peer_closing(&self) -> Option<ShmClosing> {
        match self.mapping.closed(self.end.other()).load(Ordering::Acquire) {
            OPEN if self.hung_up => Some(ShmClosing::Failed),
            OPEN => None,
            ENDED => Some(ShmClosing::Ended),
            _ => Some(ShmClosing::Failed),
        }
    }

    /// Asks the peer to ring. Look for news afterwards, before sleeping.
    pub(super) fn fall_asleep(&mut self, what: WakeFor) {
        self.asked = Some(what);
        SleepWord(self.mapping.asleep(self.end)).fall_asleep(what);
    }

    /// Whether the peer was asked to ring for this, and not told since that it need not.
    pub(super) fn is_asleep(&self, what: WakeFor) -> bool {
        self.asked == Some(WakeFor::Everything) || self.asked == Some(what)
    }

    /// Tells the peer that it need not ring.
    pub(super) fn wake_up(&mut self) {
        self.asked = None;
        SleepWord(self.mapping.asleep(self.end)).wake_up();
    }

    /// Wakes the peer, if it sleeps and wants to know.
    pub(super) fn tell(&self, news: PeerNews) {
        if SleepWord(self.mapping.asleep(self.end.other())).must_ring(news) {
            // A full socket wakes as well, and one that the peer has closed tells us so by itself.
            let flags = SocketFlags::DONTWAIT | SocketFlags::NOSIGNAL;
            let _ = rustix::net::send(&self.bell, &[1], flags);
        }
    }

    /// The socket to sleep on.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Takes up what was rung, without waiting.
    pub(super) fn silence(&mut self) {
        let mut bytes = [0u8; 64];
        match rustix::net::recv(&self.bell, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((0, _)) => self.hung_up = true,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.hung_up = true,
        }
    }

    /// Whether the peer's process or connection is gone.
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
