//! Opening of RDMA devices with the provider that serves an address.

use std::io;
use std::net::IpAddr;

use rdma::shm::{Shm, ShmDevice, ShmOptions};
use rdma::soft::{PortChoice, Soft, SoftDevice, SoftOptions};
use rdma::verbs::{Verbs, VerbsDevice, VerbsOptions};
use rdma::{Choice, Provider, ProviderKind, Selection, select};

use crate::engine::same_machine::{AnyDevice, LocalPath, NearTarget, PathChoice};
use crate::engine::{ErasedEngine, HostEngine, HostIdentity};
use crate::types::error::{Error, ErrorKind};
use crate::types::provider::RdmaProvider;

/// An opened device with its engine.
pub(crate) struct OpenedDevice {
    pub(crate) engine: Box<dyn ErasedEngine>,
    /// Text that names the provider and the reason for its choice.
    pub(crate) reason: String,
}

/// Opens the device of a local address.
pub(crate) fn open(
    provider: RdmaProvider,
    source: IpAddr,
    host: HostIdentity,
    options: VerbsOptions,
) -> Result<OpenedDevice, Error> {
    let (device, reason) = open_selected(provider.kind(), source, options)?;
    Ok(OpenedDevice { engine: core_of(device, host, None)?, reason })
}

/// Opens a device for a target on this machine.
pub(crate) fn open_local(target: NearTarget, host: HostIdentity) -> Result<OpenedDevice, Error> {
    let (device, reason) = open_path(&target, target.path())?;
    let engine = core_of(device, host, Some(PathChoice::new(target)))?;
    Ok(OpenedDevice { engine, reason })
}

/// Opens the device for a transport to a target on this machine. Also returns the text that names
/// the provider and the reason for its choice.
pub(crate) fn open_path(
    target: &NearTarget,
    path: LocalPath,
) -> Result<(AnyDevice, String), Error> {
    match path {
        LocalPath::Network => open_selected(ProviderKind::Auto, target.source, target.verbs),
        LocalPath::SharedMemory => {
            let reason = "the target is on this machine and shares memory".to_owned();
            let selection = Selection { choice: Choice::Shm, reason, down: None };
            Ok((open_device(&selection, target.source, target.verbs)?, selection.to_string()))
        }
    }
}

fn open_selected(
    kind: ProviderKind,
    source: IpAddr,
    options: VerbsOptions,
) -> Result<(AnyDevice, String), Error> {
    let selection = select(kind, source).map_err(|error| refused(&error))?;
    Ok((open_device(&selection, source, options)?, selection.to_string()))
}

fn open_device(
    selection: &Selection,
    source: IpAddr,
    options: VerbsOptions,
) -> Result<AnyDevice, Error> {
    // The device is opened again at the next attempt to connect.
    if let Some(down) = &selection.down {
        return Err(ErrorKind::Device(down.clone()).into());
    }
    Ok(match selection.choice {
        Choice::Verbs => {
            let device = VerbsDevice::open(source, options).map_err(|error| refused(&error))?;
            AnyDevice::Verbs(device)
        }
        Choice::Soft => {
            // A target on this machine needs the well-known port, and Feedrail's targets reply to
            // any port; other targets reply to the well-known port only.
            let port = if source.is_loopback() { PortChoice::Ephemeral } else { PortChoice::Any };
            let options = SoftOptions::new(source, port);
            AnyDevice::Soft(SoftDevice::open(&options).map_err(|error| refused(&error))?)
        }
        Choice::Shm => {
            let device = ShmDevice::open(&ShmOptions::new(source));
            AnyDevice::Shm(device.map_err(|error| refused(&error))?)
        }
    })
}

fn core_of(
    device: AnyDevice,
    host: HostIdentity,
    choice: Option<PathChoice>,
) -> Result<Box<dyn ErasedEngine>, Error> {
    Ok(match device {
        AnyDevice::Verbs(device) => new_core::<Verbs>(device, host, choice)?,
        AnyDevice::Soft(device) => new_core::<Soft>(device, host, choice)?,
        AnyDevice::Shm(device) => new_core::<Shm>(device, host, choice)?,
    })
}

fn new_core<P: Provider>(
    device: P::Device,
    host: HostIdentity,
    choice: Option<PathChoice>,
) -> io::Result<Box<dyn ErasedEngine>> {
    Ok(Box::new(HostEngine::<P>::new(device, host)?.for_target(choice)))
}

fn refused(error: &dyn std::error::Error) -> Error {
    ErrorKind::Device(error.to_string()).into()
}
