//! Generates the performance section of README, the page of all tables and the plot from results.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::figures::{Figures, Spread, quotients};
use crate::load::{BenchProvider, Load, MediumKind};
use crate::plot;
use crate::results::{KeptResults, Results};
use crate::spdk;
use crate::table::{TextTable, cell, number, of_verdict};
use crate::verdict::{self, GOODPUT};

const BEGIN: &str = "<!-- Made by `cargo xtask bench --readme`: do not edit. -->\n";
const END: &str = "<!-- End of what `cargo xtask bench --readme` makes. -->\n";

/// Writes the performance section of README, the page of all tables, and the plot beside it.
pub(crate) fn write(readme: &Path, tables: &Path, kept: &KeptResults) -> Result<()> {
    let text = read(readme)?;
    let (before, after) = around(&text)?;
    fs::write(readme, format!("{before}{BEGIN}{}{END}{after}", section(&kept.latest)))?;
    fs::write(tables, page(kept)).with_context(|| tables.display().to_string())?;
    let plot = plot_beside(tables);
    fs::write(&plot, plot::svg(&kept.latest.figures)).with_context(|| plot.display().to_string())
}

fn plot_beside(tables: &Path) -> PathBuf {
    tables.with_file_name("throughput.svg")
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// Splits README into the text before and behind the section.
fn around(readme: &str) -> Result<(&str, &str)> {
    let (before, rest) = readme.split_once(BEGIN).with_context(|| format!("no line {BEGIN}"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("no line {END}"))?;
    Ok((before, after))
}

/// Describes runs, commit and machine of the results.
fn circumstances(Results { machine, seconds, figures }: &Results) -> String {
    let runs = figures.values(GOODPUT).len();
    format!(
        "Medians of {runs} runs of {seconds} s for each load, at commit {}, on {}. Each ratio is taken within a run.",
        machine.commit,
        machine.line(),
    )
}

/// Section of README: the requirements that have an absolute figure.
fn section(results: &Results) -> String {
    let mut table = TextTable::new(["what", "measured", "ratio", "required", ""]);
    for line in verdict::lines(&results.figures) {
        let Some(absolute) = line.absolute else { continue };
        let ratio = cell(line.measured, number);
        table.push([
            line.what.clone(),
            absolute.words(),
            ratio,
            line.bound.words(),
            line.word().into(),
        ]);
    }
    format!("\n{}\n\n{}\n", circumstances(results), table.to_markdown())
}

/// Page of all tables, of all machines.
fn page(kept: &KeptResults) -> String {
    let figures = &kept.latest.figures;
    format!(
        "# Results\n\n<!-- Made by `cargo xtask bench --readme`: do not edit. -->\n\n\
         `cargo xtask bench` measures again; [the bench's page](../README.md) says how.\n\n\
         {}\n\n{}\n\
         Target and host are on one core each, over `soft` on loopback. *By plain UDP*: the bytes per second, by the best goodput \
         without loss of two threads that do nothing but send and receive trains of datagrams (GSO, GRO). *By fio*: those of our file \
         backend, by fio with io_uring, registered huge-page buffers and direct I/O on the same file.\n\n{}\n\
         On the null namespace, several at a time, or one that computes on a core of theirs:\n\n{}{}{}",
        circumstances(&kept.latest),
        of_verdict(&verdict::lines(figures)).to_markdown(),
        comparison(figures).to_markdown(),
        company(figures).to_markdown(),
        beside_spdk(figures),
        kept.others.iter().map(elsewhere).collect::<String>(),
    )
}

/// Table of both providers compared with SPDK's NVMe/TCP; empty without figures of SPDK.
fn beside_spdk(figures: &Figures) -> String {
    let mut table = TextTable::new(["workload", "SPDK, IOPS", "soft, by SPDK", "shm, by SPDK"]);
    let mut is_empty = true;
    for medium in MediumKind::ALL {
        for load in spdk::LOADS {
            let theirs = spdk::figure(medium, &load, "iops");
            let Some(spread) = figures.spread(&theirs) else { continue };
            is_empty = false;
            let [soft, shm] = [BenchProvider::Soft, BenchProvider::Shm].map(|provider| {
                let ours = verdict::of_provider(provider, medium, &load, "iops");
                cell(Spread::of(&figures.ratios(&ours, &theirs)), number)
            });
            let workload = format!("{}, {}", medium.name(), load.words());
            table.push([workload, format!("{:.0}k", spread.median / 1e3), soft, shm]);
        }
    }
    match is_empty {
        true => String::new(),
        false => format!(
            "\nBeside SPDK over NVMe/TCP on loopback, on the same two cores and the same file:\n\n{}",
            table.to_markdown()
        ),
    }
}

/// Requirements on another machine, with its description, since its ratios refer to other ceilings.
fn elsewhere(Results { machine, figures, .. }: &Results) -> String {
    format!(
        "\nWhat must hold, at commit {} on {}:\n\n{}",
        machine.commit,
        machine.line(),
        of_verdict(&verdict::lines(figures)).to_markdown(),
    )
}

/// Table of loads, as ratios to their ceilings.
fn comparison(figures: &Figures) -> TextTable {
    let mut table = TextTable::new([
        "workload",
        "null, by plain UDP",
        "memory, by plain UDP",
        "file, by fio",
        "target CPU s/GB (file)",
        "host CPU s/GB (file)",
    ]);
    for load in Load::ALL {
        let rate = |backend| verdict::figure(backend, &load, "bytes_per_second");
        let by_udp = |backend| {
            let ratios = quotients(figures.values(&rate(backend)), figures.values(GOODPUT));
            cell(Spread::of(&ratios), number)
        };
        let fio = format!("ceilings/fio-huge/{}/bytes_per_second", load.name());
        let cpu = |side: &str| {
            let unit = format!("{side}_cpu_seconds_per_gb");
            cell(figures.spread(&verdict::figure(MediumKind::File, &load, &unit)), number)
        };
        table.push([
            load.words(),
            by_udp(MediumKind::Null),
            by_udp(MediumKind::Memory),
            cell(Spread::of(&figures.ratios(&rate(MediumKind::File), &fio)), number),
            cpu("target"),
            cpu("host"),
        ]);
    }
    table
}

/// Table of IOPS with several hosts or queues or a computing thread, as ratios to those of one host
/// alone.
fn company(figures: &Figures) -> TextTable {
    let mut table = TextTable::new(["workload", "IOPS, by those of one alone"]);
    for load in Load::of_null().filter(|load| *load != load.alone()) {
        let [iops, alone] =
            [load, load.alone()].map(|load| verdict::figure(MediumKind::Null, &load, "iops"));
        let ratio = Spread::of(&figures.ratios(&iops, &alone));
        table.push([load.words(), cell(ratio, number)]);
    }
    table
}

#[cfg(test)]
mod tests {
    use anyhow::ensure;

    use super::*;

    /// Checks that README and the page of tables match the results.
    fn check(readme: &Path, tables: &Path, kept: &KeptResults) -> Result<()> {
        let text = read(readme)?;
        let (before, after) = around(&text)?;
        let expected = format!("{before}{BEGIN}{}{END}{after}", section(&kept.latest));
        let plot = plot_beside(tables);
        let is_plotted = read(&plot)? == plot::svg(&kept.latest.figures);
        for (path, is_right) in
            [(readme, text == expected), (tables, read(tables)? == page(kept)), (&plot, is_plotted)]
        {
            ensure!(
                is_right,
                "{} is not what the results say: cargo xtask bench --readme",
                path.display()
            );
        }
        Ok(())
    }

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace")
    }

    fn kept() -> KeptResults {
        KeptResults::read(&root().join("bench/results/latest.json")).unwrap()
    }

    #[test]
    fn the_pages_match_the_results() {
        check(&root().join("README.md"), &root().join("bench/results/README.md"), &kept()).unwrap();
    }

    #[test]
    fn a_figure_that_was_typed_is_noticed() {
        let kept = kept();
        let folder = tempfile::tempdir().unwrap();
        let [readme, tables] = ["README.md", "tables.md"].map(|name| folder.path().join(name));
        for typed in [&readme, &tables] {
            fs::write(&readme, format!("before\n{BEGIN}{END}after\n")).unwrap();
            write(&readme, &tables, &kept).unwrap();
            check(&readme, &tables, &kept).unwrap();
            let made = fs::read_to_string(typed).unwrap();
            fs::write(typed, made.replace("at least 0.6", "at least 0.5")).unwrap();
            assert!(check(&readme, &tables, &kept).is_err());
        }
        let made = fs::read_to_string(&readme).unwrap();
        assert!(made.starts_with("before\n") && made.ends_with("after\n"));
    }

    #[test]
    fn readme_has_the_rows_with_absolute_figures() {
        let latest = kept().latest;
        let section = section(&latest);
        let rows: Vec<&str> =
            section.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
        let absolute =
            verdict::lines(&latest.figures).into_iter().filter(|it| it.absolute.is_some());
        assert_eq!(rows.len(), absolute.count(), "{section}");
        assert!(rows.len() >= 6, "{section}");
        let units = ["GB/s", "IOPS", "us"];
        assert!(rows.iter().all(|row| units.iter().any(|unit| row.contains(unit))), "{section}");
    }

    #[test]
    fn each_machine_has_its_verdict() {
        let folder = tempfile::tempdir().unwrap();
        for (name, processor) in [("one", "An Abacus"), ("two", "A Slide Rule"), ("latest", "Ours")]
        {
            let mut results = kept().latest;
            results.machine.processor = processor.to_owned();
            results.write(&folder.path().join(name).with_extension("json")).unwrap();
        }
        fs::write(folder.path().join("notes.txt"), "no results").unwrap();
        let page = page(&KeptResults::read(&folder.path().join("latest.json")).unwrap());
        let places = ["Ours", "An Abacus", "A Slide Rule"].map(|it| page.find(it).unwrap());
        assert!(places.is_sorted(), "{places:?}");
        assert_eq!(page.matches("by goodput of plain UDP").count(), 3);
        assert_eq!(page.matches("by those of one alone").count(), 1);
    }
}
