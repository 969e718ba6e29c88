//! NVMe transfers over the path: discovery, reads, and compares, which send data to the target
//! without changing any there.

use core::time::Duration;
use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::Result;
use feedrail_initiator::{
    DiscoveryLog, Error, ErrorKind, Grant, Host, Namespace, RangeOutcome, ReadRange, RegionSlice,
};
use nvme_proto::log::SubsystemType;
use nvme_proto::{Nqn, Nsid, Status};

use crate::clock::now;
use crate::latency::Latency;
use crate::options::Local;
use crate::session::{self, Session};

/// Duration of each kind of transfer.
const PERIOD: Duration = Duration::from_secs(1);
/// Bytes of a read or compare for throughput, and how many are in flight.
const LARGE_BYTES: usize = 128 << 10;
const DEPTH: usize = 16;
/// Bytes of a read for latency.
const SMALL_BYTES: usize = 4 << 10;

/// Whether RoCE reaches the target, as an attempt at discovery shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RoceAnswer {
    /// The discovery log was read.
    Discovered { subsystems: usize },
    /// The target refused the connection or the command.
    Refused(String),
    /// No answer arrived in time.
    Silent(String),
    /// Discovery could not be attempted.
    Untried(String),
}

/// Bytes transferred, and the duration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Throughput {
    pub(super) bytes: u64,
    pub(super) elapsed: Duration,
}

impl Throughput {
    pub(super) fn megabytes_per_second(self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-9) / 1e6
    }
}

/// Counters of the soft provider over the transfers. They are 0 with verbs, whose device has
/// counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WireCounts {
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Packets that this side retransmitted.
    pub(super) repeated: u64,
    /// Gaps in the sequence of packets from the target.
    pub(super) gaps: u64,
    /// Packets whose invariant CRC was wrong.
    pub(super) damaged: u64,
    /// Packets from the target that arrived with ECN CE (`np_ecn_marked_packets`).
    pub(super) marked: u64,
    /// CNPs from the target, for packets to it that arrived with ECN CE (`rp_cnp_handled`).
    pub(super) notifications: u64,
}

impl WireCounts {
    fn of(host: &Host) -> Self {
        let mut counts = Self::default();
        for stats in host.provider_stats() {
            counts.sent += stats.packets_sent;
            counts.received += stats.packets_received;
            counts.repeated += stats.packets_retransmitted;
            counts.gaps += stats.sequence_naks_sent;
            counts.damaged += stats.icrc_failures;
            counts.marked += stats.np_ecn_marked_packets;
            counts.notifications += stats.rp_cnp_handled;
        }
        counts
    }
}

#[derive(Clone, Debug)]
pub(super) struct TransferMeasure {
    pub(super) providers: Vec<String>,
    /// Latency of small reads, one at a time.
    pub(super) latency: Latency,
    pub(super) from_target: Throughput,
    /// Error if the namespace is too small, or the controller does not support Compare.
    pub(super) to_target: Result<Throughput, String>,
    pub(super) wire: WireCounts,
}

/// Requests the discovery log page, which any NVMe-oF target may serve at the address.
pub(super) fn discover(local: &Local, address: SocketAddr) -> RoceAnswer {
    let host = match session::host(local) {
        Ok(host) => host,
        Err(error) => return RoceAnswer::Untried(format!("{error:#}")),
    };
    match host.discover(address).wait() {
        Ok(log) => RoceAnswer::Discovered { subsystems: subsystems(&log) },
        Err(error) => match error.kind() {
            kind if is_refusal(kind) => RoceAnswer::Refused(error.to_string()),
            ErrorKind::Device(_) | ErrorKind::Invalid(_) | ErrorKind::Io(_) => {
                RoceAnswer::Untried(error.to_string())
            }
            _ => RoceAnswer::Silent(error.to_string()),
        },
    }
}

/// Number of NVM subsystems in a discovery log; each may have several addresses.
fn subsystems(log: &DiscoveryLog) -> usize {
    let nvm = log.entries.iter().filter(|entry| entry.subtype == SubsystemType::NVM);
    nvm.filter_map(|entry| entry.subnqn.parse().ok()).collect::<BTreeSet<Nqn>>().len()
}

