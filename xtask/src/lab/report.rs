//! Report on the results of the scenarios.

use std::fmt;
use std::fs;
use std::path::Path;

use serde_json::json;

use super::scenario::Run;

/// Number of lines at the end of the target's log that are shown for a failed run.
const TAIL_LINES: usize = 6;

/// Report with a line for each run, in the order of the request.
pub(crate) struct LabReport {
    kernel: String,
    lines: Vec<Line>,
}

struct Line {
    run: Run,
    outcome: RunOutcome,
    /// Kernel messages of the guest during the scenario that are not expected.
    complaints: Vec<String>,
    /// Last lines of the target's log, if the run failed.
    daemon: Vec<String>,
}

enum RunOutcome {
    Passed {
        seconds: f64,
    },
    Failed {
        seconds: f64,
        status: i32,
        reason: String,
    },
    /// The guest ended, or was killed, during the run.
    Hung,
    NeverRan,
}

/// Parts of kernel messages that are always failures.
const ALARMS: [&str; 6] =
    ["BUG:", "WARNING:", "Oops", "Call Trace", "general protection", "hung task"];
/// Parts of kernel messages, in lower case, that are failures unless the scenario expects them.
const COMPLAINTS: [&str; 6] = ["error", "fail", "timeout", "timed out", "rxe", "invalid"];

/// Parts of kernel messages that match [`COMPLAINTS`] and are harmless: a port of an RDMA device
/// changes its state, or a disconnect overtakes a Keep Alive. (A host that misses a Keep Alive
/// while it is connected also logs that it starts error recovery.)
const HARMLESS: [&str; 3] = ["rxe0: set active", "rxe0: set down", "failed nvme_keep_alive_end_io"];

impl LabReport {
    /// Reads the files that the guest wrote to its job folder.
    pub(crate) fn read(kernel: String, job: &Path, runs: &[Run]) -> Self {
        let results = results(job);
        let mut lines: Vec<Line> = runs.iter().map(|run| Line::read(job, &results, run)).collect();
        if let Some(under_way) = lines.iter_mut().find(|line| !line.outcome.has_ended()) {
            under_way.outcome = RunOutcome::Hung;
        }
        Self { kernel, lines }
    }

    pub(crate) fn all_passed(&self) -> bool {
        self.lines.iter().all(Line::passed)
    }

    /// Formats one JSON object for each run.
    pub(crate) fn to_json_lines(&self) -> String {
        self.lines.iter().map(|line| format!("{}\n", line.to_json(&self.kernel))).collect()
    }
}

/// Reads the results that the guest has written so far, in lines
/// `scenario<TAB>provider<TAB>status<TAB>seconds`.
pub(crate) fn results(job: &Path) -> String {
    fs::read_to_string(job.join("results.tsv")).unwrap_or_default()
}

/// Formats the result of a run; `None` if it has not ended.
pub(crate) fn progress(results: &str, job: &Path, run: &Run) -> Option<String> {
    let line = Line::read(job, results, run);
    line.outcome.has_ended().then(|| line.to_string())
}

impl Line {
    fn read(job: &Path, results: &str, run: &Run) -> Self {
        let logs = job.join("logs").join(run.folder());
        let outcome = outcome(results, run, &logs);
        let daemon = match outcome {
            RunOutcome::Passed { .. } => Vec::new(),
            _ => tail(&logs.join("target.err")),
        };
        Self { run: run.clone(), outcome, complaints: complaints(&logs, &run.expected), daemon }
    }

    fn passed(&self) -> bool {
        matches!(self.outcome, RunOutcome::Passed { .. }) && self.complaints.is_empty()
    }

    fn to_json(&self, kernel: &str) -> serde_json::Value {
        let (seconds, reason) = match &self.outcome {
            RunOutcome::Passed { seconds } => (Some(*seconds), None),
            RunOutcome::Failed { seconds, reason, .. } => (Some(*seconds), Some(reason.as_str())),
            RunOutcome::Hung | RunOutcome::NeverRan => (None, None),
        };
        json!({
            "kernel": kernel,
            "scenario": self.run.scenario,
            "provider": self.run.provider,
            "result": self.outcome.word(),
            "passed": self.passed(),
            "seconds": seconds,
            "reason": reason,
            "kernel_complaints": self.complaints,
            "daemon_log": self.daemon,
        })
    }
}

impl RunOutcome {
    fn has_ended(&self) -> bool {
        matches!(self, Self::Passed { .. } | Self::Failed { .. })
    }

    fn word(&self) -> &'static str {
        match self {
            Self::Passed { .. } => "passed",
            Self::Failed { .. } => "FAILED",
            Self::Hung => "HUNG",
            Self::NeverRan => "NEVER RAN",
        }
    }
}

