//! Options of a host, and the building of the host with them.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nvme_proto::{HostId, HostNqn};
use rdma::Provider;
use rdma::verbs::VerbsOptions;

use crate::api::host::Host;
use crate::driver::host_state::{Inner, OpenDevices};
use crate::driver::{SharedEngines, fill_random};
use crate::engine::link::Link;
use crate::engine::wire::Wire;
use crate::engine::{HostEngine, HostIdentity};
use crate::types::error::Error;
use crate::types::options::ControllerOptions;
use crate::types::provider::RdmaProvider;

/// Options of a [`Host`] that is to be built.
#[derive(Clone, Debug)]
pub struct HostBuilder {
    nqn: Option<HostNqn>,
    id: Option<HostId>,
    provider: RdmaProvider,
    verbs: VerbsOptions,
    source: Option<IpAddr>,
    controller: ControllerOptions,
    polled: bool,
}

impl Host {
    /// Builds a host with the machine's identity and defaults for everything else.
    ///
    /// # Errors
    /// The same as those of [`HostBuilder::build`].
    pub fn new() -> Result<Self, Error> {
        Self::builder().build()
    }

    /// Returns a builder with defaults for everything.
    pub fn builder() -> HostBuilder {
        HostBuilder {
            nqn: None,
            id: None,
            provider: RdmaProvider::Auto,
            verbs: VerbsOptions::default(),
            source: None,
            controller: ControllerOptions::default(),
            polled: false,
        }
    }

    /// Builds a host without a thread of its own: the caller must call [`Host::turn`] at the latest
    /// at each time that it returns, and whenever [`Host::fd`] is readable.
    ///
    /// # Errors
    /// The same as those of [`HostBuilder::build`].
    pub fn polled() -> Result<Self, Error> {
        Self::builder().polled().build()
    }
}

impl HostBuilder {
    /// Sets the host NQN. Default: the one in `/etc/nvme/hostnqn` if it is readable and valid, else
    /// one derived from the host identifier.
    #[must_use]
    pub fn host_nqn(mut self, nqn: HostNqn) -> Self {
        self.nqn = Some(nqn);
        self
    }

    /// Sets the host identifier. Default: that in `/etc/nvme/hostid` if it is readable and valid,
    /// else random.
    #[must_use]
    pub fn host_id(mut self, id: HostId) -> Self {
        self.id = Some(id);
        self
    }

    /// Sets the RDMA provider. Default: [`RdmaProvider::Auto`].
    #[must_use]
    pub fn provider(mut self, provider: RdmaProvider) -> Self {
        self.provider = provider;
        self
    }

    /// Sets whether memory windows of RDMA devices are used, which
    /// [`Grant::PerCommand`](crate::Grant::PerCommand) requires; disable them for a device on which
    /// they fail. Default: on.
    #[must_use]
    pub fn memory_windows(mut self, used: bool) -> Self {
        self.verbs.no_memory_windows = !used;
        self
    }

    /// Sets the local address of connections. Default: that of the route to each target.
    #[must_use]
    pub fn source(mut self, address: IpAddr) -> Self {
        self.source = Some(address);
        self
    }

    /// Replaces all options of connections.
    #[must_use]
    pub fn controller_options(mut self, options: ControllerOptions) -> Self {
        self.controller = options;
        self
    }

    /// Sets the number of I/O queues of a connection, at least 1.
    #[must_use]
    pub fn io_queues(mut self, queues: u16) -> Self {
        self.controller.io_queues = queues;
        self
    }

    /// Sets the entries of an I/O queue, 2 to 1,024.
    #[must_use]
    pub fn queue_entries(mut self, entries: u16) -> Self {
        self.controller.queue_entries = entries;
        self
    }

    /// Sets the Keep Alive Timeout in milliseconds, 0 for none.
    #[must_use]
    pub fn keep_alive_ms(mut self, timeout_ms: u32) -> Self {
        self.controller.keep_alive_ms = timeout_ms;
        self
    }

