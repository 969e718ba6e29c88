//! Measures the cost of the target's logic without network and disk: instructions and allocations
//! per read, and instructions per second with idle hosts.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use feedrail_tests::process::binary;

use crate::figures::Figures;

/// Numbers of reads of two runs. Their difference excludes costs of start and end.
const READS: [u64; 2] = [2_000, 12_000];
/// Numbers of seconds of virtual time of two runs with idle hosts.
const IDLE_SECONDS: [u64; 2] = [1, 11];
/// Hosts that are idle, each with an admin queue and an I/O queue.
const IDLE_HOSTS: &str = "256";
/// Tunables that keep glibc from `rep stosb` and `rep movsb`: Valgrind counts one instruction for
/// each byte of these, but one for each store otherwise.
const WITHOUT_REP: &str =
    "glibc.cpu.x86_rep_stosb_threshold=1000000000:glibc.cpu.x86_rep_movsb_threshold=1000000000";

/// Adds all figures, or prints that valgrind is missing.
pub(crate) fn measure(figures: &mut Figures) -> Result<()> {
    let program = binary("feedrail-bench-logic");
    let allocations = output(Command::new(&program).arg(READS[1].to_string()))?;
    let allocations: f64 = allocations.0.trim().parse().context("not a number of allocations")?;
    figures.add("cost/target_allocations_per_read", allocations / READS[1] as f64);
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("valgrind is missing, so instructions are not counted: apt-get install valgrind");
        return Ok(());
    }
    let empty = instructions_per(READS, &program, &["empty"])?;
    for (how, name) in [(&[][..], "read"), (&["authenticated"], "authenticated_read")] {
        let served = instructions_per(READS, &program, how)?;
        figures.add(format!("cost/target_instructions_per_{name}"), served - empty);
    }
    let idle = instructions_per(IDLE_SECONDS, &program, &["idle", IDLE_HOSTS])?;
    figures.add("cost/target_instructions_per_second_with_256_idle_hosts", idle);
    Ok(())
}

/// Instructions for one more of what the program does `counts[0]` and `counts[1]` times.
fn instructions_per(counts: [u64; 2], program: &Path, how: &[&str]) -> Result<f64> {
    let [few, many] = counts.map(|count| {
        let mut command = Command::new("valgrind");
        command.env("GLIBC_TUNABLES", WITHOUT_REP);
        command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program);
        command.arg(count.to_string()).args(how);
        collected(&output(&mut command)?.1)
    });
    Ok((many? - few?) / (counts[1] - counts[0]) as f64)
}

/// Parses the number of instructions in callgrind's output.
fn collected(messages: &str) -> Result<f64> {
    let line = messages.lines().find_map(|line| line.split_once("Collected :"));
    let number = line.and_then(|(_, number)| number.trim().parse().ok());
    number.with_context(|| format!("callgrind said nothing of instructions: {messages}"))
}

/// Returns stdout and stderr of a command, which must succeed.
fn output(command: &mut Command) -> Result<(String, String)> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    ensure!(output.status.success(), "{command:?} failed: {stderr}");
    Ok((stdout, stderr))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callgrinds_count_is_found() {
        let messages = "==1== Events    : Ir\n==1== Collected : 27183\n==1==\n";
        assert_eq!(collected(messages).unwrap(), 27183.0);
        assert!(collected("==1== killed").is_err());
    }
}
