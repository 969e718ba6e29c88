//! Requirements on the figures, and whether they hold.

use serde::Serialize;

use crate::figures::{Figures, Spread, quotients};
use crate::load::{BenchProvider, Load, MediumKind};
use crate::spdk;
use crate::udp::DATAGRAM_OVERHEAD_BYTES;

/// Requirement, its bound, and the measured figure.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Requirement {
    pub(crate) what: String,
    pub(crate) bound: Bound,
    /// Spread of the measurements; `None` without any.
    pub(crate) measured: Option<Spread>,
    /// Absolute figure behind the ratio. README shows the requirements that have one.
    #[serde(skip)]
    pub(crate) absolute: Option<Absolute>,
}

/// Median of a figure, with its unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Absolute {
    BytesPerSecond(f64),
    Iops(f64),
    Microseconds(f64),
}

/// Bound of the median.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
}

/// The best loss-free goodput with trains: the ceiling of the soft provider.
pub(crate) const GOODPUT: &str = "ceilings/udp-trains-4096/bytes_per_second";
pub(crate) const PING_PONG: &str = "ceilings/udp-ping-pong/p50_us";

/// Workloads of the kernel lab that are compared.
const LAB_WORKLOADS: [&str; 4] = ["randread-4k-1", "randread-4k-32", "read-128k-8", "write-128k-8"];

impl Requirement {
    pub(crate) fn new(what: impl Into<String>, bound: Bound, values: &[f64]) -> Self {
        Self { what: what.into(), bound, measured: Spread::of(values), absolute: None }
    }

    /// Sets the absolute figure to the median of `spread`, if there is one.
    fn with(mut self, unit: fn(f64) -> Absolute, spread: Option<Spread>) -> Self {
        self.absolute = spread.map(|spread| unit(spread.median));
        self
    }

    pub(crate) fn word(&self) -> &'static str {
        match self.measured {
            None => "not measured",
            Some(spread) if self.bound.holds(spread.median) => "met",
            Some(_) => "not yet",
        }
    }
}

impl Absolute {
    pub(crate) fn words(self) -> String {
        match self {
            Self::BytesPerSecond(rate) => format!("{:.2} GB/s", rate / 1e9),
            Self::Iops(rate) => format!("{:.0}k IOPS", rate / 1e3),
            Self::Microseconds(time) => format!("{time:.1} us"),
        }
    }
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
            Self::Below(bound) => value < bound,
        }
    }

    pub(crate) fn words(self) -> String {
        match self {
            Self::AtLeast(bound) => format!("at least {bound}"),
            Self::AtMost(bound) => format!("at most {bound}"),
            Self::Below(bound) => format!("below {bound}"),
        }
    }
}

/// Returns all requirements, with the figures that decide them.
pub(crate) fn lines(figures: &Figures) -> Vec<Requirement> {
    let mut lines = beside_plain_udp(figures);
    lines.extend(beside_the_disk(figures));
    lines.extend(costs(figures));
    lines.extend(of_loaders(figures));
    let [one, .., all] = Load::CONNECTIONS.map(|load| figure(MediumKind::Null, &load, "iops"));
    let connections = Requirement::new(
        "256 connections: 4 KiB IOPS, by those of one connection with the same total depth",
        Bound::AtLeast(0.8),
        &figures.ratios(&all, &one),
    );
    lines.push(connections.with(Absolute::Iops, figures.spread(&all)));
    lines.extend(in_shared_memory(figures));
    lines.extend(of_files_in_memory(figures));
    lines.extend(beside_spdk(figures));
    lines.extend(LAB_WORKLOADS.map(|workload| {
        let name = format!("lab/kernel-host-to-us-by-nvmet/{workload}");
        let what = format!("kernel host to us on verbs, by kernel host to nvmet-rdma: {workload}");
        Requirement::new(what, Bound::AtLeast(0.9), figures.values(&name))
    }));
    lines
}

fn beside_plain_udp(figures: &Figures) -> Vec<Requirement> {
    let null = |load: &Load, unit| figure(MediumKind::Null, load, unit);
    let large = null(&Load::new("randread", 128 << 10, 32), "bytes_per_second");
    let small = null(&Load::new("randread", 4 << 10, 32), "iops");
    let single = null(&Load::new("randread", 4 << 10, 1), "p50_us");
    let datagram_bytes = (4096 + DATAGRAM_OVERHEAD_BYTES) as f64;
    let datagrams: Vec<f64> =
        figures.values(GOODPUT).iter().map(|rate| rate / datagram_bytes).collect();
    vec![
        Requirement::new(
            "null, 128 KiB random read, depth 32: bytes/s, by goodput of plain UDP with GSO and GRO",
            Bound::AtLeast(0.6),
            &figures.ratios(&large, GOODPUT),
        )
        .with(Absolute::BytesPerSecond, figures.spread(&large)),
        Requirement::new(
            "null, 4 KiB random read, depth 32: IOPS, by datagrams/s of plain UDP with GSO and GRO",
            Bound::AtLeast(0.5),
            &quotients(figures.values(&small), &datagrams),
        )
        .with(Absolute::Iops, figures.spread(&small)),
        Requirement::new(
            "null, 4 KiB random read, depth 1: time, by round trip of plain UDP with the same polling",
            Bound::AtMost(2.5),
            &figures.ratios(&single, PING_PONG),
        )
        .with(Absolute::Microseconds, figures.spread(&single)),
    ]
}