    /// Sets the type of service of the packets, in both directions.
    #[must_use]
    pub fn type_of_service(mut self, type_of_service: u8) -> Self {
        self.controller.type_of_service = Some(type_of_service);
        self
    }

    /// Sets the acknowledgement time-out of both sides: 4.096 us * 2^`exponent`, `exponent` 1 to
    /// 31.
    #[must_use]
    pub fn ack_timeout_exponent(mut self, exponent: u8) -> Self {
        self.controller.ack_timeout_exponent = Some(exponent);
        self
    }

    /// Sets the longest pause between attempts to reconnect, at least 1 ms.
    #[must_use]
    pub fn reconnect_delay(mut self, delay: Duration) -> Self {
        self.controller.reconnect_delay = delay;
        self
    }

    /// Sets the time without a connection after which operations fail:
    /// [`ControllerOptions::loss_timeout`].
    #[must_use]
    pub fn loss_timeout(mut self, timeout: Duration) -> Self {
        self.controller.loss_timeout = timeout;
        self
    }

    /// Sets the time without progress after which a range fails, more than zero:
    /// [`ControllerOptions::io_timeout`].
    #[must_use]
    pub fn io_timeout(mut self, timeout: Duration) -> Self {
        self.controller.io_timeout = timeout;
        self
    }

    /// Makes [`HostBuilder::build`] start no thread: see [`Host::polled`].
    #[must_use]
    pub fn polled(mut self) -> Self {
        self.polled = true;
        self
    }

    /// Builds the host. RDMA devices are opened when a target needs them.
    ///
    /// # Errors
    /// An option of [`ControllerOptions`] is out of range, or the system has no descriptor or
    /// thread for the host.
    pub fn build(self) -> Result<Host, Error> {
        let host = self.build_polled()?;
        if host.inner.shared.threaded {
            host.inner.start_thread()?;
        }
        Ok(host)
    }

    /// Builds a host that uses only this device, which is simulated or was opened by the caller.
    /// For the simulator and the benchmarks; it changes with `rdma`, regardless of the version
    /// number.
    ///
    /// # Errors
    /// The device cannot be used.
    #[doc(hidden)]
    pub fn build_on<P: Provider>(mut self, device: P::Device) -> Result<Host, Error> {
        self.source = None;
        let wire: Box<dyn Wire> = Box::new(Link::<P>::new(device)?);
        // A simulated device makes no progress in real time, for which a thread could wait.
        self.polled |= wire.fds().is_empty();
        let mut host = self.build_polled()?;
        let engine = HostEngine::new(wire, host.inner.identity, None, fill_random);
        host.inner.shared.add(engine, String::new())?;
        let inner = Arc::get_mut(&mut host.inner).expect("nobody else has it yet");
        inner.fixed_device = true;
        if inner.shared.threaded {
            inner.start_thread()?;
        }
        Ok(host)
    }

    fn build_polled(self) -> Result<Host, Error> {
        let controller = self.controller.checked()?;
        let identity = identity(self.nqn, self.id);
        let shared = SharedEngines::new(!self.polled)?;
        Ok(Host {
            inner: Arc::new(Inner {
                shared,
                identity,
                provider: self.provider,
                verbs: self.verbs,
                source: self.source,
                controller,
                fixed_device: false,
                devices: Mutex::new(OpenDevices::default()),
                thread: Mutex::new(None),
            }),
        })
    }
}

/// Returns the given identity, with that of the machine or a random one for what is missing.
fn identity(nqn: Option<HostNqn>, id: Option<HostId>) -> HostIdentity {
    let read = |path| std::fs::read_to_string(path).ok();
    let id = id
        .or_else(|| HostId::from_str(read("/etc/nvme/hostid")?.trim()).ok())
        .unwrap_or_else(|| HostId(*uuid::Uuid::new_v4().as_bytes()));
    let nqn = nqn
        .or_else(|| HostNqn::from_str(read("/etc/nvme/hostnqn")?.trim()).ok())
        .unwrap_or_else(|| HostNqn::from_host_id(id));
    HostIdentity { nqn, id }
}
