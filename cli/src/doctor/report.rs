//! Report of the doctor: findings, the worst first.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::finding::{Advice, DoctorFinding, Severity};

/// Exit codes for the worst finding; 1 and 2 have the same meaning for every command.
const WARNINGS: u8 = 3;
const ERRORS: u8 = 4;

pub(crate) struct DoctorReport {
    findings: Vec<DoctorFinding>,
}

impl DoctorReport {
    pub(crate) fn new(mut findings: Vec<DoctorFinding>) -> Self {
        // The sort is stable: findings of one severity keep their order.
        findings.sort_by_key(|finding| core::cmp::Reverse(finding.id.severity()));
        Self { findings }
    }

    fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.id.severity() == severity).count()
    }

    fn worst(&self) -> Severity {
        let severities = self.findings.iter().map(|finding| finding.id.severity());
        severities.max().unwrap_or(Severity::Info)
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match self.worst() {
            Severity::Info => ExitCode::SUCCESS,
            Severity::Warning => ExitCode::from(WARNINGS),
            Severity::Error => ExitCode::from(ERRORS),
        }
    }

    pub(crate) fn to_text(&self) -> String {
        let mut text: String = self.findings.iter().map(finding_text).collect();
        let count = |severity, name| match self.count(severity) {
            1 => format!("1 {name}"),
            many => format!("{many} {name}s"),
        };
        text += &format!(
            "{}, {}\n",
            count(Severity::Error, "error"),
            count(Severity::Warning, "warning")
        );
        text
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "worst": self.worst().name(),
            "errors": self.count(Severity::Error),
            "warnings": self.count(Severity::Warning),
            "findings": self.findings.iter().map(DoctorFinding::to_json).collect::<Value>(),
        })
    }
}

fn finding_text(finding: &DoctorFinding) -> String {
    let DoctorFinding { id, subject, what, why, advice } = finding;
    let mut text = format!("{:<7}  {}: {subject}: {what}\n", id.severity().name(), id.name());
    if !why.is_empty() {
        text += &format!("         why   {why}\n");
    }
    let (label, commands) = match advice {
        Advice::Nothing => return text,
        Advice::Mend(commands) => ("mend", commands),
        Advice::Look(commands) => ("look", commands),
    };
    for command in commands {
        text += &format!("         {label}  {command}\n");
    }
    text
}
