//! A session: the connections of a source.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use feedrail_initiator::{
    Class, Controller, ControllerOptions, Error, Host, HostBuilder, HostCounters, HostId, HostNqn,
    Namespace, NamespaceInfo, Nqn, Nsid, Pending, RdmaProvider, ReplicaPolicy, Submit,
    SubsystemAddress,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::block_on::{ThreadWaker, block_on, block_on_for, wait_interruptibly};
use crate::buffer::BufferObject;
use crate::checksum::Checksum;
use crate::entry;
use crate::errors;
use crate::histogram::BatchHistogram;
use crate::manifest::ManifestObject;
use crate::open_shards::OpenShards;
use crate::process::HomeProcess;
use crate::released;
use crate::replicas::{ReplicaReport, ReplicaSet};
use crate::seconds::Seconds;
use crate::secrets::SecretOptions;
use crate::stalls::StallCounters;
use crate::ticket::TicketObject;
use crate::unflushed::UnflushedWrites;

/// A host, its connections and its open namespaces. In a child of the process that made it, each
/// call raises `ForkedHandleError`.
#[pyclass(frozen, weakref, name = "Session", module = "feedrail._core")]
pub(crate) struct SessionObject {
    home: HomeProcess,
    host: Host,
    options: ControllerOptions,
    shards: Arc<OpenShards>,
    stalls: Arc<StallCounters>,
    unflushed: Arc<UnflushedWrites>,
}

/// Direction of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchKind {
    Read,
    /// Writes, with Force Unit Access if `durable`.
    Write {
        durable: bool,
    },
}

/// Silence time-out for targets of shards with several replicas. A Keep Alive is sent after half of
/// it.
const SILENCE: Duration = Duration::from_millis(400);

/// Bounds of the time for one attempt to connect, which otherwise equals the loss time-out: a busy
/// target may need 1 s, and 10 s is the default.
const CONNECT_MIN: Duration = Duration::from_secs(1);
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Least time for the response to a Flush, which is the time-out of the initiator's other commands
/// as well: its default.
const FLUSH_MIN: Duration = Duration::from_secs(15);

/// Stack level of the caller of `feedrail.open` in a warning of this module.
const FRAMES_OF_OPEN: i32 = 4;
/// Stack level of the caller of `Source.read_many` in a warning of this module.
const FRAMES_OF_READ: i32 = 2;

#[pymethods]
impl SessionObject {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    #[pyo3(signature = (*, provider, local_address, io_queues, queue_entries, io_timeout, loss_timeout, host_nqn, secrets))]
    fn new(
        py: Python<'_>,
        provider: &str,
        local_address: Option<IpAddr>,
        io_queues: u16,
        queue_entries: u16,
        io_timeout: Seconds,
        loss_timeout: Option<Seconds>,
        host_nqn: Option<&str>,
        secrets: SecretOptions,
    ) -> PyResult<Self> {
        released::drain(py);
        let mut options = ControllerOptions::new()
            .io_queues(io_queues)
            .queue_entries(queue_entries)
            .io_timeout(io_timeout.0)
            .admin_timeout(io_timeout.0.max(FLUSH_MIN));
        if let Some(Seconds(timeout)) = loss_timeout {
            options = options.loss_timeout(timeout).connect_timeout(connect_timeout(timeout));
        }
        let options = secrets.add_to(py, options)?;
        let mut host =
            Host::builder().provider(provider_named(provider)?).controller_options(options.clone());
        if let Some(address) = local_address {
            host = host.source(address);
        }
        if let Some(nqn) = host_nqn {
            host = named(host, nqn)?;
        }
        let host = py.detach(|| host.build()).map_err(|error| errors::exception(py, &error))?;
        Ok(Self {
            home: HomeProcess::current(),
            host,
            options,
            shards: Arc::default(),
            stalls: Arc::default(),
            unflushed: Arc::default(),
        })
    }

