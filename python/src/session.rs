//! The connections of a source.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feedrail_initiator::{
    Class, Controller, Error, Host, HostCounters, Namespace, NamespaceInfo, Nqn, Nsid,
    RdmaProvider, Shards, Submit, SubsystemAddress,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::block_on::block_on;
use crate::buffer::BufferObject;
use crate::entry;
use crate::errors;
use crate::histogram::BatchHistogram;
use crate::process::HomeProcess;
use crate::released;
use crate::seconds::Seconds;
use crate::stalls::StallCounters;
use crate::ticket::TicketObject;

/// A host, its connections, and the namespaces that are open. It belongs to the process that made
/// it: a child gets `ForkedHandleError`.
#[pyclass(frozen, weakref, name = "Session", module = "feedrail._core")]
pub(crate) struct SessionObject {
    home: HomeProcess,
    host: Host,
    shards: Mutex<OpenShards>,
    stalls: Arc<StallCounters>,
}

/// The namespaces that are open.
struct OpenShards {
    all: Vec<Namespace>,
    /// The same, as plans number them.
    numbered: Shards,
}

impl OpenShards {
    fn none() -> Self {
        Self { all: Vec::new(), numbered: Shards::new([]) }
    }

    fn add(&mut self, opened: Vec<Namespace>) {
        self.all.extend(opened);
        self.numbered = Shards::new(self.all.iter().cloned());
    }
}

#[pymethods]
impl SessionObject {
    #[new]
    #[pyo3(signature = (*, provider, local_address, io_queues, queue_entries, io_timeout, loss_timeout))]
    fn new(
        py: Python<'_>,
        provider: &str,
        local_address: Option<IpAddr>,
        io_queues: u16,
        queue_entries: u16,
        io_timeout: Seconds,
        loss_timeout: Option<Seconds>,
    ) -> PyResult<Self> {
        released::drain(py);
        let mut host = Host::builder()
            .provider(provider_named(provider)?)
            .io_queues(io_queues)
            .queue_entries(queue_entries)
            .io_timeout(io_timeout.0);
        if let Some(Seconds(timeout)) = loss_timeout {
            host = host.loss_timeout(timeout);
        }
        if let Some(address) = local_address {
            host = host.source(address);
        }
        let host = py.detach(|| host.build()).map_err(|error| errors::exception(py, &error))?;
        Ok(Self {
            home: HomeProcess::current(),
            host,
            shards: Mutex::new(OpenShards::none()),
            stalls: Arc::default(),
        })
    }

