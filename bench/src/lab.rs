//! Reads ratios that the kernel lab measured, each within one run of a guest.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::figures::Figures;

/// Scenarios of the lab that measure ratios, and the names of their figures.
const SCENARIOS: [(&str, &str); 6] = [
    ("ratio-target-verbs", "kernel-host-to-us-by-nvmet"),
    ("ratio-initiator-verbs", "us-to-nvmet-by-kernel-host"),
    ("ratio-target-soft", "kernel-host-to-us-on-soft-by-nvmet"),
    ("ratio-initiator-soft", "us-on-soft-to-nvmet-by-kernel-host"),
    ("ratio-tcp-verbs", "kernel-host-to-us-by-nvmet-tcp"),
    ("ratio-tcp-soft", "kernel-host-to-us-on-soft-by-nvmet-tcp"),
];

/// Adds figures from the logs of the lab's last run: lowest, median and highest ratio of each
/// workload.
pub(crate) fn collect(logs: &Path, figures: &mut Figures) -> Result<()> {
    let mut found = false;
    for (folder, name) in SCENARIOS {
        let Ok(log) = fs::read_to_string(logs.join(folder).join("output.log")) else { continue };
        for line in log.lines().filter_map(|line| line.strip_prefix("RATIO ")) {
            let (workload, ratios) = parse(line).with_context(|| format!("{folder}: {line}"))?;
            found = true;
            for ratio in ratios {
                figures.add(format!("lab/{name}/{workload}"), ratio);
            }
        }
    }
    ensure!(found, "no ratios in {}: did `cargo xtask lab ratio` pass?", logs.display());
    Ok(())
}

/// Parses `randread 4k depth 1: 0.98 (0.95 to 1.02; ...)`.
fn parse(line: &str) -> Option<(String, [f64; 3])> {
    let (workload, rest) = line.split_once(": ")?;
    let workload = workload.replace("depth ", "").replace(' ', "-");
    let (median, rest) = rest.split_once(" (")?;
    let (lowest, rest) = rest.split_once(" to ")?;
    let (highest, _) = rest.split_once(';')?;
    Some((workload, [lowest.parse().ok()?, median.parse().ok()?, highest.parse().ok()?]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_lab() {
        let line = "read 128k depth 8: 0.98 (0.95 to 1.02; in the middle pair 9800 and 10000 I/Os per second)";
        let (workload, ratios) = parse(line).unwrap();
        assert_eq!((workload.as_str(), ratios), ("read-128k-8", [0.95, 0.98, 1.02]));
        assert!(parse("randread 128k depth 8: none").is_none());
    }
}