    /// Connects to a subsystem and opens its namespaces, or those with the identifier `nsid` or the
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
            // A namespace without a name is named by its identifier, as in the shards of a source.
            opened.retain(|namespace| match &namespace.info().name {
                Some(known) => known == name,
                None => namespace.nsid().0.to_string() == name,
            });
        }
        let properties = opened.iter().map(|namespace| properties(py, namespace.info()));
        let properties = properties.collect::<PyResult<_>>()?;
        self.shards.add(opened).map_err(|error| errors::exception(py, &error))?;
        Ok(properties)
    }

    /// Connects to all targets of a manifest. `known` has, for each shard, earlier generations of
    /// its replicas by the index of their targets.
    fn open_manifest(
        &self,
        py: Python<'_>,
        manifest: &ManifestObject,
        spread: bool,
        known: Vec<Vec<(u32, u64)>>,
    ) -> PyResult<()> {
        released::drain(py);
        self.check(py)?;
        let policy = if spread { ReplicaPolicy::Spread } else { ReplicaPolicy::First };
        let (text, placement) = (manifest.manifest(), manifest.placement());
        let mut options = self.options.clone();
        if text.shards().iter().any(|shard| shard.replicas.len() > 1) {
            options = options.silence_timeout(SILENCE);
        }
        let host = &self.host;
        let begin = || ReplicaSet::begin(host, options, text, placement, policy, &known);
        let mut set = py.detach(begin);
        let waker = Arc::new(ThreadWaker::default());
        let (task, mut covered) = (Arc::clone(&waker).into(), None);
        let wait = |step| {
            for pause in [Some(step), None] {
                set.advance(host, &task);
                if set.is_open(&mut covered) {
                    return Some(());
                }
                if let Some(step) = pause {
                    waker.wait(step);
                }
            }
            None
        };
        wait_interruptibly(py, None, wait, || Ok(()))?;
        set.tell_of_absent();
        self.shards.open(set).map_err(|error| errors::not_opened(py, error))?;
        self.shards.tell(py, FRAMES_OF_OPEN)
    }

    /// Returns the replicas of a manifest's shard, in its order: name of the target, state, reason
    /// for the state, and generation.
    fn replicas(&self, py: Python<'_>, shard: usize) -> PyResult<Vec<ReplicaReport>> {
        self.check(py)?;
        Ok(self.shards.report(shard))
    }

    /// Reads all bytes of a replica of a manifest's shard, and returns their CRC-32C; `None` if it
    /// is not in use. Handlers of signals run every 16 MiB.
    fn checksum(&self, py: Python<'_>, shard: usize, replica: usize) -> PyResult<Option<u32>> {
        released::drain(py);
        self.check(py)?;
        let Some(namespace) = self.shards.replica(shard, replica) else { return Ok(None) };
        let mut checksum =
            Checksum::new(namespace).map_err(|error| errors::exception(py, &error))?;
        loop {
            let step = py.detach(|| checksum.step(&self.host));
            if let Some(crc32c) = step.map_err(|error| errors::exception(py, &error))? {
                return Ok(Some(crc32c));
            }
            py.check_signals()?;
        }
    }

    /// Takes out a replica of a manifest's shard, and issues a warning.
    fn take_out(&self, py: Python<'_>, shard: usize, replica: usize, reason: &str) -> PyResult<()> {
        self.check(py)?;
        self.shards.take_out(shard, replica, reason);
        self.shards.tell(py, FRAMES_OF_READ)
    }

    /// Returns the names of the manifest's targets without a connection.
    fn targets_away(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.check(py)?;
        self.shards.advance(&self.host);
        self.shards.tell(py, FRAMES_OF_READ)?;
        Ok(self.shards.away())
    }

    /// Submits a plan into a buffer; `timeout` in seconds is the deadline of each range.
    fn submit(
        &self,
        py: Python<'_>,
        plan: &Bound<'_, PyAny>,
        out: &BufferObject,
        timeout: Option<Seconds>,
        background: bool,
    ) -> PyResult<TicketObject> {
        self.start(py, BatchKind::Read, plan, out, timeout, background)
    }

    /// Submits a plan that writes from a buffer, like `submit`. `durable`: with Force Unit Access.
    fn submit_write(
        &self,
        py: Python<'_>,
        plan: &Bound<'_, PyAny>,
        data: &BufferObject,
        timeout: Option<Seconds>,
        background: bool,
        durable: bool,
    ) -> PyResult<TicketObject> {
        self.start(py, BatchKind::Write { durable }, plan, data, timeout, background)
    }

    /// Submits like `submit_write`, and waits like `read`.
    #[pyo3(signature = (plan, data, timeout, durable, progress = None))]
    fn write(
        &self,
        py: Python<'_>,
        plan: &Bound<'_, PyAny>,
        data: &BufferObject,
        timeout: Option<Seconds>,
        durable: bool,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<TicketObject> {
        let ticket = self.start(py, BatchKind::Write { durable }, plan, data, timeout, false)?;
        ticket.wait_for(py, None, progress)?;
        Ok(ticket)
    }

    /// Sends Flush to the namespaces of these shards, and waits until all have ended.
    fn flush(&self, py: Python<'_>, shards: Vec<u32>, timeout: Option<Seconds>) -> PyResult<()> {
        released::drain(py);
        self.check(py)?;
        let open = self.shards.advance(&self.host);
        let namespaces: Vec<Namespace> =
            shards.into_iter().filter_map(|shard| open.get(shard).cloned()).collect();
        let covered = self.unflushed.take();
        let result = self.flush_all(py, &namespaces, timeout.map(|Seconds(timeout)| timeout));
        let Some(before) = covered else { return result };
        if self.connections_lost(py) != before {
            // Reported once: by this error or by that of the flush.
            let targets = namespaces.iter().map(|namespace| namespace.target().to_string());
            return result.and_then(|()| Err(errors::lost_before_flush(py, targets.collect())));
        }
        if result.is_err() {
            self.unflushed.add(before);
        }
        result
    }

    /// Submits like `submit`, and waits for all results. An exception of a signal's handler or of
    /// `progress` cancels the batch.
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

    /// Returns one line for each device in use: its provider and the reason for that choice.
    fn providers(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.check(py)?;
        Ok(self.host.providers())
    }

    /// Returns the counters since the session was made.
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

    fn start(
        &self,
        py: Python<'_>,
        kind: BatchKind,
        plan: &Bound<'_, PyAny>,
        buffer: &BufferObject,
        timeout: Option<Seconds>,
        background: bool,
    ) -> PyResult<TicketObject> {
        released::drain(py);
        self.check(py)?;
        let (deadline, memory) =
            (timeout.map(|Seconds(timeout)| timeout), Arc::clone(buffer.memory()));
        let region = memory.region(py)?;
        let mut entries = entry::parse(plan, memory.length())?;
        entries.iter_mut().for_each(|entry| entry.dst += memory.at as u64);
        let class = if background { Class::Background } else { Class::Foreground };
        let (shards, options) = (self.shards.advance(&self.host), Submit { deadline, class });
        let host = &self.host;
        let write = match kind {
            BatchKind::Write { durable: false } => {
                Some(self.unflushed.submit(self.connections_lost(py)))
            }
            BatchKind::Read | BatchKind::Write { durable: true } => None,
        };
        let submitted = py.detach(|| match kind {
            BatchKind::Read => host.submit(&shards, &entries, region, options),
            BatchKind::Write { durable: false } => {
                host.submit_write(&shards, &entries, region, options)
            }
            BatchKind::Write { durable: true } => {
                host.submit_write_durable(&shards, &entries, region, options)
            }
        });
        match submitted {
            Ok(ticket) => {
                let (stalls, shards) = (&self.stalls, &self.shards);
                let ticket = TicketObject::new(ticket, entries, memory, stalls, shards, write);
                self.shards.tell(py, FRAMES_OF_READ)?;
                Ok(ticket)
            }
            Err(error) => Err(errors::refused(py, error, &entries, memory.at)),
        }
    }

    /// Sends Flush to namespaces, and waits for all responses; the first error is the result.
    fn flush_all(
        &self,
        py: Python<'_>,
        namespaces: &[Namespace],
        timeout: Option<Duration>,
    ) -> PyResult<()> {
        let sent: Vec<Pending<_>> = py.detach(|| namespaces.iter().map(Namespace::flush).collect());
        let all = async {
            let mut result = Ok(());
            for flush in sent {
                let ended: Result<(), Error> = flush.await;
                result = result.and(ended);
            }
            result
        };
        match block_on_for(py, timeout, all)? {
            Some(result) => result.map_err(|error| errors::exception(py, &error)),
            None => Err(errors::flush_timeout(py, timeout.unwrap_or_default().as_secs_f64())),
        }
    }

    /// Returns the number of connections that the session has lost.
    fn connections_lost(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.host.counters().connections_lost)
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

/// Returns the time for one attempt to connect, for a loss time-out.
pub(crate) fn connect_timeout(loss_timeout: Duration) -> Duration {
    loss_timeout.clamp(CONNECT_MIN, CONNECT_MAX)
}

/// Sets the NQN of a host. Its identifier is the UUID in the NQN, if there is one: a target may
/// refuse one NQN with two identifiers.
pub(crate) fn named(host: HostBuilder, nqn: &str) -> PyResult<HostBuilder> {
    let parsed: HostNqn = nqn.parse().map_err(|error| {
        PyValueError::new_err(format!("host_nqn={nqn:?} is no NVMe qualified name: {error}"))
    })?;
    let id = nqn.rsplit_once("uuid:").and_then(|(_, uuid)| uuid.parse::<HostId>().ok());
    let id = id.filter(|&id| HostNqn::from_host_id(id) == parsed);
    let host = host.host_nqn(parsed);
    Ok(match id {
        Some(id) => host.host_id(id),
        None => host,
    })
}

pub(crate) fn provider_named(name: &str) -> PyResult<RdmaProvider> {
    match name {
        "auto" => Ok(RdmaProvider::Auto),
        "verbs" => Ok(RdmaProvider::Verbs),
        "soft" => Ok(RdmaProvider::Soft),
        "shm" => Ok(RdmaProvider::Shm),
        _ => Err(PyValueError::new_err(format!(
            "provider {name:?}: it is one of 'auto', 'verbs', 'soft' and 'shm'"
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
    properties.set_item("writable", !info.write_protected)?;
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
