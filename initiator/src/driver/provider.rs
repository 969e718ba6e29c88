//! Which RDMA provider serves an address.

use std::net::IpAddr;

use rdma::shm::{Shm, ShmDevice, ShmOptions};
use rdma::soft::{PortChoice, Soft, SoftDevice, SoftOptions};
use rdma::verbs::{Verbs, VerbsDevice, VerbsOptions};
use rdma::{Choice, select};

use crate::engine::{ErasedEngine, HostEngine, HostIdentity};
use crate::types::error::{Error, ErrorKind};
use crate::types::provider::RdmaProvider;

/// A device that was opened.
pub(crate) struct OpenedDevice {
    pub(crate) engine: Box<dyn ErasedEngine>,
    /// Which provider it is and why, in words.
    pub(crate) reason: String,
}

/// Opens the device that serves a local address.
pub(crate) fn open(
    provider: RdmaProvider,
    source: IpAddr,
    host: HostIdentity,
    options: VerbsOptions,
) -> Result<OpenedDevice, Error> {
    let selection = select(provider.kind(), source).map_err(|error| refused(&error))?;
    // Opened again with the next attempt to connect, so nothing is lost by not opening it now.
    if let Some(down) = &selection.down {
        return Err(ErrorKind::Device(down.clone()).into());
    }
    let engine = match selection.choice {
        Choice::Verbs => open_verbs(source, host, options)?,
        Choice::Soft => open_soft(source, host)?,
        Choice::Shm => open_shm(source, host)?,
    };
    Ok(OpenedDevice { engine, reason: selection.to_string() })
}

fn open_verbs(
    source: IpAddr,
    host: HostIdentity,
    options: VerbsOptions,
) -> Result<Box<dyn ErasedEngine>, Error> {
    let device = VerbsDevice::open(source, options).map_err(|error| refused(&error))?;
    Ok(Box::new(HostEngine::<Verbs>::new(device, host)?))
}

fn open_soft(source: IpAddr, host: HostIdentity) -> Result<Box<dyn ErasedEngine>, Error> {
    // A target on this machine needs the well-known port, and ours answers at any; foreign targets
    // answer at the well-known port only.
    let port = if source.is_loopback() { PortChoice::Ephemeral } else { PortChoice::Any };
    let device =
        SoftDevice::open(&SoftOptions::new(source, port)).map_err(|error| refused(&error))?;
    Ok(Box::new(HostEngine::<Soft>::new(device, host)?))
}

fn open_shm(source: IpAddr, host: HostIdentity) -> Result<Box<dyn ErasedEngine>, Error> {
    let device = ShmDevice::open(&ShmOptions::new(source)).map_err(|error| refused(&error))?;
    Ok(Box::new(HostEngine::<Shm>::new(device, host)?))
}

fn refused(error: &dyn std::error::Error) -> Error {
    ErrorKind::Device(error.to_string()).into()
}
