//! Receiving: a batch of datagrams, which the kernel may have joined by UDP GRO, per system call.
#![expect(unsafe_code, reason = "recvmmsg takes pointers")]

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};

use roce_proto::wire::{Ecn, Flow, Identification};

use super::raw::{self, ControlBuffer, SocketName};
use crate::roce::wire::{Datagram, IpId, WireCounters};

/// Messages per system call. The data of four fits in the processor's cache until it is handled.
const MESSAGES: usize = 4;
/// Maximum length of a message joined by UDP GRO. Pages of a buffer are allocated on first use.
const MESSAGE_BYTES: usize = 1 << 16;

/// The receive buffers of one socket, allocated once.
pub(super) struct Inbox {
    bytes: Box<[u8]>,
    pieces: Box<[libc::iovec]>,
    names: Box<[SocketName]>,
    controls: Box<[ControlBuffer]>,
    headers: Box<[libc::mmsghdr]>,
    /// ICRC state of the last sender, which is often that of the next message too.
    latest: Option<(SocketAddr, Flow)>,
    /// The socket's count of dropped packets, as of the last message.
    overflows: u32,
}

// SAFETY: the pointers in `pieces` and `headers` lead into this inbox's own boxes.
unsafe impl Send for Inbox {}

/// Result of one receiving system call.
pub(super) enum ReceiveOutcome {
    /// Number of messages; fewer than fit, so the socket is drained.
    All(usize),
    /// Number of messages; as many as fit, so there may be more.
    Full(usize),
    /// None: the socket reported an error.
    Error,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; MESSAGES * MESSAGE_BYTES].into(),
            pieces: vec![raw::NO_PIECE; MESSAGES].into(),
            names: vec![SocketName::empty(); MESSAGES].into(),
            controls: vec![ControlBuffer::default(); MESSAGES].into(),
            headers: vec![raw::NO_MESSAGE; MESSAGES].into(),
            latest: None,
            overflows: 0,
        }
    }

    /// Receives up to [`MESSAGES`] messages in one system call.
    pub(super) fn fetch(
        &mut self,
        fd: &impl AsRawFd,
        counters: &mut WireCounters,
    ) -> ReceiveOutcome {
        self.prepare();
        counters.receive_calls += 1;
        match receive_some(fd.as_raw_fd(), &mut self.headers) {
            Ok(MESSAGES) => ReceiveOutcome::Full(MESSAGES),
            Ok(count) => ReceiveOutcome::All(count),
            Err(error) if is_nothing(&error) => ReceiveOutcome::All(0),
            Err(_) => ReceiveOutcome::Error,
        }
    }

    fn prepare(&mut self) {
        for index in 0..MESSAGES {
            let buffer = &mut self.bytes[index * MESSAGE_BYTES..(index + 1) * MESSAGE_BYTES];
            self.pieces[index] =
                libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let header = &mut self.headers[index].msg_hdr;
            header.msg_iov = &raw mut self.pieces[index];
            header.msg_iovlen = 1;
            header.msg_flags = 0;
            self.names[index].receive(header);
            self.controls[index].receive(header);
        }
    }

    /// Number of packets dropped because the socket's buffer was full, as of the last message.
    pub(super) const fn overflows(&self) -> u32 {
        self.overflows
    }

    /// Calls `handle` for each datagram of the first `count` messages; returns the number of
    /// datagrams.
    pub(super) fn for_each(
        &mut self,
        count: usize,
        to: SocketAddr,
        handle: &mut impl FnMut(Datagram<'_>),
    ) -> usize {
        (0..count).map(|index| self.for_each_segment(index, to, handle)).sum()
    }

    fn for_each_segment(
        &mut self,
        index: usize,
        to: SocketAddr,
        handle: &mut impl FnMut(Datagram<'_>),
    ) -> usize {
        let Some(from) = self.names[index].get() else { return 0 };
        let flow = self.flow(from, to);
        let header = &self.headers[index];
        self.overflows = raw::overflows(&header.msg_hdr).unwrap_or(self.overflows);
        let start = index * MESSAGE_BYTES;
        let bytes = &self.bytes[start..start + (header.msg_len as usize).min(MESSAGE_BYTES)];
        if header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
            return 0;
        }
        // The kernel joins only packets with equal traffic class (before Linux 6.9 any; the class
        // is then that of the first packet).
        let ecn = Ecn::of(raw::traffic_class(&header.msg_hdr).unwrap_or(0));
        let segment = raw::joined_segment(&header.msg_hdr).unwrap_or(bytes.len()).max(1);
        let segments = bytes.chunks(segment);
        let count = segments.len();
        for (index, bytes) in (0..).zip(segments) {
            // Linux numbers the packets of a UDP GSO batch from 0, as a Feedrail sender uses.
            let ip_id = IpId::Likely(Identification::segment(index));
            handle(Datagram { from, to, flow, ip_id, ecn, bytes });
        }
        count
    }

    fn flow(&mut self, from: SocketAddr, to: SocketAddr) -> Option<Flow> {
        if let Some((latest, flow)) = &self.latest
            && *latest == from
        {
            return Some(*flow);
        }
        let flow = Flow::new(from, to)?;
        self.latest = Some((from, flow));
        Some(flow)
    }
}

