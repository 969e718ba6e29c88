//! Opening of RDMA devices with the provider that serves an address.

use std::io;
use std::net::IpAddr;

use rdma::shm::{Shm, ShmDevice, ShmOptions};
use rdma::soft::{PortChoice, Soft, SoftDevice, SoftOptions};
use rdma::verbs::{Verbs, VerbsDevice, VerbsOptions};
use rdma::{Choice, Provider, ProviderKind, Selection, select};

use crate::engine::link::Link;
use crate::engine::same_machine::{LocalPath, NearTarget};
use crate::engine::wire::Wire;
use crate::types::error::{Error, ErrorKind};
use crate::types::provider::RdmaProvider;

/// An opened device, which no engine uses yet.
pub(crate) struct OpenedDevice {
    pub(crate) wire: Box<dyn Wire>,
    /// Text that names the provider and the reason for its choice.
    pub(crate) reason: String,
}

/// Opens the device of a local address.
pub(crate) fn open(
    provider: RdmaProvider,
    source: IpAddr,
    options: VerbsOptions,
) -> Result<OpenedDevice, Error> {
    open_selected(provider.kind(), source, options)
}

/// Opens the device for a transport to a target on this machine.
pub(crate) fn open_path(target: &NearTarget, path: LocalPath) -> Result<OpenedDevice, Error> {
    match path {
        LocalPath::Network => open_selected(ProviderKind::Auto, target.source, target.verbs),
        LocalPath::SharedMemory => {
            let reason = "the target is on this machine and shares memory".to_owned();
            let selection = Selection { choice: Choice::Shm, reason, down: None };
            open_device(&selection, target.source, target.verbs)
        }
    }
}

fn open_selected(
    kind: ProviderKind,
    source: IpAddr,
    options: VerbsOptions,
) -> Result<OpenedDevice, Error> {
    let selection = select(kind, source).map_err(|error| refused(&error))?;
    open_device(&selection, source, options)
}

fn open_device(
    selection: &Selection,
    source: IpAddr,
    options: VerbsOptions,
) -> Result<OpenedDevice, Error> {
    // The device is opened again at the next attempt to connect.
    if let Some(down) = &selection.down {
        return Err(ErrorKind::Device(down.clone()).into());
    }
    let wire = match selection.choice {
        Choice::Verbs => {
            let device = VerbsDevice::open(source, options).map_err(|error| refused(&error))?;
            link::<Verbs>(device)?
        }
        Choice::Soft => {
            // A target on this machine needs the well-known port, and Feedrail's targets reply to
            // any port; other targets reply to the well-known port only.
            let port = if source.is_loopback() { PortChoice::Ephemeral } else { PortChoice::Any };
            let options = SoftOptions::new(source, port);
            link::<Soft>(SoftDevice::open(&options).map_err(|error| refused(&error))?)?
        }
        Choice::Shm => {
            let device = ShmDevice::open(&ShmOptions::new(source));
            link::<Shm>(device.map_err(|error| refused(&error))?)?
        }
    };
    Ok(OpenedDevice { wire, reason: selection.to_string() })
}

fn link<P: Provider>(device: P::Device) -> io::Result<Box<dyn Wire>> {
    Ok(Box::new(Link::<P>::new(device)?))
}

fn refused(error: &dyn std::error::Error) -> Error {
    ErrorKind::Device(error.to_string()).into()
}
