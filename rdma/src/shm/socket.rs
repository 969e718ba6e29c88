//! Unix sockets with which peers on one machine find each other and check credentials.
//!
//! A listener has an abstract name: it ends with its process, and is visible in one network
//! namespace only, like the address that it contains.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags as MessageFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::link::LinkOffer;
use super::message::{MAX_MESSAGE_BYTES, ShmCmMessage};
use super::trust::PeerTrust;

/// Maximum number of pending connections; further ones fail with `EAGAIN` and are retried.
const BACKLOG: i32 = 1024;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Result of an attempt to receive a message.
#[derive(Debug)]
pub(super) enum Incoming<M> {
    Message(M),
    /// No message has arrived.
    Nothing,
    /// The peer has closed the socket.
    End,
    /// The peer sent something that is not a valid message.
    Nonsense,
}

/// Opens a socket that listens at an address.
///
/// # Errors
/// [`io::ErrorKind::AddrInUse`] if a process listens there already, else the error of the system
/// call.
pub(super) fn listen(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    rustix::net::bind(&socket, &name_of(address)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Accepts a connection; `None` if the peer is not trusted, which is logged.
pub(super) fn accept(listener: BorrowedFd<'_>, trust: PeerTrust) -> io::Result<Option<OwnedFd>> {
    match rustix::net::accept_with(listener, FLAGS) {
        Ok(socket) => match trust.check(socket.as_fd()) {
            Ok(()) => Ok(Some(socket)),
            Err(reason) => {
                tracing::warn!("a connection to shared memory was refused: {reason}");
                Ok(None)
            }
        },
        Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => {
            Err(io::ErrorKind::WouldBlock.into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Connects to the listener of an address.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if its backlog is full, [`io::ErrorKind::ConnectionRefused`] if no
/// process listens, [`io::ErrorKind::PermissionDenied`] if the listener is not trusted.
pub(super) fn connect(address: SocketAddr, trust: PeerTrust) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    rustix::net::connect(&socket, &name_of(address)?)?;
    trust.check(socket.as_fd())?;
    Ok(socket)
}

/// Checks whether a trusted process listens at an address; the listener sees a connection that
/// closes immediately. If its backlog is full, its user cannot be determined.
///
/// # Errors
/// The same errors as for [`connect`].
pub(super) fn probe(address: SocketAddr) -> io::Result<()> {
    connect(address, PeerTrust::default()).map(drop)
}

/// Sends a message; fails only if the peer does not read or has closed.
pub(super) fn send(socket: BorrowedFd<'_>, message: &ShmCmMessage) -> io::Result<()> {
    let (bytes, count) = message.encode();
    let flags = MessageFlags::DONTWAIT | MessageFlags::NOSIGNAL;
    rustix::net::send(socket, &bytes[..count], flags)?;
    Ok(())
}

/// Sends a connection request with its two descriptors.
pub(super) fn send_request(
    socket: BorrowedFd<'_>,
    message: &ShmCmMessage,
    offer: &LinkOffer,
) -> io::Result<()> {
    let (bytes, count) = message.encode();
    let descriptors = [offer.memory.as_fd(), offer.bell.as_fd()];
    let mut room = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "room for two");
    let flags = MessageFlags::DONTWAIT | MessageFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes[..count])], &mut control, flags)?;
    Ok(())
}

/// Receives a message. The kernel closes attached descriptors, since no room is given for them.
pub(super) fn receive(socket: BorrowedFd<'_>) -> Incoming<ShmCmMessage> {
    // One byte longer than any valid message, so that a longer one does not parse.
    let mut bytes = [0u8; MAX_MESSAGE_BYTES + 1];
    match rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
        Ok((0, _)) => Incoming::End,
        Ok((count, _)) => match ShmCmMessage::parse(&bytes[..count.min(bytes.len())]) {
            Some(message) => Incoming::Message(message),
            None => Incoming::Nonsense,
        },
        Err(Errno::AGAIN | Errno::INTR) => Incoming::Nothing,
        Err(_) => Incoming::End,
    }
}

/// Receives a connection request with its two descriptors.
pub(super) fn receive_request(socket: BorrowedFd<'_>) -> Incoming<(ShmCmMessage, LinkOffer)> {
    let mut bytes = [0u8; MAX_MESSAGE_BYTES + 1];
    let mut room = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received =
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
    let count = match received {
        Ok(message) => message.bytes,
        Err(Errno::AGAIN | Errno::INTR) => return Incoming::Nothing,
        Err(_) => return Incoming::End,
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    let mut descriptors = descriptors.into_iter();
    let (memory, bell, others) = (descriptors.next(), descriptors.next(), descriptors.next());
    match (ShmCmMessage::parse(&bytes[..count.min(bytes.len())]), memory, bell, others) {
        (Some(message), Some(memory), Some(bell), None) => {
            Incoming::Message((message, LinkOffer { memory, bell }))
        }
        (None, None, None, None) if count == 0 => Incoming::End,
        _ => Incoming::Nonsense,
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
    Ok(socket)
}

fn name_of(address: SocketAddr) -> io::Result<SocketAddrUnix> {
    let name = format!("feedrail-shm/{address}");
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::message::CmMessageKind;

    fn pair() -> (OwnedFd, OwnedFd) {
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None).unwrap()
    }

    fn request() -> ShmCmMessage {
        ShmCmMessage::plain(CmMessageKind::Request)
    }

    #[test]
    fn a_request_needs_two_descriptors() {
        let (ours, theirs) = pair();
        assert!(matches!(receive_request(ours.as_fd()), Incoming::Nothing));
        let (_link, offer) = crate::shm::link::ShmLink::create().unwrap();
        send_request(theirs.as_fd(), &request(), &offer).unwrap();
        assert!(matches!(receive_request(ours.as_fd()), Incoming::Message(_)));
        send(theirs.as_fd(), &request()).unwrap();
        assert!(matches!(receive_request(ours.as_fd()), Incoming::Nonsense));
    }

    #[test]
    fn what_is_too_long_is_no_message() {
        let (ours, theirs) = pair();
        let (mut bytes, _) = request().encode();
        let long = [&mut bytes[..], &mut [0; 100]].concat();
        rustix::net::send(&theirs, &long, MessageFlags::empty()).unwrap();
        assert!(matches!(receive(ours.as_fd()), Incoming::Nonsense));
    }

    #[test]
    fn a_listener_is_found_by_its_address() {
        let address: SocketAddr = "127.0.0.94:4420".parse().unwrap();
        assert_eq!(probe(address).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let listener = listen(address).unwrap();
        probe(address).unwrap();
        let accepted = accept(listener.as_fd(), PeerTrust::default()).unwrap().unwrap();
        assert!(matches!(receive_request(accepted.as_fd()), Incoming::End));
        drop(listener);
        assert!(probe(address).is_err());
    }

    #[test]
    fn a_listener_with_too_many_connections_proves_nothing() {
        let address: SocketAddr = "127.0.0.95:4420".parse().unwrap();
        let listener = new_socket().unwrap();
        rustix::net::bind(&listener, &name_of(address).unwrap()).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let waiting: Vec<_> =
            std::iter::from_fn(|| connect(address, PeerTrust::default()).ok()).collect();
        assert!(!waiting.is_empty());
        assert_eq!(probe(address).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_peer_that_is_gone_is_an_end() {
        let (ours, theirs) = pair();
        assert!(matches!(receive(ours.as_fd()), Incoming::Nothing));
        drop(theirs);
        assert!(matches!(receive(ours.as_fd()), Incoming::End));
        assert!(matches!(receive_request(ours.as_fd()), Incoming::End));
    }
}