/// Whether an error of this kind shows that the target answered.
fn is_refusal(kind: &ErrorKind) -> bool {
    match kind {
        ErrorKind::Rejected(_)
        | ErrorKind::ConnectRefused { .. }
        | ErrorKind::Status(_)
        | ErrorKind::Protocol(_)
        | ErrorKind::Malformed(_)
        | ErrorKind::Unsupported(_) => true,
        ErrorKind::Lost { cause, .. } => is_refusal(cause.kind()),
        _ => false,
    }
}

/// Reads and compares for one period each.
pub(super) fn measure(
    local: &Local,
    address: SocketAddr,
    nqn: Nqn,
    nsid: Nsid,
) -> Result<TransferMeasure> {
    let session = Session::connect(address, nqn, local)?;
    let namespace = session.namespace(nsid)?;
    let latency = small_reads(&namespace)?;
    let from_target = large_reads(session.host(), &namespace)?;
    let to_target = compares(&namespace)?;
    Ok(TransferMeasure {
        providers: session.host().providers(),
        latency,
        from_target,
        to_target,
        wire: WireCounts::of(session.host()),
    })
}

/// Bytes of an I/O: whole blocks, at most `most` bytes, and at most those of the namespace.
fn io_bytes(namespace: &Namespace, most: usize) -> usize {
    let block = namespace.info().block_bytes.max(1);
    let within = (most as u64).min(namespace.size_bytes());
    (within - within % block).max(block.min(namespace.size_bytes())) as usize
}

fn small_reads(namespace: &Namespace) -> Result<Latency> {
    let mut latency = Latency::default();
    let bytes = io_bytes(namespace, SMALL_BYTES);
    let mut slice = RegionSlice::allocate(bytes, Grant::Persistent)?;
    let began = now();
    while began.elapsed() < PERIOD / 2 {
        let before = now();
        let RangeOutcome { slice: back, result } = namespace.read(0, slice).wait();
        result?;
        latency.record(before.elapsed());
        slice = back;
    }
    Ok(latency)
}

fn large_reads(host: &Host, namespace: &Namespace) -> Result<Throughput> {
    let bytes = io_bytes(namespace, LARGE_BYTES);
    let places = (namespace.size_bytes() / bytes.max(1) as u64).max(1);
    let mut slices = Vec::new();
    for _ in 0..DEPTH {
        slices.push(RegionSlice::allocate(bytes, Grant::Persistent)?);
    }
    let (began, mut ended) = (now(), 0u64);
    while began.elapsed() < PERIOD {
        let range = |(number, into): (usize, RegionSlice)| {
            let place = (ended + number as u64) % places;
            ReadRange { namespace: namespace.clone(), offset: place * bytes as u64, into }
        };
        let outcomes = host.read_many(slices.drain(..).enumerate().map(range)).wait();
        for RangeOutcome { slice, result } in outcomes {
            result?;
            slices.push(slice);
            ended += 1;
        }
    }
    Ok(Throughput { bytes: ended * bytes as u64, elapsed: began.elapsed() })
}

/// Sends the namespace's own data with Compare for one period. A miscompare is no error, since the
/// data was transferred all the same.
fn compares(namespace: &Namespace) -> Result<Result<Throughput, String>> {
    let bytes = io_bytes(namespace, LARGE_BYTES * DEPTH);
    let content = namespace.read_to_vec(0, bytes).wait()?;
    let (began, mut sent) = (now(), 0u64);
    while began.elapsed() < PERIOD {
        if let Err(error) = namespace.compare(0, &content).wait()
            && !is_difference(&error)
        {
            return Ok(Err(error.to_string()));
        }
        sent += bytes as u64;
    }
    Ok(Ok(Throughput { bytes: sent, elapsed: began.elapsed() }))
}

fn is_difference(error: &Error) -> bool {
    error.status().is_some_and(|status| status.is(Status::COMPARE_FAILURE))
}