/// Requirements relative to rings that transfer the same commands and copies without sleeping.
fn in_shared_memory(figures: &Figures) -> Vec<Requirement> {
    let null =
        |load: &Load, unit: &str| of_provider(BenchProvider::Shm, MediumKind::Null, load, unit);
    let least = |load: &Load, unit: &str, most: f64, part: f64| {
        let ring = figures.values(&format!("shm/ring/{}/{unit}", load.name()));
        let needed: Vec<f64> = ring.iter().map(|rate| most.min(part * rate)).collect();
        quotients(figures.values(&null(load, unit)), &needed)
    };
    let [small, single, large] = [(4, 32), (4, 1), (128, 32)]
        .map(|(kibibytes, depth)| Load::new("randread", kibibytes << 10, depth));
    let [one, .., all] = Load::CONNECTIONS.map(|load| null(&load, "iops"));
    vec![
        Requirement::new(
            "shared memory, null, 4 KiB random read, depth 32: IOPS, by 1 M or 0.35 of a ring's",
            Bound::AtLeast(1.0),
            &least(&small, "iops", 1e6, 0.35),
        )
        .with(Absolute::Iops, figures.spread(&null(&small, "iops"))),
        Requirement::new(
            "shared memory, null, 4 KiB random read, depth 1: us",
            Bound::AtMost(3.0),
            figures.values(&null(&single, "p50_us")),
        )
        .with(Absolute::Microseconds, figures.spread(&null(&single, "p50_us"))),
        Requirement::new(
            "shared memory, null, 128 KiB random read, depth 32: bytes/s, by 8 GB/s or half of a ring's",
            Bound::AtLeast(1.0),
            &least(&large, "bytes_per_second", 8e9, 0.5),
        )
        .with(Absolute::BytesPerSecond, figures.spread(&null(&large, "bytes_per_second"))),
        Requirement::new(
            "shared memory, 256 connections: 4 KiB IOPS, by those of one with the same total depth",
            Bound::AtLeast(0.75),
            &figures.ratios(&all, &one),
        )
        .with(Absolute::Iops, figures.spread(&all)),
    ]
}

/// Requirements relative to the in-memory namespace, over the same provider.
fn of_files_in_memory(figures: &Figures) -> [Requirement; 2] {
    [BenchProvider::Soft, BenchProvider::Shm].map(|provider| {
        let iops = |medium| of_provider(provider, medium, &Load::HOT, "iops");
        let (file, memory) = (iops(MediumKind::HotFile), iops(MediumKind::Memory));
        let what = format!(
            "file in memory over {}, {}: IOPS, by those of the namespace in memory",
            provider.name(),
            Load::HOT.words()
        );
        Requirement::new(what, Bound::AtLeast(0.8), &figures.ratios(&file, &memory))
            .with(Absolute::Iops, figures.spread(&file))
    })
}

/// Requirements relative to SPDK's NVMe/TCP; empty without its figures.
fn beside_spdk(figures: &Figures) -> Vec<Requirement> {
    let small = Load::new("randread", 4 << 10, 32);
    let large = Load::new("randread", 128 << 10, 32);
    let of = |medium: MediumKind, load: Load| {
        let spdk = spdk::figure(medium, &load, "iops");
        let theirs = figures.spread(&spdk)?;
        let ours = of_provider(BenchProvider::Shm, medium, &load, "iops");
        let what = format!(
            "shared memory, {}, {}: IOPS, by SPDK's over NVMe/TCP ({:.0}k)",
            medium.name(),
            load.words(),
            theirs.median / 1e3
        );
        let line = Requirement::new(what, Bound::AtLeast(1.0), &figures.ratios(&ours, &spdk));
        let is_for_readme = load == small || load == large && medium == MediumKind::Memory;
        Some(match is_for_readme {
            true => line.with(Absolute::Iops, figures.spread(&ours)),
            false => line,
        })
    };
    MediumKind::ALL
        .into_iter()
        .flat_map(|medium| spdk::LOADS.into_iter().filter_map(move |load| of(medium, load)))
        .collect()
}

