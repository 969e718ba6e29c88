//! Figures for the record, from real processes on this machine. They assert next to nothing and take minutes:
//! `cargo test --release -p feedrail-tests --test figures -- --ignored --nocapture --test-threads 1`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, feedrail, loopback_address, write_configuration,
};
use serde_json::Value;

const FILE_BYTES: usize = 256 << 20;
const SECONDS: &str = "5";

/// Namespace 1 answers with zeros and touches no storage, namespace 2 is a file.
fn serve(folder: &Path) -> Daemon {
    let file = folder.join("file.bin");
    fs::write(&file, Bytes::new(5).take(FILE_BYTES)).unwrap();
    let configuration = format!(
        r#"
        [[port]]
        address = "{address}:4420"

        [[subsystem]]
        nqn = "nqn.2026-01.org.example:figures"
        allow_any_host = true

        [[subsystem.namespace]]
        nsid = 1
        kind = "null"
        size_bytes = {FILE_BYTES}

        [[subsystem.namespace]]
        nsid = 2
        path = "{file}"
        "#,
        address = loopback_address(),
        file = file.display(),
    );
    DaemonOptions::default()
        .arg("--config")
        .arg(write_configuration(folder, &configuration))
        .start()
}

fn perf(daemon: &Daemon, nsid: &str, options: &[&str]) -> Value {
    let program = feedrail(["perf", "-o", "json", "--runtime", SECONDS, "--namespace-id", nsid]);
    let outcome =
        program.args(daemon.options()).args(options).limit(Duration::from_secs(120)).run();
    serde_json::from_slice(&outcome.success()).unwrap()
}

/// Throughput and latency over the soft provider, beside what raw loopback does in the same run.
#[test]
#[ignore = "measures for minutes"]
fn throughput_and_latency() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = serve(folder.path());
    println!(
        "backend   bs  depth      IOPS     MB/s  p50 us  p99 us   raw MB/s  raw round trips/s"
    );
    for (nsid, backend) in [("1", "null"), ("2", "file")] {
        for (block, depth) in [("4k", "1"), ("4k", "32"), ("128k", "8")] {
            let options =
                ["--rw", "randread", "--bs", block, "--iodepth", depth, "--compare-loopback"];
            let report = perf(&daemon, nsid, &options);
            let read = &report["results"]["read"];
            let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
            println!(
                "{backend:<7} {block:>4} {depth:>6} {:>9.0} {:>8.1} {:>7.1} {:>7.1} {:>10.1} {:>18.0}",
                number(&read["iops"]),
                number(&read["bytes_per_second"]) / 1e6,
                number(&read["lat_ns"]["percentile"]["50.0"]) / 1e3,
                number(&read["lat_ns"]["percentile"]["99.0"]) / 1e3,
                number(&report["loopback"]["bytes_per_second"]) / 1e6,
                number(&report["loopback"]["round_trips_per_second"]),
            );
        }
    }
}

/// What the daemon's counters say about a run at depth 32, and what the daemon uses.
#[test]
#[ignore = "measures for a while"]
fn counters_at_depth_32() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = serve(folder.path());
    let before = daemon.stats();
    let report = perf(&daemon, "2", &["--rw", "randread", "--bs", "4k", "--iodepth", "32"]);
    let after = daemon.stats();
    let ios = report["results"]["read"]["total_ios"].as_f64().unwrap();
    println!("{ios} I/Os of 4 KiB; what each counter of the daemon grew by, per I/O:");
    print_growth("", &before, &after, ios);
    let vitals = daemon.vitals();
    println!(
        "daemon: {} MiB resident, {} threads, {} descriptors",
        vitals.resident_bytes >> 20,
        vitals.threads,
        vitals.descriptors
    );
}

fn print_growth(name: &str, before: &Value, after: &Value, ios: f64) {
    match after {
        Value::Object(members) => {
            for (key, value) in members {
                print_growth(&format!("{name}.{key}"), &before[key], value, ios);
            }
        }
        Value::Number(number) => {
            let grown = number.as_f64().unwrap_or(0.0) - before.as_f64().unwrap_or(0.0);
            if grown != 0.0 {
                println!(
                    "  {:<48} {grown:>14.0} {:>10.4}",
                    name.trim_start_matches('.'),
                    grown / ios
                );
            }
        }
        _ => {}
    }
}
