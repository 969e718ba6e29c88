//! UDP socket with the options of the soft provider's sockets.
#![expect(unsafe_code, reason = "socket options that no crate wraps")]

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::clock::now;

/// Bytes of the receive and send buffers that the soft provider requests.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
const SEND_BUFFER_BYTES: usize = 4 << 20;

/// Socket of a pair, connected to the other one.
pub(super) struct PairSocket {
    udp: UdpSocket,
    polling: Duration,
}

/// Opens two sockets on two loopback addresses, connected to each other.
pub(super) fn pair() -> Result<(PairSocket, PairSocket)> {
    let one = open(feedrail_tests::process::loopback_address())?;
    let other = open(feedrail_tests::process::loopback_address())?;
    one.udp.connect(other.udp.local_addr()?)?;
    other.udp.connect(one.udp.local_addr()?)?;
    Ok((one, other))
}

fn open(address: IpAddr) -> Result<PairSocket> {
    let udp = UdpSocket::bind(SocketAddr::new(address, 0)).context("cannot bind a UDP socket")?;
    udp.set_nonblocking(true)?;
    let socket = PairSocket { udp, polling: Duration::ZERO };
    socket.set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
    socket.set(libc::IPPROTO_IP, libc::IP_RECVERR, 1)?;
    socket.set_buffer(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BUFFER_BYTES)?;
    socket.set_buffer(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, RECEIVE_BUFFER_BYTES)?;
    Ok(socket)
}

impl PairSocket {
    /// Sets the time to poll after the last datagram before sleeping.
    pub(super) fn polling(mut self, time: Duration) -> Self {
        self.polling = time;
        self
    }

    /// Makes the kernel split a message into datagrams of this length (UDP_SEGMENT).
    pub(super) fn cut(&self, segment_bytes: usize) -> Result<()> {
        let segment = i32::try_from(segment_bytes)?;
        self.set(libc::SOL_UDP, libc::UDP_SEGMENT, segment)
            .context("UDP_SEGMENT is refused: a kernel of 4.18 or later has it")
    }

    /// Makes the kernel join received datagrams (UDP_GRO).
    pub(super) fn join(&self) -> Result<()> {
        self.set(libc::SOL_UDP, libc::UDP_GRO, 1)
            .context("UDP_GRO is refused: a kernel of 5.0 or later has it")
    }

    /// Sets a buffer size: beyond the system's limit with privileges, else up to it, like the soft
    /// provider.
    fn set_buffer(&self, forced: i32, limited: i32, bytes: usize) -> Result<()> {
        let bytes = i32::try_from(bytes)?;
        if self.set(libc::SOL_SOCKET, forced, bytes).is_err() {
            self.set(libc::SOL_SOCKET, limited, bytes)?;
        }
        Ok(())
    }

    fn set(&self, level: i32, name: i32, value: i32) -> Result<()> {
        let length = size_of::<i32>() as libc::socklen_t;
        // SAFETY: the pointer and the length describe `value`, which lives across the call; the
        // kernel copies it.
        let result = unsafe {
            libc::setsockopt(self.udp.as_raw_fd(), level, name, (&raw const value).cast(), length)
        };
        ensure!(result == 0, "cannot set a socket option: {}", io::Error::last_os_error());
        Ok(())
    }

    /// Sends a message. Returns false if the socket's buffer is full.
    pub(super) fn send(&self, bytes: &[u8]) -> Result<bool> {
        Ok(ready(self.udp.send(bytes))?.is_some())
    }

    /// Receives what has arrived. Returns its bytes, or `None` if there is nothing.
    pub(super) fn try_receive(&self, buffer: &mut [u8]) -> Result<Option<usize>> {
        Ok(ready(self.udp.recv(buffer))?)
    }

    /// Receives a message; `None` if none arrives within `limit`. It polls for a while and then
    /// sleeps.
    pub(super) fn receive(&self, buffer: &mut [u8], limit: Duration) -> Result<Option<usize>> {
        let start = now();
        loop {
            if let Some(length) = self.try_receive(buffer)? {
                return Ok(Some(length));
            }
            if start.elapsed() >= limit {
                return Ok(None);
            }
            if start.elapsed() >= self.polling {
                let timeout = Timespec::try_from(limit)?;
                poll(&mut [PollFd::new(&self.udp, PollFlags::IN)], Some(&timeout))?;
            }
        }
    }
}

fn ready<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
