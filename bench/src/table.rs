//! Tables of results as text and as Markdown.

use crate::figures::{Figures, Spread, quotients};
use crate::load::{Load, MediumKind};
use crate::results::Results;
use crate::verdict::{self, Requirement};

/// Rows of cells; the first row is the heading.
pub(crate) struct TextTable(Vec<Vec<String>>);

impl TextTable {
    pub(crate) fn new<const N: usize>(heading: [&str; N]) -> Self {
        Self(vec![heading.map(str::to_owned).into()])
    }

    pub(crate) fn push<const N: usize>(&mut self, cells: [String; N]) {
        self.0.push(cells.into());
    }

    /// Formats the table with columns padded to equal width.
    pub(crate) fn to_text(&self) -> String {
        let widths: Vec<usize> = (0..self.0[0].len())
            .map(|column| self.0.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
            .collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        self.0.iter().map(line).collect()
    }

    pub(crate) fn to_markdown(&self) -> String {
        let line = |row: &Vec<String>| format!("| {} |\n", row.join(" | "));
        let rule = format!("|{}\n", "---|".repeat(self.0[0].len()));
        let body: String = self.0[1..].iter().map(line).collect();
        line(&self.0[0]) + &rule + &body
    }
}

/// Table of requirements: bound, measured value, and whether it holds.
pub(crate) fn of_verdict(lines: &[Requirement]) -> TextTable {
    let mut table = TextTable::new(["what", "required", "median", "from .. to", ""]);
    for line in lines {
        let measured = line.measured.map_or_else(Default::default, |spread| {
            (number(spread.median), format!("{} .. {}", number(spread.min), number(spread.max)))
        });
        table.push([
            line.what.clone(),
            line.bound.words(),
            measured.0,
            measured.1,
            line.word().into(),
        ]);
    }
    table
}

/// Table of every load on every medium, and its ceiling.
pub(crate) fn of_loads(figures: &Figures) -> TextTable {
    let mut table = TextTable::new([
        "workload",
        "backend",
        "IOPS",
        "MB/s",
        "p50 us",
        "p99 us",
        "by plain UDP",
        "by fio, huge pages",
        "CPU s/GB, target + host",
    ]);
    for load in Load::every() {
        for backend in MediumKind::ALL {
            let get = |unit| figures.spread(&verdict::figure(backend, &load, unit));
            let Some(iops) = get("iops") else { continue };
            let rate = verdict::figure(backend, &load, "bytes_per_second");
            let fio = format!("ceilings/fio-huge/{}/bytes_per_second", load.name());
            let fio =
                if backend == MediumKind::File { figures.ratios(&rate, &fio) } else { Vec::new() };
            let udp = quotients(figures.values(&rate), figures.values(verdict::GOODPUT));
            table.push([
                load.words(),
                backend.name().into(),
                format!("{:.0}", iops.median),
                cell(get("bytes_per_second"), |rate| format!("{:.0}", rate / 1e6)),
                cell(get("p50_us"), number),
                cell(get("p99_us"), number),
                cell(Spread::of(&udp), number),
                cell(Spread::of(&fio), number),
                format!(
                    "{} + {}",
                    cell(get("target_cpu_seconds_per_gb"), number),
                    cell(get("host_cpu_seconds_per_gb"), number)
                ),
            ]);
        }
    }
    table
}

/// Table of all figures.
pub(crate) fn of_all(figures: &Figures) -> TextTable {
    let mut table = TextTable::new(["figure", "median", "from .. to"]);
    for (name, spread) in figures.iter() {
        let range = format!("{} .. {}", number(spread.min), number(spread.max));
        table.push([name.to_owned(), number(spread.median), range]);
    }
    table
}

/// Description of the machine and the tables, printed at the end of a run.
pub(crate) fn of_results(results: &Results) -> String {
    format!(
        "{}\n\n{}\n{}\n{}",
        results.machine.line(),
        of_all(&results.figures).to_text(),
        of_loads(&results.figures).to_text(),
        of_verdict(&verdict::lines(&results.figures)).to_text()
    )
}

pub(crate) fn cell(spread: Option<Spread>, show: impl Fn(f64) -> String) -> String {
    spread.map_or(String::new(), |spread| show(spread.median))
}

/// Formats a value with about three significant digits.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        small if small >= 0.01 || small == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        let mut table = TextTable::new(["a", "bc"]);
        table.push(["def".to_owned(), "g".to_owned()]);
        assert_eq!(table.to_text(), "a    bc\ndef  g\n");
        assert_eq!(table.to_markdown(), "| a | bc |\n|---|---|\n| def | g |\n");
    }

    #[test]
    fn three_digits() {
        let numbers = [0.0, 0.001_23, 0.912, 3.25, 25.62, 1234.5].map(number);
        assert_eq!(numbers, ["0.00", "0.0012", "0.91", "3.25", "25.6", "1234"]);
    }
}