fn beside_the_disk(figures: &Figures) -> Vec<Requirement> {
    type Unit = fn(f64) -> Absolute;
    let loads: [(Load, f64, &str, Unit); 4] = [
        (Load::new("randread", 4 << 10, 1), 0.9, "iops", Absolute::Iops),
        (Load::new("randread", 4 << 10, 32), 0.8, "iops", Absolute::Iops),
        (Load::new("randread", 128 << 10, 32), 0.9, "bytes_per_second", Absolute::BytesPerSecond),
        (Load::new("randread", 4 << 10, 128), 0.8, "iops", Absolute::Iops),
    ];
    let line = |(load, bound, name, unit): (Load, f64, &str, Unit)| {
        let fio = format!("ceilings/fio-huge/{}/bytes_per_second", load.name());
        let null = figure(MediumKind::Null, &load, "bytes_per_second");
        let file = figure(MediumKind::File, &load, "bytes_per_second");
        let reachable = figures.lower(&fio, &null);
        let what = format!(
            "file, {}: by the lower of fio (huge pages) on the file and our null",
            load.words()
        );
        let ratios = quotients(figures.values(&file), &reachable);
        let absolute = figures.spread(&figure(MediumKind::File, &load, name));
        Requirement::new(what, Bound::AtLeast(bound), &ratios).with(unit, absolute)
    };
    loads.map(line).into()
}

fn costs(figures: &Figures) -> Vec<Requirement> {
    [
        (
            "target logic alone: instructions for a 4 KiB read",
            Bound::AtMost(1100.0),
            "cost/target_instructions_per_read",
        ),
        (
            "target logic alone: allocations for a 4 KiB read",
            Bound::AtMost(0.0),
            "cost/target_allocations_per_read",
        ),
        (
            "idle daemon with 16 connections: % of a core",
            Bound::Below(0.5),
            "cost/idle_cpu_percent_with_16_connections",
        ),
        ("listening after start: ms", Bound::AtMost(100.0), "cost/listening_after_ms"),
        (
            "resident memory without the pool: MiB",
            Bound::Below(16.0),
            "cost/resident_mib_without_pool",
        ),
    ]
    .map(|(what, bound, name)| Requirement::new(what, bound, figures.values(name)))
    .into()
}

fn of_loaders(figures: &Figures) -> Vec<Requirement> {
    let figure = |name: &str| format!("loader/cold-file/{name}");
    let cold = |ours: &str, theirs: &str| figures.ratios(&figure(ours), &figure(theirs));
    vec![
        Requirement::new(
            "cold file, batches of 64 x 128 KiB: bytes/s, by 16 threads of O_DIRECT pread",
            Bound::AtLeast(0.9),
            &cold("mb_per_second", "direct_pread_mb_per_second"),
        ),
        Requirement::new(
            "cold file: CPU time of the loader for a byte, by that of these threads",
            Bound::AtMost(0.5),
            &cold("client_cpu_seconds_per_gb", "direct_pread_cpu_seconds_per_gb"),
        ),
        Requirement::new(
            "10^6 queued ranges cancelled: CPU s",
            Bound::AtMost(1.0),
            figures.values("loader/cancel-1000000/cpu_seconds"),
        ),
        Requirement::new(
            "4 KiB read beside a batch of 400 MiB that gives way: ms, the longest",
            Bound::AtMost(10.0),
            figures.values("loader/small-read-beside-400-mib-background/max_ms"),
        ),
    ]
}

/// Name of a figure of Feedrail over the soft provider.
pub(crate) fn figure(backend: MediumKind, load: &Load, unit: &str) -> String {
    of_provider(BenchProvider::Soft, backend, load, unit)
}

/// Name of a figure of Feedrail over a provider.
pub(crate) fn of_provider(
    provider: BenchProvider,
    backend: MediumKind,
    load: &Load,
    unit: &str,
) -> String {
    format!("{}/{}/{}/{unit}", provider.section(), backend.name(), load.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_decides() {
        let line = |values: &[f64]| Requirement::new("", Bound::AtLeast(0.6), values);
        assert_eq!(line(&[0.5, 0.7, 0.6]).word(), "met");
        assert_eq!(line(&[0.5, 0.59, 0.7]).word(), "not yet");
        assert_eq!(line(&[]).word(), "not measured");
        assert!(!Bound::Below(16.0).holds(16.0) && Bound::AtMost(16.0).holds(16.0));
    }

    #[test]
    fn requirements_name_figures_that_are_measured() {
        let mut figures = Figures::default();
        figures.add(GOODPUT, 4128.0 * 100.0);
        figures.add("us/null/randread-4k-32/iops", 60.0);
        figures.add("us/null/randread-128k-32/bytes_per_second", 206_400.0);
        figures.add("ceilings/fio-huge/randread-128k-32/bytes_per_second", 103_200.0);
        figures.add("us/file/randread-128k-32/bytes_per_second", 51_600.0);
        let medians: Vec<f64> = lines(&figures)
            .iter()
            .filter_map(|line| line.measured)
            .map(|spread| spread.median)
            .collect();
        assert_eq!(medians, [0.5, 0.6, 0.5]);
    }
}
