//! Report of the measurements, as a table and as JSON.

use serde_json::{Map, Value, json};

use super::figures::{RankTimes, Spread, median_ratio};
use super::rounds::{BenchFigures, WriterFigures, WriterKind};
use crate::output;

/// Explanation that is printed below each result.
const NOTE: &str = "A save ends when it is durable: for feedrail with the commit, for files after \
    fsync and rename. Rates are those of the slowest rank. The shape of the load is MLPerf \
    Storage's; the results are not comparable with its results.";

const HEADING: [&str; 11] = [
    "Writer",
    "Write GB/s",
    "min",
    "max",
    "Slowest rank s",
    "Fastest rank s",
    "Load GB/s",
    "min",
    "max",
    "Slowest rank s",
    "Fastest rank s",
];

/// Results of all writers, and what is printed with them.
pub(super) struct CheckpointReport<'a> {
    pub(super) figures: &'a BenchFigures,
    pub(super) total_bytes: u64,
    /// Parameters of the run, for JSON.
    pub(super) parameters: Value,
    /// Parameters of the run in lines.
    pub(super) title: String,
}

impl CheckpointReport<'_> {
    pub(super) fn to_json(&self) -> Value {
        let mut report = self.parameters.clone();
        report["note"] = NOTE.into();
        report["results"] = self.figures.writers.iter().map(|one| self.entry(one)).collect();
        let ratios = |times: fn(&WriterFigures) -> &[RankTimes]| -> Map<String, Value> {
            self.ratios(times).map(|(name, ratio)| (name.to_owned(), ratio.into())).collect()
        };
        report["write_by"] = ratios(|one| &one.saves).into();
        report["load_by"] = ratios(|one| &one.loads).into();
        report["cold"] = self.figures.cold.to_json(self.total_bytes);
        report
    }

    fn entry(&self, one: &WriterFigures) -> Value {
        json!({
            "writer": one.kind.name(),
            "write": self.times(&one.saves),
            "load": self.times(&one.loads),
        })
    }

    fn times(&self, times: &[RankTimes]) -> Value {
        let of_rank = |found: Option<(usize, f64)>| {
            found.map(|(rank, seconds)| json!({ "rank": rank, "seconds": seconds }))
        };
        let middle = middle(times);
        json!({
            "gb_per_second": self.rates(times).map(Spread::to_json),
            "seconds": times.iter().map(|one| one.whole).collect::<Vec<_>>(),
            "slowest_rank": of_rank(middle.and_then(RankTimes::slowest)),
            "fastest_rank": of_rank(middle.and_then(RankTimes::fastest)),
        })
    }

    fn rates(&self, times: &[RankTimes]) -> Option<Spread> {
        Spread::of(times.iter().map(|one| one.gb_per_second(self.total_bytes)))
    }

    /// Returns the rates of the volume by those of each other writer.
    fn ratios(
        &self,
        times: fn(&WriterFigures) -> &[RankTimes],
    ) -> impl Iterator<Item = (&'static str, f64)> {
        let writers = &self.figures.writers;
        let own = writers.iter().find(|one| one.kind == WriterKind::Feedrail);
        let others = writers.iter().filter(|one| one.kind != WriterKind::Feedrail);
        others.filter_map(move |other| {
            Some((other.kind.name(), median_ratio(times(own?), times(other))?))
        })
    }

    pub(super) fn to_text(&self) -> String {
        let rows: Vec<_> = self.figures.writers.iter().map(|one| self.row(one)).collect();
        format!(
            "{}\n{}{}{}{}{NOTE}\n",
            self.title,
            output::table(&HEADING, &rows),
            self.ratio_line("write", |one| &one.saves),
            self.ratio_line("load", |one| &one.loads),
            self.figures.cold.to_text(self.total_bytes),
        )
    }

    fn row(&self, one: &WriterFigures) -> Vec<String> {
        let mut row = vec![one.kind.name().to_owned()];
        row.extend(self.cells(&one.saves));
        row.extend(self.cells(&one.loads));
        row
    }

    fn cells(&self, times: &[RankTimes]) -> [String; 5] {
        let Some(Spread { median, min, max }) = self.rates(times) else {
            return core::array::from_fn(|_| "n/a".to_owned());
        };
        let of_rank = |found: Option<(usize, f64)>| match found {
            Some((rank, seconds)) => format!("{seconds:.3} (rank {rank})"),
            None => "n/a".to_owned(),
        };
        let middle = middle(times);
        [
            format!("{median:.3}"),
            format!("{min:.3}"),
            format!("{max:.3}"),
            of_rank(middle.and_then(RankTimes::slowest)),
            of_rank(middle.and_then(RankTimes::fastest)),
        ]
    }

    fn ratio_line(&self, verb: &str, times: fn(&WriterFigures) -> &[RankTimes]) -> String {
        let ratios = self.ratios(times);
        let texts: Vec<_> = ratios.map(|(name, ratio)| format!("{ratio:.2} of {name}")).collect();
        match texts.is_empty() {
            true => String::new(),
            false => format!("{verb}: {} (medians of the ratios of a round)\n", texts.join(", ")),
        }
    }
}

/// Returns the save or load whose time is the median; of an even number the longer one.
fn middle(times: &[RankTimes]) -> Option<&RankTimes> {
    let mut sorted: Vec<&RankTimes> = times.iter().collect();
    sorted.sort_unstable_by(|one, other| one.whole.total_cmp(&other.whole));
    sorted.get(sorted.len() / 2).copied()
}
