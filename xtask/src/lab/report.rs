//! What the scenarios came to.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// One line per scenario, in the order in which they were asked for.
pub(crate) struct Report(Vec<Line>);

struct Line {
    name: String,
    outcome: Outcome,
    /// What the guest's kernel complained of meanwhile.
    complaints: Vec<String>,
}

enum Outcome {
    Passed { seconds: f64 },
    Failed { seconds: f64, status: i32, reason: String },
    NeverRan,
}

/// What in a kernel log is worth reading.
const ALARMS: [&str; 6] =
    ["BUG:", "WARNING:", "Oops", "Call Trace", "general protection", "hung task"];

impl Report {
    /// Reads what the guest left.
    pub(crate) fn read(job: &Path, scenarios: &[String]) -> Result<Self> {
        let path = job.join("results.tsv");
        let results = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let line = |name: &String| {
            let logs = job.join("logs").join(name);
            Line {
                name: name.clone(),
                outcome: outcome(&results, name, &logs),
                complaints: complaints(&logs),
            }
        };
        Ok(Self(scenarios.iter().map(line).collect()))
    }

    pub(crate) fn all_passed(&self) -> bool {
        self.0.iter().all(|line| {
            matches!(line.outcome, Outcome::Passed { .. }) && line.complaints.is_empty()
        })
    }
}

fn outcome(results: &str, name: &str, logs: &Path) -> Outcome {
    let Some((status, seconds)) = results.lines().find_map(|line| parse(line, name)) else {
        return Outcome::NeverRan;
    };
    if status == 0 {
        return Outcome::Passed { seconds };
    }
    let log = fs::read_to_string(logs.join("output.log")).unwrap_or_default();
    let failed = log.lines().rev().find(|line| line.starts_with("FAILED"));
    let reason = failed.or(log.lines().last()).unwrap_or_default().to_owned();
    Outcome::Failed { seconds, status, reason }
}

/// `name<TAB>status<TAB>seconds`
fn parse(line: &str, name: &str) -> Option<(i32, f64)> {
    let mut fields = line.split('\t');
    if fields.next()? != name {
        return None;
    }
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn complaints(logs: &Path) -> Vec<String> {
    let log = fs::read_to_string(logs.join("dmesg.log")).unwrap_or_default();
    let alarming = |line: &&str| ALARMS.iter().any(|alarm| line.contains(alarm));
    log.lines().filter(alarming).map(str::to_owned).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Line { name, outcome, complaints } in &self.0 {
            match outcome {
                Outcome::Passed { seconds } => writeln!(f, "{name:24} passed {seconds:8.1} s")?,
                Outcome::Failed { seconds, status, reason } => {
                    writeln!(f, "{name:24} FAILED {seconds:8.1} s  status {status}: {reason}")?;
                }
                Outcome::NeverRan => writeln!(f, "{name:24} NEVER RAN")?,
            }
            for complaint in complaints {
                writeln!(f, "{:24} the kernel said: {complaint}", "")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_found_by_its_whole_name() {
        assert_eq!(parse("data\t0\t12.5", "data"), Some((0, 12.5)));
        assert_eq!(parse("data-2\t0\t12.5", "data"), None);
        assert_eq!(parse("data\tx\t12.5", "data"), None);
    }
}