fn receive_some(fd: RawFd, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
    let count = u32::try_from(headers.len()).expect("a bounded batch");
    // SAFETY: `prepare` made each header point at a buffer, a name and control data of the inbox,
    // with their true lengths.
    let received = unsafe {
        libc::recvmmsg(fd, headers.as_mut_ptr(), count, libc::MSG_DONTWAIT, std::ptr::null_mut())
    };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// An entry of a socket's error queue.
pub(super) enum QueuedError {
    /// An ICMP error reported that this endpoint is unreachable.
    Unreachable(SocketAddr),
    /// Any other error; the transport detects its consequences.
    Other,
}

/// Takes the next entry of a socket's error queue; `None` if it is empty.
pub(super) fn next_error(fd: &impl AsRawFd) -> Option<QueuedError> {
    let mut name = SocketName::empty();
    let mut control = ControlBuffer::default();
    let mut payload = MaybeUninit::<[u8; 64]>::uninit();
    let mut piece = libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: 64 };
    let mut header = raw::NO_MESSAGE.msg_hdr;
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    name.receive(&mut header);
    control.receive(&mut header);
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the header points at locals that outlive the call, with their true lengths.
    let received = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, flags) };
    if received < 0 {
        return None;
    }
    Some(match (raw::queued_error(&header), name.get()) {
        (Some(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH), Some(peer)) => {
            QueuedError::Unreachable(peer)
        }
        _ => QueuedError::Other,
    })
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::super::options::{PortChoice, SoftOptions};
    use super::super::socket;
    use super::*;
    use crate::roce::{Entropy, SystemEntropy};

    #[test]
    fn datagrams_that_found_no_room_are_counted() {
        let ip = "127.0.0.1".parse().unwrap();
        let options = SoftOptions {
            receive_buffer_bytes: Some(1),
            ..SoftOptions::new(ip, PortChoice::Ephemeral)
        };
        let mut random = SystemEntropy.stream().unwrap();
        let endpoint = socket::open(&options, &mut random).unwrap();
        let (receiver, to) = (&endpoint.sockets[0].receiver, endpoint.address);
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (mut inbox, mut counters) = (Inbox::new(), WireCounters::default());
        let mut receive = |inbox: &mut Inbox| {
            if let ReceiveOutcome::All(count) | ReceiveOutcome::Full(count) =
                inbox.fetch(receiver, &mut counters)
            {
                inbox.for_each(count, to, &mut |_| {});
            }
            inbox.overflows()
        };
        for _ in 0..1000 {
            sender.send_to(&[0; 100], to).unwrap();
            assert_eq!(receive(&mut inbox), 0, "there is room for one");
        }
        let overflowed = (0..100_000).any(|_| {
            for _ in 0..100 {
                sender.send_to(&[0; 1000], to).unwrap();
            }
            receive(&mut inbox) > 0
        });
        assert!(overflowed, "100 datagrams fit {} bytes", endpoint.receive_buffer_bytes);
    }
    /// Whatever the DSCP, which a router may change as well.
    #[test]
    fn marks_are_seen() {
        for ip in ["127.0.0.1", "::1"] {
            let options = SoftOptions::new(ip.parse().unwrap(), PortChoice::Ephemeral);
            let mut random = SystemEntropy.stream().unwrap();
            let Ok(endpoint) = socket::open(&options, &mut random) else { continue };
            let (receiver, to) = (&endpoint.sockets[0].receiver, endpoint.address);
            let sender = UdpSocket::bind((ip, 0)).unwrap();
            let (mut inbox, mut counters) = (Inbox::new(), WireCounters::default());
            for (class, ecn) in
                [(0, Ecn::NotEct), (0x69, Ecn::Ect1), (0x02, Ecn::Ect0), (0xBB, Ecn::Ce)]
            {
                let options = socket2::SockRef::from(&sender);
                match ip {
                    "::1" => options.set_tclass_v6(class).unwrap(),
                    _ => options.set_tos_v4(class).unwrap(),
                }
                sender.send_to(&[0; 100], to).unwrap();
                let mut seen = None;
                let ReceiveOutcome::All(1) = inbox.fetch(receiver, &mut counters) else {
                    panic!("one datagram had come")
                };
                inbox.for_each(1, to, &mut |datagram| seen = Some(datagram.ecn));
                assert_eq!(seen, Some(ecn), "{ip}");
            }
        }
    }
}
