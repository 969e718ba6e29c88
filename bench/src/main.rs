//! Measures Feedrail and the limits of the machine side by side: `cargo xtask bench`.
//!
//! A run measures the ceilings and Feedrail shortly after each other. Ratios are calculated within
//! a run, and the report contains the median of the ratios of all runs.

mod clock;
mod cores;
mod figures;
mod fio;
mod idle;
mod lab;
mod load;
mod loader;
mod logic;
mod machine;
mod memory;
mod neighbour;
mod plot;
mod process;
mod readme;
mod results;
mod ring;
mod served;
mod spdk;
mod table;
mod udp;
mod verdict;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};

use crate::figures::Figures;
use crate::fio::BufferPages;
use crate::load::{BenchProvider, Load, MediumKind};
use crate::machine::MachineInfo;
use crate::results::{KeptResults, Results};
use crate::served::Served;
use crate::spdk::{SpdkBuild, SpdkTarget};

/// Default times for which a target, under frequent I/O, and a host poll before they sleep.
const TARGET_POLLING: Duration = Duration::from_millis(2);
const HOST_POLLING: Duration = Duration::from_micros(50);

/// Measures Feedrail beside the limits of the machine.
#[derive(Parser)]
struct Options {
    /// One run of each load for a second, to see that everything works: no figures for the record
    #[arg(long)]
    quick: bool,
    /// Number of runs; the report has the median over them
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// How long each load runs, in seconds
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Where results are kept; earlier ones of this machine stay there for sections that this run
    /// leaves out
    #[arg(long, default_value = "bench/results/latest.json")]
    output: PathBuf,
    /// A file to export, which is overwritten [default: a new one of 1 GiB in `out/bench`]
    #[arg(long)]
    file: Option<PathBuf>,
    /// Measure nothing; print the requirements and whether they held
    #[arg(long)]
    verdict: bool,
    /// Measure nothing; make README's section on performance, and the README of bench/results, from
    /// the results
    #[arg(long, conflicts_with = "verdict")]
    readme: bool,
    /// The logs of the kernel lab, for the section `lab`
    #[arg(long, default_value = "out/lab/run/trixie/logs")]
    lab_logs: PathBuf,
    /// The folder of a build of SPDK, whose NVMe/TCP is measured beside each load of the section
    /// `shm`
    #[arg(long, value_name = "DIR")]
    spdk: Option<PathBuf>,
    /// The sections to measure [default: all but lab]
    sections: Vec<BenchSection>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BenchSection {
    /// Plain UDP, memory, fio
    Ceilings,
    /// Target and initiator over soft
    Us,
    /// Target and initiator in shared memory
    Shm,
    /// Work of a data loader: a cold file, small reads beside large ones, plans given up
    Loader,
    /// Target logic alone, idle CPU, memory, time to start
    Cost,
    /// Ratios of the last run of `cargo xtask lab ratio`
    Lab,
}

impl BenchSection {
    fn name(self) -> &'static str {
        match self {
            Self::Ceilings => "ceilings",
            Self::Us => "us",
            Self::Shm => "shm",
            Self::Loader => "loader",
            Self::Cost => "cost",
            Self::Lab => "lab",
        }
    }
}

