//! Structures for `sendmmsg` and `recvmmsg`, with control messages.
#![expect(unsafe_code, reason = "control messages are built and walked by pointer")]

use std::mem;
use std::net::SocketAddr;
use std::ptr;

use socket2::SockAddr;

const SOL_UDP: i32 = 17;
const UDP_SEGMENT: i32 = 103;
const UDP_GRO: i32 = 104;

pub(super) const NO_PIECE: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };

pub(super) const NO_MESSAGE: libc::mmsghdr = libc::mmsghdr {
    msg_hdr: libc::msghdr {
        msg_name: ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: ptr::null_mut(),
        msg_iovlen: 0,
        msg_control: ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    },
    msg_len: 0,
};

/// Buffer for the control messages of one message or error, aligned as required.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct ControlBuffer([u8; 256]);

impl Default for ControlBuffer {
    fn default() -> Self {
        Self([0; 256])
    }
}

impl ControlBuffer {
    /// Sets the control messages of `header`: for UDP GSO with segments of this length if there are
    /// several, and for this traffic class if it is given.
    pub(super) fn describe(
        &mut self,
        header: &mut libc::msghdr,
        segment: usize,
        segments: usize,
        traffic_class: Option<u8>,
        to: SocketAddr,
    ) {
        let mut used = 0;
        if segments > 1 {
            let segment = u16::try_from(segment).expect("a segment is shorter than a datagram");
            used = self.put(used, SOL_UDP, UDP_SEGMENT, &segment.to_ne_bytes());
        }
        if let Some(traffic_class) = traffic_class {
            let (level, kind) = match to {
                SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
                SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
            };
            used = self.put(used, level, kind, &i32::from(traffic_class).to_ne_bytes());
        }
        header.msg_controllen = used;
        header.msg_control = if used == 0 { ptr::null_mut() } else { (&raw mut self.0).cast() };
    }

    /// Writes a control message at byte `at`; returns the position after it.
    fn put(&mut self, at: usize, level: i32, kind: i32, data: &[u8]) -> usize {
        let length = u32::try_from(data.len()).expect("a small option");
        // SAFETY: these only compute.
        let (content, space) =
            unsafe { (libc::CMSG_LEN(length) as usize, libc::CMSG_SPACE(length) as usize) };
        let room = &mut self.0[at..at + space];
        let (start, behind) = room.split_at_mut(content - data.len());
        let header = libc::cmsghdr { cmsg_len: content, cmsg_level: level, cmsg_type: kind };
        // SAFETY: the room is longer than a header, whose bytes are all initialised; it need not be
        // aligned here, though it is, as the buffer and each message's space are.
        unsafe { start.as_mut_ptr().cast::<libc::cmsghdr>().write_unaligned(header) };
        behind[..data.len()].copy_from_slice(data);
        at + space
    }

    /// Makes `header` receive control messages into this buffer.
    pub(super) fn receive(&mut self, header: &mut libc::msghdr) {
        header.msg_control = (&raw mut self.0).cast();
        header.msg_controllen = mem::size_of::<Self>();
    }
}

/// The segment length of a message that the kernel joined by UDP GRO; `None` for a single packet.
pub(super) fn joined_segment(header: &libc::msghdr) -> Option<usize> {
    let data = find_control(header, |level, kind| level == SOL_UDP && kind == UDP_GRO)?;
    let length = i32::from_ne_bytes(data.get(..4)?.try_into().ok()?);
    usize::try_from(length).ok().filter(|&length| length > 0)
}

/// The socket's count of packets dropped because its buffer was full (`SO_RXQ_OVFL`); `None` before
/// the first drop.
pub(super) fn overflows(header: &libc::msghdr) -> Option<u32> {
    let data =
        find_control(header, |level, kind| level == libc::SOL_SOCKET && kind == libc::SO_RXQ_OVFL)?;
    Some(u32::from_ne_bytes(data.get(..4)?.try_into().ok()?))
}

/// The type of service or traffic class of a received packet, if the socket reports it.
pub(super) fn traffic_class(header: &libc::msghdr) -> Option<u8> {
    let data = find_control(header, |level, kind| {
        (level == libc::IPPROTO_IP && kind == libc::IP_TOS)
            || (level == libc::IPPROTO_IPV6 && kind == libc::IPV6_TCLASS)
    })?;
    match *data {
        // The kernel writes one byte for IPv4 and an `int` for IPv6.
        [class] => Some(class),
        _ => u8::try_from(i32::from_ne_bytes(data.get(..4)?.try_into().ok()?)).ok(),
    }
}

/// The error number of an entry of the socket's error queue.
pub(super) fn queued_error(header: &libc::msghdr) -> Option<i32> {
    let data = find_control(header, |level, kind| {
        (level == libc::IPPROTO_IP && kind == libc::IP_RECVERR)
            || (level == libc::IPPROTO_IPV6 && kind == libc::IPV6_RECVERR)
    })?;
    // `struct sock_extended_err` begins with the error number.
    Some(i32::from_ne_bytes(data.get(..4)?.try_into().ok()?))
}

/// The data of the first control message for which `matches` is true.
fn find_control(header: &libc::msghdr, matches: impl Fn(i32, i32) -> bool) -> Option<&[u8]> {
    // SAFETY: the kernel filled the buffer that `header` describes, and the macros stay within the
    // length that it wrote there; the data of a control message is as long as its header says.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while !control.is_null() {
            let data = libc::CMSG_DATA(control);
            let length = (*control).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
            if matches((*control).cmsg_level, (*control).cmsg_type) {
                return Some(std::slice::from_raw_parts(data, length));
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
    None
}

/// Buffer for a socket address of any family.
#[derive(Clone, Copy)]
pub(super) struct SocketName(libc::sockaddr_storage);

impl SocketName {
    pub(super) fn empty() -> Self {
        // SAFETY: all zeros is a valid `sockaddr_storage`, of no family.
        Self(unsafe { mem::zeroed() })
    }

    /// Makes `header` receive an address into this buffer.
    pub(super) fn receive(&mut self, header: &mut libc::msghdr) {
        header.msg_name = (&raw mut self.0).cast();
        header.msg_namelen = length_of_storage();
    }

    pub(super) fn get(&self) -> Option<SocketAddr> {
        let family = i32::from(self.0.ss_family);
        let storage = self.0;
        // SAFETY: the kernel wrote an address of `family`, and a storage has room for any.
        let address = unsafe {
            SockAddr::try_init(|place, length| {
                place.cast::<libc::sockaddr_storage>().write(storage);
                *length = length_of_storage();
                Ok(())
            })
        };
        let (_, address) = address.ok()?;
        matches!(family, libc::AF_INET | libc::AF_INET6).then(|| address.as_socket())?
    }
}

fn length_of_storage() -> libc::socklen_t {
    libc::socklen_t::try_from(mem::size_of::<libc::sockaddr_storage>()).expect("128")
}
