//! Tests of sending over UDP sockets.

use super::*;
use crate::roce::wire::SenderIndex;
use crate::soft::raw::SocketName;

/// Takes one message at a time, or fails as it is told.
struct Scripted<'a> {
    socket: &'a UdpSocket,
    errors: VecDeque<i32>,
}

impl Outlet for Scripted<'_> {
    fn send_messages(&mut self, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
        match self.errors.pop_front() {
            None => (&*self.socket).send_messages(&mut headers[..1]),
            Some(error) => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// The class of packets for which a message names none.
const SOCKET_CLASS: u8 = 0x02;

struct Bench {
    socket: UdpSocket,
    receiver: UdpSocket,
    batch: SendBatch,
    backlog: Backlog,
    cuts: GsoSupport,
    counters: WireCounters,
}

impl Bench {
    fn new(ip: &str) -> io::Result<Self> {
        let [socket, receiver] = [UdpSocket::bind((ip, 0))?, UdpSocket::bind((ip, 0))?];
        receiver.set_nonblocking(true)?;
        let options = socket2::SockRef::from(&socket);
        match ip {
            "::1" => options.set_tclass_v6(SOCKET_CLASS.into())?,
            _ => options.set_tos_v4(SOCKET_CLASS.into())?,
        }
        Ok(Self {
            socket,
            receiver,
            batch: SendBatch::new(SOCKET_CLASS),
            backlog: Backlog::default(),
            cuts: GsoSupport::new(true),
            counters: WireCounters::default(),
        })
    }

    /// Queues a packet with this payload, which the caller keeps until it is sent.
    fn push(&mut self, payload: &[u8], traffic_class: u8) {
        let packet = Outgoing {
            to: &self.receiver.local_addr().unwrap(),
            sender: SenderIndex::FIRST,
            destination_qpn: 0x101,
            headers: &[0; 12],
            pieces: &[payload],
            pad_bytes: 0,
            traffic_class,
            continues: false,
        };
        self.batch.push(&packet, true, false);
    }

    fn send(&mut self, errors: &[i32]) -> Option<Shortage> {
        let from = self.socket.local_addr().unwrap();
        let errors = errors.iter().copied().collect();
        let mut outlet = Scripted { socket: &self.socket, errors };
        let Self { batch, backlog, cuts, counters, .. } = self;
        if batch.is_empty() {
            return backlog.send(&mut outlet, cuts, counters).shortage;
        }
        batch.send(from, &mut outlet, cuts, backlog, counters).shortage
    }

    /// The payloads of what has come.
    fn received(&self) -> Vec<Vec<u8>> {
        let mut bytes = [0; 2048];
        let next =
            || self.receiver.recv(&mut bytes).ok().map(|length| bytes[12..length - 4].to_vec());
        std::iter::from_fn(next).collect()
    }
}

#[test]
fn refused_messages_leave_later_in_order() {
    let mut bench = Bench::new("127.0.0.1").unwrap();
    // Each is longer than the one before, so that none share a message.
    let mut payloads = [vec![1; 100], vec![2; 200], vec![3; 300]];
    let expected = payloads.to_vec();
    payloads.iter().for_each(|payload| bench.push(payload, 0));
    assert_eq!(bench.send(&[libc::EAGAIN]), Some(Shortage::Buffer));
    assert!(bench.received().is_empty());
    // The memory may be used for other things.
    payloads.iter_mut().for_each(|payload| payload.fill(9));
    assert_eq!(bench.send(&[libc::ENOBUFS]), Some(Shortage::System));
    let behind = vec![4; 50];
    bench.push(&behind, 0);
    assert_eq!(bench.send(&[]), None, "it waits behind the others");
    assert!(bench.received().is_empty());
    assert_eq!(bench.send(&[]), None);
    assert_eq!(bench.received(), [expected, vec![behind]].concat());
    assert!(bench.backlog.is_empty() && bench.counters.send_drops == 0);
}

#[test]
fn the_backlog_has_a_bound() {
    let mut bench = Bench::new("127.0.0.1").unwrap();
    let payload = vec![1; 1000];
    for _ in 0..2000 {
        bench.push(&payload, 0);
        bench.send(&[libc::EAGAIN]);
    }
    assert!(bench.backlog.bytes.len() <= MAX_KEPT);
    assert_eq!(bench.counters.send_drops + bench.backlog.messages.len() as u64, 2000);
}

/// An ICMP message, which may be forged, makes one call fail, and no packet is too long.
#[test]
fn a_packet_refused_as_too_long_is_retried() {
    let mut bench = Bench::new("127.0.0.1").unwrap();
    let payload = vec![1; 100];
    bench.push(&payload, 0);
    assert_eq!(bench.send(&[libc::EMSGSIZE]), None);
    assert_eq!((bench.received(), bench.counters.send_drops), (vec![payload.clone()], 0));
    bench.push(&payload, 0);
    assert_eq!(bench.send(&[libc::EMSGSIZE, libc::EMSGSIZE]), None);
    assert_eq!((bench.received(), bench.counters.send_drops), (vec![], 1));
}

/// The traffic class of the next packet that has come.
fn class_received(receiver: &UdpSocket) -> Option<u8> {
    let (mut name, mut control, mut bytes) =
        (SocketName::empty(), ControlBuffer::default(), [0u8; 2048]);
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut header = raw::NO_MESSAGE.msg_hdr;
    (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
    name.receive(&mut header);
    control.receive(&mut header);
    // SAFETY: the header points at locals that outlive the call, with their true lengths.
    let length =
        unsafe { libc::recvmsg(receiver.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
    assert!(length > 0, "{}", io::Error::last_os_error());
    raw::traffic_class(&header)
}

#[test]
fn packets_and_trains_have_their_traffic_class() {
    for ip in ["127.0.0.1", "::1"] {
        let Ok(mut bench) = Bench::new(ip) else { continue };
        let receiver = socket2::SockRef::from(&bench.receiver);
        match ip {
            "::1" => receiver.set_recv_tclass_v6(true).unwrap(),
            _ => receiver.set_recv_tos_v4(true).unwrap(),
        }
        let payload = vec![1; 100];
        // DSCP 26 with an ECN-capable transport; trains; none; and that of the socket.
        for (packets, class) in [(1, 0x6A), (3, 0xB8), (1, 0), (3, 0x02), (1, 0x02)] {
            (0..packets).for_each(|_| bench.push(&payload, class));
            assert_eq!(bench.send(&[]), None);
            for _ in 0..packets {
                assert_eq!(class_received(&bench.receiver), Some(class), "{ip}");
            }
        }
    }
}