fn main() -> ExitCode {
    match Options::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Options {
    fn run(&self) -> Result<()> {
        if self.verdict {
            let results = Results::read(&self.output)?;
            print!("{}", table::of_verdict(&verdict::lines(&results.figures)).to_text());
            return Ok(());
        }
        if self.readme {
            let [readme, tables] = ["README.md", "bench/results/README.md"].map(Path::new);
            return readme::write(readme, tables, &KeptResults::read(&self.output)?);
        }
        cores::check()?;
        let spdk = self.spdk.as_deref().map(SpdkBuild::find).transpose()?;
        ensure!(
            spdk.is_none() || self.wants(BenchSection::Shm),
            "--spdk is measured beside the section shm: name that, too"
        );
        let machine = MachineInfo::describe();
        let earlier = self.earlier(&machine)?;
        let mut figures = Figures::default();
        self.measure(spdk.as_ref(), &mut figures)?;
        let mut results = Results { machine, seconds: self.seconds(), figures };
        if let Some(earlier) = earlier {
            self.keep(&mut results, earlier);
        }
        results.write(&self.output)?;
        print!("{}", table::of_results(&results));
        println!("\nkept in {}", self.output.display());
        Ok(())
    }

    /// Returns the earlier results if they are of this machine, to keep sections that this run
    /// leaves out. A run that measures loads replaces results of another machine.
    fn earlier(&self, machine: &MachineInfo) -> Result<Option<Results>> {
        let Ok(earlier) = Results::read(&self.output) else { return Ok(None) };
        let theirs = &earlier.machine.processor;
        if *theirs == machine.processor {
            return Ok(Some(earlier));
        }
        ensure!(
            self.wants_loads(),
            "{} is of another machine ({theirs}; this is {}): name another file with --output",
            self.output.display(),
            machine.processor
        );
        Ok(None)
    }

    /// Copies the earlier figures of sections that this run has left out. Ceilings and Feedrail's
    /// figures are kept only together, with their machine and duration, since ratios between
    /// different times are meaningless.
    fn keep(&self, results: &mut Results, earlier: Results) {
        for section in [BenchSection::Loader, BenchSection::Cost, BenchSection::Lab] {
            results.figures.keep_section(section.name(), &earlier.figures);
        }
        if !self.wants_loads() {
            for section in [BenchSection::Ceilings, BenchSection::Us, BenchSection::Shm] {
                results.figures.keep_section(section.name(), &earlier.figures);
            }
            results.figures.keep_section(spdk::SECTION, &earlier.figures);
            results.machine = earlier.machine;
            results.seconds = earlier.seconds;
        }
    }

    fn wants(&self, section: BenchSection) -> bool {
        match self.sections.is_empty() {
            true => section != BenchSection::Lab,
            false => self.sections.contains(&section),
        }
    }

    /// Whether this run measures loads: of the ceilings or of Feedrail.
    fn wants_loads(&self) -> bool {
        let sections = [BenchSection::Ceilings, BenchSection::Us, BenchSection::Shm];
        sections.into_iter().any(|section| self.wants(section))
    }

    fn runs(&self) -> u32 {
        if self.quick { 1 } else { self.runs }
    }

    fn seconds(&self) -> u32 {
        if self.quick { 1 } else { self.seconds }
    }

    fn measure(&self, spdk: Option<&SpdkBuild>, figures: &mut Figures) -> Result<()> {
        if self.wants(BenchSection::Lab) {
            lab::collect(&self.lab_logs, figures)?;
        }
        let sections = [BenchSection::Loader, BenchSection::Cost];
        if !(self.wants_loads() || sections.into_iter().any(|section| self.wants(section))) {
            return Ok(());
        }
        let file = self.prepare_file()?;
        let folder = tempfile::tempdir()?;
        let with_fio = self.wants(BenchSection::Ceilings) && fio::is_installed();
        for run in 1..=self.runs() {
            eprintln!("run {run} of {}", self.runs());
            if self.wants(BenchSection::Ceilings) {
                self.measure_ceilings(figures)?;
            }
            // Two targets never serve the file at the same time, since they may write it.
            if self.wants(BenchSection::Loader) {
                progress("loader", "plans, and batches from a cold file");
                let target = Served::start(folder.path(), &file, BenchProvider::Soft)?;
                loader::measure(&target, &file, 15 * self.seconds(), figures)?;
            }
            // Runs next to Feedrail's own loads on the same file, so that both see the disk in the
            // same state.
            let served = self
                .wants(BenchSection::Us)
                .then(|| Served::start(folder.path(), &file, BenchProvider::Soft))
                .transpose()?;
            for load in Load::ALL {
                if with_fio {
                    self.measure_fio(&file, &load, figures)?;
                }
                if let Some(served) = &served {
                    self.measure_load(served, &load, figures)?;
                }
            }
            if let Some(served) = &served {
                for load in Load::of_null() {
                    progress("us", &load.name());
                    served.measure(MediumKind::Null, &load, self.seconds(), figures)?;
                }
                progress("us", "a file in memory");
                served.measure_hot(self.seconds(), figures)?;
            }
            drop(served);
            if self.wants(BenchSection::Shm) {
                let served = Served::start(folder.path(), &file, BenchProvider::Shm)?;
                let spdk = spdk.map(|build| SpdkTarget::start(build, folder.path(), &file));
                self.measure_shm(&served, spdk.transpose()?.as_ref(), figures)?;
            }
            if self.wants(BenchSection::Cost) {
                progress("cost", "target logic alone");
                logic::measure(figures)?;
                progress("cost", "idle");
                idle::measure(&file, Duration::from_secs(4) * self.seconds(), figures)?;
            }
        }
        Ok(())
    }

    fn measure_ceilings(&self, figures: &mut Figures) -> Result<()> {
        let time = Duration::from_secs(self.seconds().into());
        for path_mtu in [1024, 4096] {
            for (trains, kind) in [(true, "trains"), (false, "datagrams")] {
                progress("ceilings", &format!("plain UDP, {kind}, path MTU {path_mtu}"));
                let goodput = udp::measure_goodput(path_mtu, trains, time / 4)?;
                figures.add(format!("ceilings/udp-{kind}-{path_mtu}/bytes_per_second"), goodput);
            }
        }
        let round_trip = udp::measure_ping_pong(HOST_POLLING, TARGET_POLLING, time / 2)?;
        figures.add(verdict::PING_PONG, round_trip);
        let copied = memory::copy_rate(128 << 10, time / 4);
        figures.add("ceilings/memcpy-128k/bytes_per_second", copied);
        Ok(())
    }

    fn measure_fio(&self, file: &Path, load: &Load, figures: &mut Figures) -> Result<()> {
        for pages in BufferPages::ALL {
            progress("ceilings", &format!("fio, {} pages, {}", pages.name(), load.name()));
            let rates = fio::run(file, load, pages, self.seconds())?;
            let name = format!("ceilings/fio-{}/{}", pages.name(), load.name());
            figures.add(format!("{name}/iops"), rates.iops);
            figures.add(format!("{name}/bytes_per_second"), rates.bytes_per_second);
        }
        Ok(())
    }

    fn measure_load(&self, served: &Served, load: &Load, figures: &mut Figures) -> Result<()> {
        for backend in MediumKind::ALL {
            progress("us", &format!("{}, {}", backend.name(), load.name()));
            served.measure(backend, load, self.seconds(), figures)?;
        }
        Ok(())
    }

    /// Measures the loads in shared memory, each right after its ceiling and SPDK.
    fn measure_shm(
        &self,
        served: &Served,
        spdk: Option<&SpdkTarget>,
        figures: &mut Figures,
    ) -> Result<()> {
        let time = Duration::from_secs(self.seconds().into());
        for load in Load::ALL {
            if load.pattern == "randread" {
                progress("shm", &format!("rings, {}", load.name()));
                let rate =
                    ring::command_rate(load.block_bytes as usize, load.depth.into(), time / 4);
                let name = format!("shm/ring/{}", load.name());
                figures.add(format!("{name}/iops"), rate);
                figures.add(format!("{name}/bytes_per_second"), rate * f64::from(load.block_bytes));
            }
            for backend in MediumKind::ALL {
                if let Some(spdk) = spdk.filter(|_| spdk::LOADS.contains(&load)) {
                    progress("spdk", &format!("{}, {}", backend.name(), load.name()));
                    spdk.measure(backend, &load, self.seconds(), figures)?;
                }
                progress("shm", &format!("{}, {}", backend.name(), load.name()));
                served.measure(backend, &load, self.seconds(), figures)?;
            }
        }
        for load in Load::CONNECTIONS {
            progress("shm", &load.name());
            served.measure(MediumKind::Null, &load, self.seconds(), figures)?;
        }
        progress("shm", "a file in memory");
        served.measure_hot(self.seconds(), figures)
    }

    /// Creates the file to export, without holes, since reads of holes would cost nothing.
    fn prepare_file(&self) -> Result<PathBuf> {
        const BYTES: u64 = 1 << 30;
        let default = || PathBuf::from("out/bench/data.bin");
        let path = self.file.clone().unwrap_or_else(default);
        if path.metadata().is_ok_and(|metadata| metadata.len() >= BYTES) {
            return Ok(path.canonicalize()?);
        }
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        served::write_file(&path, BYTES)?;
        Ok(path.canonicalize()?)
    }
}

fn progress(section: &str, what: &str) {
    eprintln!("  {section}: {what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        <Options as clap::CommandFactory>::command().debug_assert();
    }

    fn parsed(words: &[&str]) -> Options {
        Options::try_parse_from(words).expect("valid")
    }

    #[test]
    fn the_lab_is_wanted_only_by_name() {
        assert!(!parsed(&["bench"]).wants(BenchSection::Lab));
        assert!(parsed(&["bench", "lab"]).wants(BenchSection::Lab));
        assert!(!parsed(&["bench", "lab"]).wants(BenchSection::Us));
    }

    fn measured(seconds: u32, figure: &str) -> Results {
        let mut figures = Figures::default();
        figures.add(figure, 1.0);
        Results { machine: MachineInfo::describe(), seconds, figures }
    }

    #[test]
    fn kept_loads_state_their_duration() {
        let after = |section| {
            let mut results = measured(7, "lab/ratio");
            parsed(&["bench", section]).keep(&mut results, measured(1, "us/null/iops"));
            (results.seconds, results.figures.values("us/null/iops").len())
        };
        assert_eq!(after("lab"), (1, 1));
        assert_eq!(after("us"), (7, 0));
    }

    #[test]
    fn another_machines_results_are_not_mixed_with_ours() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.json");
        let earlier = |section| {
            let options = parsed(&["bench", "--output", path.to_str().unwrap(), section]);
            options.earlier(&MachineInfo::describe()).map(|earlier| earlier.is_some())
        };
        assert!(!earlier("lab").unwrap());
        let mut results = measured(1, "us/null/iops");
        results.write(&path).unwrap();
        assert!(earlier("lab").unwrap() && earlier("us").unwrap());
        results.machine.processor = "An Abacus".to_owned();
        results.write(&path).unwrap();
        let refusal = earlier("lab").unwrap_err().to_string();
        assert!(refusal.contains("An Abacus") && refusal.contains("--output"), "{refusal}");
        assert!(!earlier("us").unwrap());
    }
}
