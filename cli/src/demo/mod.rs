//! `feedrail demo`: exports a file, reads it over the fabric and compares every byte.

mod file;
mod plan;
mod verify;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use splitmix64::SplitMix64;

use self::file::DemoFile;
use self::verify::{Checked, Verify};
use crate::interrupt::Interrupt;
use crate::options::ProviderArg;
use crate::output;
use crate::seed::fresh_seed;
use crate::size::human;
use crate::target_child::{TargetChild, free_loopback_address};

const EXAMPLES: &str = "\
Examples:
  feedrail demo
  feedrail demo shard-00.tar --depth 64
  FEEDRAIL_SOFT_FAULTS=loss=1%,seed=7 feedrail demo -v";

/// Exports a file, reads all of it back and checks every byte
///
/// The target runs in a second process on a free loopback address. The file is read in ranges of
/// random lengths, most of them at no block boundary, in random order, many at a time. It is never
/// modified, and nothing is left behind.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Demo {
    /// File to export [default: a temporary file of slightly more than 256 MiB]
    file: Option<PathBuf>,
    /// Seed of an earlier run, to repeat its contents and ranges
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Number of reads in flight
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// RDMA provider of both sides
    #[arg(long, value_enum, default_value_t = ProviderArg::Auto)]
    provider: ProviderArg,
}

impl Demo {
    pub(crate) fn run(&self, verbose: u8) -> Result<()> {
        let interrupt = Interrupt::install()?;
        let seed = self.seed.unwrap_or_else(fresh_seed);
        let sample = match &self.file {
            Some(path) => DemoFile::existing(path)?,
            None => {
                output::note(format_args!("making a file of pseudo-random bytes (seed {seed})"));
                DemoFile::made_up(seed, &interrupt)?
            }
        };
        let address = free_loopback_address().to_string();
        let options = ["--listen", &address, "--provider", self.provider.name()];
        let arguments = options.map(OsString::from).into_iter().chain([sample.path().into()]);
        let target = TargetChild::start(arguments, verbose, &interrupt)?;
        output::print(&announce(&sample, &target))?;
        let ranges = plan::plan(sample.size_bytes(), SplitMix64::new(seed));
        let verify = Verify { sample: &sample, interrupt: &interrupt, depth: self.depth as usize };
        let checked = verify.run(target, ranges, self.provider)?;
        output::print(&conclude(&sample, &checked, seed))
    }
}

fn announce(sample: &DemoFile, target: &TargetChild) -> String {
    let listening = &target.listening()[0];
    format!(
        "exporting {} ({} bytes, {} mod 512)\n\
         target: process {}, {} at {}, provider {} ({})\n",
        sample.path().display(),
        sample.size_bytes(),
        sample.size_bytes() % 512,
        target.id(),
        listening.nqn,
        listening.address,
        listening.provider,
        listening.reason,
    )
}

fn conclude(sample: &DemoFile, checked: &Checked, seed: u64) -> String {
    let bytes_per_second =
        sample.size_bytes() as f64 / checked.elapsed.max(Duration::from_nanos(1)).as_secs_f64();
    format!(
        "host: {}\n\
         read {} in {} ranges, random order, {} unaligned: every byte is right\n\
         {:.2} s, {:.1} MB/s (1 MB = 10^6 bytes), {} straight into its memory, {} through bounce buffers\n\
         latency of a range (us): {}\n\
         seed {seed}\n",
        checked.provider,
        human(sample.size_bytes()),
        checked.tally.ranges,
        checked.tally.unaligned,
        checked.elapsed.as_secs_f64(),
        bytes_per_second / 1e6,
        human(checked.direct_bytes),
        human(checked.bounced_bytes),
        checked.tally.latency.to_text(),
    )
}
