//! Report of the measurements, as a table and as JSON.

use core::time::Duration;

use serde_json::{Value, json};

use super::contest::{Contestant, ReadWay};
use super::figures::LoaderFigures;
use super::page_cache::CacheState;
use crate::latency::Latency;
use crate::output;

/// Explanation that is printed below each result.
pub(super) const NOTE: &str = "The loop is DLIO's: computing is a sleep, each step ends with a \
    barrier of the ranks, the first step is not counted. AU is the computing time that was asked \
    for, by the time that passed. Results are not comparable with those of other benchmarks.";

const HEADING: [&str; 17] = [
    "Reader",
    "Cache",
    "Resident",
    "AU %",
    "samples/s",
    "MB/s",
    "MiB/s",
    "Client CPU s/GB",
    "Target CPU s/GB",
    "First ms",
    "p50 ms",
    "p99 ms",
    "Stall s",
    "Asked",
    "Rate/best",
    "p50/best",
    "CPU/best",
];

/// Results of all ways to read, and what is printed with them.
pub(super) struct LoaderReport<'a> {
    pub(super) contestants: &'a [Contestant],
    pub(super) compute: Duration,
    pub(super) batch_samples: u32,
    /// Parameters of the run, for JSON.
    pub(super) parameters: Value,
    /// Parameters of the run in one line.
    pub(super) title: String,
}