    /// Connects to a subsystem and opens its namespaces, or those with the number `nsid` or the
    /// name `name`. Returns their properties, in the order of their shard numbers.
    #[pyo3(signature = (address, port, nqn, *, nsid = None, name = None))]
    fn open<'py>(
        &self,
        py: Python<'py>,
        address: IpAddr,
        port: u16,
        nqn: &str,
        nsid: Option<u32>,
        name: Option<&str>,
    ) -> PyResult<Vec<Bound<'py, PyDict>>> {
        released::drain(py);
        self.check(py)?;
        let nqn: Nqn = nqn.parse().map_err(|error| {
            PyValueError::new_err(format!("{nqn:?} is no NVMe qualified name: {error}"))
        })?;
        let target = SubsystemAddress { address: SocketAddr::new(address, port), nqn };
        let opened = block_on(py, open_all(&self.host, target, nsid.map(Nsid)))?;
        let mut opened = opened.map_err(|error| errors::exception(py, &error))?;
        if let Some(name) = name {
            opened.retain(|namespace| namespace.info().name.as_deref() == Some(name));
        }
        let properties = opened.iter().map(|namespace| properties(py, namespace.info()));
        let properties = properties.collect::<PyResult<_>>()?;
        self.shards().add(opened);
        Ok(properties)
    }

    /// Reads a plan into a buffer; `timeout` seconds are the deadline of each range.
    fn submit(
        &self,
        py: Python<'_>,
        plan: &Bound<'_, PyAny>,
        out: &BufferObject,
        timeout: Option<Seconds>,
        background: bool,
    ) -> PyResult<TicketObject> {
        released::drain(py);
        self.check(py)?;
        let (deadline, memory) =
            (timeout.map(|Seconds(timeout)| timeout), Arc::clone(out.memory()));
        let region = memory.region(py)?;
        let mut entries = entry::parse(plan, memory.length())?;
        entries.iter_mut().for_each(|entry| entry.dst += memory.at as u64);
        let class = if background { Class::Background } else { Class::Foreground };
        let (shards, options) = (self.shards().numbered.clone(), Submit { deadline, class });
        let submitted = py.detach(|| self.host.submit(&shards, &entries, region, options));
        match submitted {
            Ok(ticket) => Ok(TicketObject::new(ticket, entries, memory, &self.stalls)),
            Err(error) => Err(errors::refused(py, error, &entries, memory.at)),
        }
    }

    /// As `submit`, and waits for all results. What a signal's handler or `progress` raises cancels
    /// the batch.
    #[pyo3(signature = (plan, out, timeout, background, progress = None))]
    fn read(
        &self,
        py: Python<'_>,
        plan: &Bound<'_, PyAny>,
        out: &BufferObject,
        timeout: Option<Seconds>,
        background: bool,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<TicketObject> {
        let ticket = self.submit(py, plan, out, timeout, background)?;
        ticket.wait_for(py, None, progress)?;
        Ok(ticket)
    }

    /// Which RDMA provider is used for each local address, and why.
    fn providers(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.check(py)?;
        Ok(self.host.providers())
    }

    /// Counters since the session was made.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.check(py)?;
        let all = counters(py, &py.detach(|| self.host.counters()))?;
        all.set_item("batches", self.stalls.batches())?;
        all.set_item("stall_seconds", self.stalls.stall_seconds())?;
        let latency = self.stalls.latency();
        all.set_item("latency_edges_us", BatchHistogram::edges_us())?;
        all.set_item("latency_counts", latency.counts())?;
        all.set_item("latency_seconds", latency.sum_seconds())?;
        Ok(all)
    }
}

impl SessionObject {
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        if self.home.is_current() { Ok(()) } else { Err(errors::forked(py)) }
    }

    fn shards(&self) -> MutexGuard<'_, OpenShards> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn open_all(
    host: &Host,
    target: SubsystemAddress,
    nsid: Option<Nsid>,
) -> Result<Vec<Namespace>, Error> {
    let controller: Controller = host.connect(target).await?;
    match nsid {
        Some(nsid) => Ok(vec![controller.namespace(nsid).await?]),
        None => controller.namespaces().await,
    }
}

fn provider_named(name: &str) -> PyResult<RdmaProvider> {
    match name {
        "auto" => Ok(RdmaProvider::Auto),
        "verbs" => Ok(RdmaProvider::Verbs),
        "soft" => Ok(RdmaProvider::Soft),
        _ => Err(PyValueError::new_err(format!(
            "provider {name:?}: it is one of 'auto', 'verbs' and 'soft'"
        ))),
    }
}

fn properties<'py>(py: Python<'py>, info: &NamespaceInfo) -> PyResult<Bound<'py, PyDict>> {
    let properties = PyDict::new(py);
    properties.set_item("nsid", info.nsid.0)?;
    properties.set_item("name", info.name.as_deref())?;
    properties.set_item("nbytes", info.size_bytes)?;
    properties.set_item("block_bytes", info.block_bytes)?;
    properties.set_item("generation", info.generation)?;
    properties.set_item("uuid", info.uuid.as_ref().map(|uuid| uuid.as_slice()))?;
    properties.set_item("nguid", info.nguid.as_ref().map(|nguid| nguid.as_slice()))?;
    Ok(properties)
}

fn counters<'py>(py: Python<'py>, counters: &HostCounters) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    for (name, value) in [
        ("commands", counters.commands),
        ("ranges", counters.ranges),
        ("ranges_failed", counters.ranges_failed),
        ("direct_bytes", counters.direct_bytes),
        ("bounced_bytes", counters.bounced_bytes),
        ("retries", counters.retries),
        ("reconnects", counters.reconnects),
        ("connections_lost", counters.connections_lost),
        ("protocol_violations", counters.protocol_violations),
        ("timeouts", counters.timeouts),
        ("aborts", counters.aborts),
    ] {
        all.set_item(name, value)?;
    }
    Ok(all)
}
