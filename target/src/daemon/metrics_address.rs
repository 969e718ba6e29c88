//! Listening address of the metrics page.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};

/// Most connections in the accept queue of the socket.
const BACKLOG: i32 = 128;

/// TCP socket that is bound but does not listen yet.
pub(super) struct MetricsAddress {
    socket: OwnedFd,
    address: SocketAddr,
}

/// Reason that the metrics page cannot have an address; its message is one line with the remedy.
#[derive(Debug, thiserror::Error)]
#[error("metrics: cannot listen on {address}: {error}; {remedy}", remedy = self.remedy())]
pub(super) struct MetricsAddressError {
    address: SocketAddr,
    error: io::Error,
}

impl MetricsAddress {
    /// Binds a socket to an address of this machine.
    ///
    /// # Errors
    /// The address is not of this machine, or its port is in use or not allowed for this user.
    pub(super) fn bind(address: SocketAddr) -> Result<Self, MetricsAddressError> {
        let socket = Self::bound(&address);
        let failed =
            |error: rustix::io::Errno| MetricsAddressError { address, error: error.into() };
        Ok(Self { socket: socket.map_err(failed)?, address })
    }

    fn bound(address: &SocketAddr) -> rustix::io::Result<OwnedFd> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        // Connections of an earlier target in TIME_WAIT must not block the port.
        set_socket_reuseaddr(&socket, true)?;
        bind(&socket, address)?;
        Ok(socket)
    }

    /// Starts to listen. The caller accepts the connections.
    ///
    /// # Errors
    /// Another socket listens on the port.
    pub(super) fn listen(self) -> Result<TcpListener, MetricsAddressError> {
        let Self { socket, address } = self;
        listen(&socket, BACKLOG)
            .map_err(|error| MetricsAddressError { address, error: error.into() })?;
        Ok(socket.into())
    }
}

impl MetricsAddressError {
    pub(super) fn is_in_use(&self) -> bool {
        self.error.kind() == io::ErrorKind::AddrInUse
    }

    fn remedy(&self) -> &'static str {
        match self.error.kind() {
            io::ErrorKind::AddrNotAvailable => {
                "`ip address` lists the addresses of this machine: give one of them, or 0.0.0.0 or [::] for all, with \
                 metrics or --metrics"
            }
            io::ErrorKind::PermissionDenied => {
                "ports below 1024 are for root: give another with metrics or --metrics"
            }
            _ => "give another address with metrics or --metrics",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_taken_or_elsewhere_is_an_error() {
        let any = MetricsAddress::bind("127.0.0.1:0".parse().expect("valid")).expect("free");
        let listener = any.listen().expect("it listens");
        let address = listener.local_addr().expect("bound");
        let error = MetricsAddress::bind(address).err().expect("taken");
        assert!(error.is_in_use(), "{error}");
        let elsewhere = "192.0.2.77:9420".parse().expect("valid");
        let error = MetricsAddress::bind(elsewhere).err().expect("no address of this machine");
        assert!(!error.is_in_use() && error.to_string().contains("ip address"), "{error}");
    }
}