impl LoaderReport<'_> {
    /// Returns the local reader with the highest rate.
    fn fastest(&self) -> Option<&Contestant> {
        let local = self.contestants.iter().filter(|one| one.way.is_local());
        let rated = local.filter_map(|one| Some((one, self.rate(one)?)));
        rated.max_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(fastest, _)| fastest)
    }

    /// Samples per second of the fastest local reader.
    fn best_rate(&self) -> Option<f64> {
        self.fastest().and_then(|fastest| self.rate(fastest))
    }

    /// CPU time of this process per byte, divided by that of the fastest local reader.
    fn cpu_by_best(&self, one: &Contestant) -> Option<f64> {
        let fastest = self.fastest().and_then(|fastest| fastest.figures.client_cpu_per_gb());
        reads(one).and_then(|read| ratio(read.client_cpu_per_gb(), fastest))
    }

    /// Smallest median wait of the local readers, in microseconds.
    fn best_p50_us(&self) -> Option<f64> {
        let local = self.contestants.iter().filter(|one| one.way.is_local());
        local.filter_map(|one| percentile_us(&one.figures.waits, 50.0)).reduce(f64::min)
    }

    fn rate_by_best(&self, one: &Contestant) -> Option<f64> {
        reads(one).and_then(|_| ratio(self.rate(one), self.best_rate()))
    }

    fn p50_by_best(&self, one: &Contestant) -> Option<f64> {
        reads(one).and_then(|read| ratio(percentile_us(&read.waits, 50.0), self.best_p50_us()))
    }

    fn rate(&self, one: &Contestant) -> Option<f64> {
        one.figures.samples_per_second(self.batch_samples)
    }

    pub(super) fn to_json(&self) -> Value {
        let mut report = self.parameters.clone();
        report["note"] = NOTE.into();
        report["results"] = self.contestants.iter().map(|one| self.entry(one)).collect();
        report
    }

    fn entry(&self, one: &Contestant) -> Value {
        let LoaderFigures { waits, step_times, stalled, .. } = &one.figures;
        let figures = &one.figures;
        let bytes_per_second = read_rate(one);
        let residency = figures.residency.map(|found| found.percent());
        json!({
            "reader": one.way.name(),
            "cache": one.way.cache().map(CacheState::name),
            "cache_resident_percent_before": residency,
            "cache_verified": one.way.cache().map(|_| residency.is_some()),
            "cache_warning": cache_warning(one),
            "unavailable": one.unavailable,
            "turns": figures.turns,
            "batches": figures.batches,
            "elapsed_seconds": figures.elapsed.as_secs_f64(),
            "au": figures.au(self.compute),
            "samples_per_second": self.rate(one),
            "mb_per_second": bytes_per_second.map(|rate| rate / 1e6),
            "mib_per_second": bytes_per_second.map(|rate| rate / f64::from(1 << 20)),
            "bytes": if one.way == ReadWay::Nothing { 0 } else { figures.all_bytes },
            "asked_bytes": figures.asked_bytes,
            "amplification": figures.amplification(),
            "client_cpu_seconds": figures.client_cpu.as_secs_f64(),
            "client_cpu_seconds_per_gb": reads(one).and_then(LoaderFigures::client_cpu_per_gb),
            "target_cpu_seconds": figures.target_cpu.map(|time| time.as_secs_f64()),
            "target_cpu_seconds_per_gb": figures.target_cpu_per_gb(),
            "first_batch_seconds": figures.first_batch.map(|time| time.as_secs_f64()),
            "batch_wait_ns": waits.to_json(),
            "step_ns": step_times.to_json(),
            "stall_seconds": stalled.as_secs_f64(),
            "verified_batches": figures.verified,
            "samples_per_second_by_best_baseline": self.rate_by_best(one),
            "p50_wait_by_best_baseline": self.p50_by_best(one),
            "client_cpu_by_best_baseline": self.cpu_by_best(one),
        })
    }

    pub(super) fn to_text(&self) -> String {
        let rows: Vec<_> = self.contestants.iter().map(|one| self.row(one)).collect();
        let table = output::table(&HEADING, &rows);
        let missing = self.contestants.iter().filter_map(|one| {
            let reason = one.unavailable.as_ref()?;
            let cache = one.way.cache().map_or("", CacheState::name);
            Some(format!("{} {cache}: not available: {reason}\n", one.way.name()))
        });
        let missing: String = missing.collect();
        let warned = self.contestants.iter().filter_map(|one| {
            let cache = one.way.cache()?.name();
            Some(format!("Warning: {} {cache}: {}\n", one.way.name(), cache_warning(one)?))
        });
        let warned: String = warned.collect();
        format!(
            "{}\n{table}{missing}{warned}MB are 10^6 bytes, GB 10^9, MiB 2^20. p50, p99: wait for a batch. \
             Asked: bytes read, by bytes needed. Rate/best, p50/best: samples/s and p50, by the best \
             of the local readers. CPU/best: client CPU, by that of the fastest of them. {NOTE}\n",
            self.title
        )
    }

    fn row(&self, one: &Contestant) -> Vec<String> {
        let figures = &one.figures;
        let rate = read_rate(one);
        let milliseconds = |us: Option<f64>| number(us.map(|us| us / 1e3), 3);
        let first_us = figures.first_batch.map(|time| time.as_secs_f64() * 1e6);
        vec![
            one.way.name().to_owned(),
            one.way.cache().map_or("-", CacheState::name).to_owned(),
            resident(one),
            number(figures.au(self.compute).map(|au| au * 100.0), 1),
            number(self.rate(one), 1),
            number(rate.map(|rate| rate / 1e6), 1),
            number(rate.map(|rate| rate / f64::from(1 << 20)), 1),
            number(reads(one).and_then(LoaderFigures::client_cpu_per_gb), 3),
            number(figures.target_cpu_per_gb(), 3),
            milliseconds(first_us),
            milliseconds(percentile_us(&figures.waits, 50.0)),
            milliseconds(percentile_us(&figures.waits, 99.0)),
            format!("{:.3}", figures.stalled.as_secs_f64()),
            number(figures.amplification(), 2),
            number(self.rate_by_best(one), 2),
            number(self.p50_by_best(one), 2),
            number(self.cpu_by_best(one), 2),
        ]
    }
}

/// Figures of a way that reads; `None` for the loop without reads.
fn reads(one: &Contestant) -> Option<&LoaderFigures> {
    (one.way != ReadWay::Nothing).then_some(&one.figures)
}

fn read_rate(one: &Contestant) -> Option<f64> {
    reads(one).and_then(LoaderFigures::bytes_per_second)
}

fn cache_warning(one: &Contestant) -> Option<String> {
    let measured = one.way.cache().filter(|_| one.figures.turns > 0);
    measured.and_then(|cache| cache.warning(one.figures.residency))
}

