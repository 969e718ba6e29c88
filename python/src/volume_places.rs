//! Connections to the namespaces of a checkpoint volume.

use std::net::IpAddr;
use std::thread;

use feedrail_checkpoint_store::{ReplicaPlace, StoreOptions, VolumeNamespace};
use feedrail_dataset::url::SourceUrl;
use feedrail_initiator::{ControllerOptions, Host};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors;
use crate::seconds::Seconds;
use crate::secrets::SecretOptions;
use crate::session::{connect_timeout, named, provider_named};

/// Options of `feedrail.CheckpointStore`, as a dictionary.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct VolumeOptions {
    write_quorum: Option<usize>,
    lease: Seconds,
    staging_bytes: usize,
    provider: String,
    local_address: Option<IpAddr>,
    io_timeout: Seconds,
    loss_timeout: Option<Seconds>,
    host_nqn: Option<String>,
    secrets: SecretOptions,
}

impl VolumeOptions {
    pub(crate) fn store_options(&self) -> StoreOptions {
        StoreOptions { lease: self.lease.0, staging_bytes: self.staging_bytes }
    }

    /// Returns how many of so many replicas must have a commit: by default more than half.
    pub(crate) fn quorum(&self, replicas: usize) -> usize {
        self.write_quorum.unwrap_or(replicas / 2 + 1)
    }

    /// Connects to all namespaces at the same time, detached.
    ///
    /// # Errors
    /// `ValueError` for a malformed URL or option; the error of the host. One that a namespace
    /// cannot be reached is in its place.
    pub(crate) fn connect(&self, py: Python<'_>, urls: &[String]) -> PyResult<Vec<ReplicaPlace>> {
        let parse = |url: &String| {
            url.parse::<SourceUrl>()
                .map_err(|error| PyValueError::new_err(format!("{url:?}: {error}")))
        };
        let urls = urls.iter().map(parse).collect::<PyResult<Vec<_>>>()?;
        let mut options = ControllerOptions::new().io_timeout(self.io_timeout.0);
        if let Some(Seconds(timeout)) = self.loss_timeout {
            options = options.loss_timeout(timeout).connect_timeout(connect_timeout(timeout));
        }
        let options = self.secrets.add_to(py, options)?;
        let builder = Host::builder().provider(provider_named(&self.provider)?);
        let mut builder = builder.controller_options(options);
        if let Some(address) = self.local_address {
            builder = builder.source(address);
        }
        if let Some(nqn) = &self.host_nqn {
            builder = named(builder, nqn)?;
        }
        py.detach(|| builder.build().map(|host| connect_all(&host, &urls)))
            .map_err(|error| errors::exception(py, &error))
    }
}

fn connect_all(host: &Host, urls: &[SourceUrl]) -> Vec<ReplicaPlace> {
    thread::scope(|scope| {
        let connect = |url| scope.spawn(move || VolumeNamespace::connect(host, url));
        let threads: Vec<_> = urls.iter().map(connect).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, ReplicaPlace>| {
            thread.join().expect("connecting does not panic")
        };
        threads.into_iter().map(join).collect()
    })
}
