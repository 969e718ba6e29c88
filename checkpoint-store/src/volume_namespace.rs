//! A namespace for a volume.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;

use feedrail_checkpoint::{NamespaceAttributes, SUPERBLOCK_BYTES};
use feedrail_dataset::url::{NamespaceChoice, SourceUrl, TargetUrl, UrlHost};
use feedrail_initiator::{Controller, Error, ErrorKind, Host, Namespace, SubsystemAddress};
use nvme_proto::FromBytes as _;
use nvme_proto::identify::IdentifyController;

use crate::error::StoreError;

/// A namespace that has a volume or is formatted, and the host that reaches it.
#[derive(Clone)]
pub struct VolumeNamespace {
    pub(crate) host: Host,
    pub(crate) namespace: Namespace,
    controller: Controller,
    has_compare: bool,
}

impl VolumeNamespace {
    /// Connects to the namespace of a URL; without a namespace in the URL, to the only one of the
    /// subsystem.
    ///
    /// # Errors
    /// [`StoreError::Resolve`], [`StoreError::Host`], [`StoreError::WhichNamespace`],
    /// [`StoreError::BlockBytes`].
    pub fn connect(host: &Host, url: &SourceUrl) -> Result<Self, StoreError> {
        let target = SubsystemAddress { address: resolve(&url.target)?, nqn: url.nqn };
        let controller = host.connect(target).wait()?;
        let namespace = match &url.namespace {
            Some(NamespaceChoice::Nsid(nsid)) => controller.namespace(*nsid).wait()?,
            Some(NamespaceChoice::Name(name)) => {
                controller.namespace_named(name.as_str()).wait()?
            }
            None => {
                let mut namespaces = controller.namespaces().wait()?;
                match (namespaces.pop(), namespaces.len()) {
                    (Some(only), 0) => only,
                    (None, _) => return Err(StoreError::WhichNamespace(0)),
                    (Some(_), others) => return Err(StoreError::WhichNamespace(others + 1)),
                }
            }
        };
        Self::new(host, &controller, namespace)
    }

    /// Takes a namespace of a controller, and reads whether the controller executes Compare.
    ///
    /// # Errors
    /// [`StoreError::Host`] if Identify fails, [`StoreError::BlockBytes`].
    pub fn new(
        host: &Host,
        controller: &Controller,
        namespace: Namespace,
    ) -> Result<Self, StoreError> {
        let block_bytes = namespace.info().block_bytes;
        if !(512..=SUPERBLOCK_BYTES as u64).contains(&block_bytes) {
            return Err(StoreError::BlockBytes(block_bytes));
        }
        let data = controller.identify().wait()?;
        let identify = IdentifyController::read_from_bytes(&data).map_err(|_| {
            Error::from(ErrorKind::Malformed("the Identify Controller data has a wrong length"))
        })?;
        let has_compare = identify.oncs.compare();
        Ok(Self { host: host.clone(), namespace, controller: controller.clone(), has_compare })
    }

    pub(crate) fn attributes(&self) -> NamespaceAttributes {
        NamespaceAttributes { bytes: self.namespace.size_bytes(), has_compare: self.has_compare }
    }

    /// Opens the namespace again if its generation or size changed, so that all its reads and
    /// writes fail. A target that was started again may report another generation.
    pub(crate) fn reopen(&mut self) -> Result<(), StoreError> {
        if self.namespace.change().is_none() {
            return Ok(());
        }
        self.namespace = self.controller.namespace(self.namespace.nsid()).wait()?;
        Ok(())
    }

    /// Fails if the namespace is write protected.
    pub(crate) fn check_writable(&self) -> Result<(), StoreError> {
        if self.namespace.info().write_protected { Err(StoreError::WriteProtected) } else { Ok(()) }
    }
}

impl fmt::Debug for VolumeNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolumeNamespace")
            .field("namespace", &self.namespace)
            .field("has_compare", &self.has_compare)
            .finish_non_exhaustive()
    }
}

fn resolve(url: &TargetUrl) -> Result<SocketAddr, StoreError> {
    let name = match &url.host {
        UrlHost::Address(address) => return Ok(SocketAddr::new(*address, url.port)),
        UrlHost::Name(name) => name.as_str(),
    };
    let error = |error| StoreError::Resolve { name: name.to_owned(), error: Arc::new(error) };
    let mut addresses = (name, url.port).to_socket_addrs().map_err(error)?;
    let none = || error(std::io::ErrorKind::NotFound.into());
    addresses.next().ok_or_else(none)
}