fn resident(one: &Contestant) -> String {
    match (one.way.cache(), one.figures.residency) {
        (None, _) => "-".to_owned(),
        (Some(_), None) => "unverified".to_owned(),
        (Some(_), Some(found)) => format!("{:.0} %", found.percent()),
    }
}

fn percentile_us(latency: &Latency, percent: f64) -> Option<f64> {
    (latency.count() > 0).then(|| latency.percentile_us(percent))
}

/// Quotient of two values. `None` if one is missing, or the divisor is 0.
fn ratio(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    Some(one? / other.filter(|other| *other > 0.0)?)
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "n/a".to_owned(), |value| format!("{value:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::super::contest::LocalMethod;
    use super::super::figures::RankFigures;
    use super::super::page_cache::Residency;
    use super::*;

    /// Ten batches, in so many milliseconds each.
    fn contestant(way: ReadWay, milliseconds: u64) -> Contestant {
        let mut rank = RankFigures {
            steps: 10,
            elapsed: Duration::from_millis(10 * milliseconds),
            bytes: 10_000_000,
            all_bytes: 11_000_000,
            ..RankFigures::default()
        };
        for _ in 0..10 {
            rank.waits.record(Duration::from_millis(milliseconds - 1));
        }
        let mut contestant = Contestant::new(way);
        contestant.figures.add_turn(&[rank]);
        let cpu_ms = if way.is_local() { 2 } else { 1 };
        contestant.figures.client_cpu = Duration::from_millis(cpu_ms);
        contestant
    }

    #[test]
    fn ratios_are_to_the_best_local_reader() {
        let pread = |cache| ReadWay::Local(LocalMethod::Pread, cache);
        let mut broken = Contestant::new(ReadWay::Local(LocalMethod::IoUring, CacheState::Warm));
        broken.unavailable = Some("refused".to_owned());
        let resident = |resident_pages| Some(Residency { resident_pages, pages: 100 });
        let mut contestants = [
            contestant(ReadWay::Remote(None), 2),
            contestant(pread(CacheState::Warm), 5),
            contestant(pread(CacheState::Cold), 9),
            broken,
            contestant(ReadWay::Nothing, 1),
        ];
        contestants[1].figures.residency = resident(99);
        contestants[2].figures.residency = resident(70);
        let report = LoaderReport {
            contestants: &contestants,
            compute: Duration::from_millis(1),
            batch_samples: 10,
            parameters: json!({}),
            title: "title".to_owned(),
        };
        let json = report.to_json();
        let ours = &json["results"][0];
        assert_eq!(ours["samples_per_second"], 5000.0);
        assert_eq!(ours["au"], 0.5);
        assert_eq!(
            (&ours["mb_per_second"], &ours["mib_per_second"]),
            (&500.0.into(), &476.837158203125.into())
        );
        assert_eq!(ours["samples_per_second_by_best_baseline"], 2.5);
        let by_p50 = ours["p50_wait_by_best_baseline"].as_f64().unwrap();
        assert!((0.249..0.251).contains(&by_p50), "{by_p50}");
        assert_eq!(json["results"][1]["samples_per_second_by_best_baseline"], 1.0);
        // 1 ms for 11 MB, by 2 ms for as many.
        assert_eq!(ours["client_cpu_by_best_baseline"], 0.5);
        assert_eq!(json["results"][4]["client_cpu_by_best_baseline"], Value::Null);
        assert_eq!(json["results"][3]["unavailable"], "refused");
        assert_eq!(json["results"][4]["mb_per_second"], Value::Null);
        let text = report.to_text();
        assert!(text.contains("io_uring warm: not available: refused"), "{text}");
        assert!(text.contains("2.50       0.25") && text.contains("n/a"), "{text}");
        assert!(!text.contains("MLPerf"), "{text}");
        let warnings: Vec<_> = text.lines().filter(|line| line.starts_with("Warning")).collect();
        assert!(
            matches!(warnings[..], [one] if one.starts_with("Warning: pread cold: not cold: 70 %"))
        );
        assert_eq!(json["results"][1]["cache_warning"], Value::Null);
        assert_eq!(json["results"][3]["cache_warning"], Value::Null, "no residency was taken");
    }
}
