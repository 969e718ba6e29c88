//! Command line of `feedrail`. Options have the names that nvme-cli gives them.

use clap::{ArgAction, Parser, Subcommand};

use crate::{
    bench_checkpoint, bench_loader, check_dhchap_key, checkpoint, completions, demo, devices,
    discover, doctor, gen_dhchap_key, id_ctrl, id_ns, index, list, man, manifest, merge_traces,
    mount, perf, read, serve, target, unmount, write,
};

const EXAMPLES: &str = "\
Examples:
  feedrail demo
      Export a file, read it back and check every byte. Needs no RDMA NIC and no root.
  feedrail serve /data/shards
      Serve a folder, and print the commands that read it.
  feedrail devices
      Which RDMA devices there are, and what is used without one.
  feedrail doctor
      What keeps RoCE from working well here, and the command that mends it.
  feedrail discover -a 192.0.2.10
      What a target offers.
  feedrail read -a 192.0.2.10 -n nqn.2026-01.org.example:shards --offset 1M --length 64K > part
      A byte range of namespace 1.
  feedrail mount nvmf://192.0.2.10/nqn.2026-01.org.example:shards /mnt
      Namespaces as files, for programs that know files only.
  feedrail perf -a 192.0.2.10 -n nqn.2026-01.org.example:shards --rw randread --bs 4k --iodepth 32
      How fast it is.";

/// NVMe over Fabrics over RDMA (RoCE v2), from userspace
///
/// Sizes and offsets are in bytes and take the suffixes K, M, G and T (powers of 1024).
#[derive(Debug, Parser)]
#[command(name = "feedrail", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Cli {
    /// Log to stderr: -v for info, -vv for debug, -vvv for trace. RUST_LOG overrides it
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    // Help texts are those of the subcommands' own types: a doc comment here would replace their
    // long help.
    Devices(devices::DevicesArgs),
    Doctor(doctor::Doctor),
    Discover(discover::Discover),
    List(list::List),
    IdCtrl(id_ctrl::IdCtrl),
    IdNs(id_ns::IdNs),
    Read(read::Read),
    Write(write::Write),
    Perf(perf::Perf),
    MergeTraces(merge_traces::MergeTraces),
    BenchLoader(bench_loader::BenchLoader),
    BenchCheckpoint(bench_checkpoint::BenchCheckpoint),
    Index(index::IndexArgs),
    Manifest(manifest::ManifestArgs),
    Checkpoint(checkpoint::CheckpointArgs),
    Mount(mount::Mount),
    Unmount(unmount::Unmount),
    Target(target::TargetArgs),
    GenDhchapKey(gen_dhchap_key::GenDhchapKey),
    CheckDhchapKey(check_dhchap_key::CheckDhchapKey),
    Serve(serve::Serve),
    Demo(demo::Demo),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
