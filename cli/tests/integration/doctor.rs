//! `feedrail doctor` on the way to a daemon in another process, and to where none is; and the page
//! that explains what it finds.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use feedrail_tests::process::{Bytes, Daemon, Outcome, feedrail, loopback_address};
use serde_json::Value;

/// The findings, whatever the exit code: the machine under the test may have troubles of its own.
fn report(outcome: &Outcome) -> Value {
    let code = outcome.status.and_then(|status| status.code());
    assert!(matches!(code, Some(0 | 3 | 4)), "{outcome}");
    serde_json::from_slice(&outcome.stdout).unwrap()
}

fn finding<'a>(report: &'a Value, id: &str) -> Option<&'a Value> {
    report["findings"].as_array().unwrap().iter().find(|finding| finding["id"] == id)
}

#[test]
fn a_path_that_works_has_a_bandwidth() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard.bin");
    fs::write(&path, Bytes::new(7).take(300_000)).unwrap();
    let daemon = Daemon::serving([path]);
    let doctor = feedrail(["doctor", "-o", "json"]).args(daemon.options());
    let report = report(&doctor.run());
    for id in ["path", "bandwidth", "not-told"] {
        assert!(finding(&report, id).is_some(), "{id}: {report:#}");
    }
    let bandwidth = finding(&report, "bandwidth").unwrap()["what"].as_str().unwrap();
    assert!(
        bandwidth.contains("to the target") && bandwidth.contains("from the target"),
        "{bandwidth}"
    );
    for id in ["path-mtu", "connect-failed", "transfer-failed", "target-unreachable"] {
        assert!(finding(&report, id).is_none(), "{id}: {report:#}");
    }
}

#[test]
fn a_machine_without_a_target_says_so() {
    let [nobody, host] = [loopback_address(), loopback_address()].map(|ip| ip.to_string());
    let outcome = feedrail(["doctor", "-o", "json", "--provider", "soft", "--timeout", "2000"])
        .args(["-a", &nobody, "-w", &host])
        .run();
    assert_eq!(outcome.status.and_then(|status| status.code()), Some(4), "{outcome}");
    let report = report(&outcome);
    let found = finding(&report, "target-not-listening").unwrap_or_else(|| panic!("{report:#}"));
    assert!(found["mend"][0].as_str().unwrap().starts_with("feedrail-target --listen"), "{found}");
}

/// The reports that other tests compare with have every finding.
#[test]
fn every_finding_is_explained_and_no_other() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let reports = fs::read_dir(package.join("tests/data/doctor")).unwrap();
    let paths = reports.map(|entry| entry.unwrap().path());
    let texts = paths.filter(|path| path.extension().is_some_and(|extension| extension == "txt"));
    let mut found = BTreeSet::new();
    for text in texts.map(|path| fs::read_to_string(path).unwrap()) {
        for line in text.lines() {
            if let Some((severity, rest)) = line.split_once(' ')
                && ["info", "warning", "error"].contains(&severity)
            {
                let name = rest.trim_start().split(':').next().unwrap();
                found.insert((name.to_owned(), severity.to_owned()));
            }
        }
    }
    let page = fs::read_to_string(package.join("../docs/rdma-devices.md")).unwrap();
    let (_, table) = page.split_once("| finding | severity |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with("| `"));
    let explained: BTreeSet<(String, String)> = rows
        .map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            (cells[1].trim_matches('`').to_owned(), cells[2].to_owned())
        })
        .collect();
    assert_eq!(explained, found);
}