fn outcome(results: &str, run: &Run, logs: &Path) -> RunOutcome {
    let Some((status, seconds)) = results.lines().find_map(|line| parse(line, run)) else {
        return RunOutcome::NeverRan;
    };
    if status == 0 {
        return RunOutcome::Passed { seconds };
    }
    let log = fs::read_to_string(logs.join("output.log")).unwrap_or_default();
    let failed = log.lines().rev().find(|line| line.starts_with("FAILED"));
    let reason = failed.or(log.lines().last()).unwrap_or_default().to_owned();
    RunOutcome::Failed { seconds, status, reason }
}

fn parse(line: &str, run: &Run) -> Option<(i32, f64)> {
    let mut fields = line.split('\t');
    if fields.next()? != run.scenario || fields.next()? != run.provider {
        return None;
    }
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn complaints(logs: &Path, expected: &[String]) -> Vec<String> {
    let log = fs::read_to_string(logs.join("dmesg.log")).unwrap_or_default();
    log.lines().filter(|line| is_complaint(line, expected)).map(str::to_owned).collect()
}

fn is_complaint(line: &str, expected: &[String]) -> bool {
    let lower = line.to_lowercase();
    let has = |part: &str| line.contains(part);
    ALARMS.iter().any(|alarm| has(alarm))
        || COMPLAINTS.iter().any(|complaint| lower.contains(complaint))
            && !HARMLESS.iter().any(|harmless| has(harmless))
            && !expected.iter().any(|expected| has(expected))
}

fn tail(path: &Path) -> Vec<String> {
    let log = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    let from = lines.len().saturating_sub(TAIL_LINES);
    lines[from..].iter().map(|line| (*line).to_owned()).collect()
}

impl fmt::Display for LabReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Linux {}", self.kernel)?;
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        let passed = self.lines.iter().filter(|line| line.passed()).count();
        writeln!(f, "{passed} of {} passed", self.lines.len())
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Run { scenario, provider, .. } = &self.run;
        write!(f, "{scenario:20} {provider:6} {:9}", self.outcome.word())?;
        match &self.outcome {
            RunOutcome::Passed { seconds } => write!(f, " {seconds:7.1} s")?,
            RunOutcome::Failed { seconds, status, reason } => {
                write!(f, " {seconds:7.1} s  status {status}: {reason}")?;
            }
            RunOutcome::Hung | RunOutcome::NeverRan => {}
        }
        for complaint in &self.complaints {
            write!(f, "\n    the kernel said: {complaint}")?;
        }
        for line in &self.daemon {
            write!(f, "\n    the daemon said: {line}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(scenario: &str) -> Run {
        Run {
            scenario: scenario.to_owned(),
            provider: "soft".to_owned(),
            limit_seconds: 1,
            smoke: false,
            expected: Vec::new(),
        }
    }

    #[test]
    fn results_are_found_by_scenario_and_provider() {
        assert_eq!(parse("data\tsoft\t0\t12.5", &run("data")), Some((0, 12.5)));
        assert_eq!(parse("data-2\tsoft\t0\t12.5", &run("data")), None);
        assert_eq!(parse("data\tverbs\t0\t12.5", &run("data")), None);
        assert_eq!(parse("data\tsoft\tx\t12.5", &run("data")), None);
    }

    #[test]
    fn a_scenario_excuses_complaints_but_no_alarm() {
        let expected = ["I/O error, dev nvme".to_owned()];
        assert!(is_complaint("nvme nvme0: starting error recovery", &expected));
        assert!(!is_complaint("I/O error, dev nvme0n1, sector 8", &expected));
        assert!(is_complaint("WARNING: I/O error, dev nvme0n1", &expected));
        assert!(!is_complaint("nvme nvme0: creating 2 I/O queues.", &[]));
        assert!(!is_complaint("infiniband rxe0: set down", &[]));
        assert!(is_complaint("infiniband rxe0: qp#17 moved to error state", &[]));
    }

    #[test]
    fn the_first_unfinished_run_hung() {
        let folder = std::env::temp_dir().join(format!("feedrail-report-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("results.tsv"), "a\tsoft\t0\t1.0\n").expect("a file");
        let report = LabReport::read("6.12".to_owned(), &folder, &["a", "b", "c"].map(run));
        fs::remove_dir_all(&folder).expect("it is ours");
        let words: Vec<&str> = report.lines.iter().map(|line| line.outcome.word()).collect();
        assert_eq!(words, ["passed", "HUNG", "NEVER RAN"]);
        assert!(!report.all_passed());
        assert_eq!(report.to_json_lines().lines().count(), 3);
    }
}
