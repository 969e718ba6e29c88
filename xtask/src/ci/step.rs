//! Step of continuous integration, and the condition for running it.

use std::fmt;

use anyhow::Result;

use super::changes::Changes;

/// Step of continuous integration: a row of [`super::steps::STEPS`].
pub(crate) struct CiStep {
    pub(crate) name: &'static str,
    pub(crate) when: When,
    /// Why the step is run in this case, for `--list`.
    pub(crate) reason: &'static str,
    /// Runs the step: all of it if `full`, else the part that the gate has time for.
    pub(crate) run: fn(full: bool) -> Result<()>,
}

/// Condition under which the gate runs a step. `--full` runs every step.
#[derive(Clone, Copy)]
pub(crate) enum When {
    Always,
    /// If one of these files or folders has changed since the step passed last.
    Changed(&'static [&'static str]),
    /// Only if `--full` is given.
    Full,
}

/// Whether to run a step, or why it is skipped.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StepDecision {
    Run,
    Skip(&'static str),
}

/// Error of a step that a missing tool keeps from checking. The run continues, and the step is not
/// recorded as passed.
#[derive(Debug)]
pub(crate) struct NotChecked(pub(crate) &'static str);

impl std::error::Error for NotChecked {}

impl fmt::Display for NotChecked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl CiStep {
    /// Decides whether to run the step, given the commit at which it last passed.
    pub(crate) fn decide(&self, full: bool, passed_at: Option<&str>) -> StepDecision {
        let paths = match self.when {
            When::Always => return StepDecision::Run,
            _ if full => return StepDecision::Run,
            When::Full => return StepDecision::Skip("it is a step of --full"),
            When::Changed(paths) => paths,
        };
        if passed_at.map_or(Changes::Unknown, Changes::since).touch(paths) {
            return StepDecision::Run;
        }
        StepDecision::Skip("nothing that it checks has changed since it passed")
    }

    /// Whether it depends on changed files if the step is run.
    pub(crate) fn is_conditional(&self) -> bool {
        matches!(self.when, When::Changed(_))
    }
}

impl fmt::Display for StepDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run => f.write_str("run"),
            Self::Skip(why) => write!(f, "skipped: {why}"),
        }
    }
}

impl fmt::Display for CiStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = match self.when {
            When::Always => "always".to_owned(),
            When::Changed(paths) => format!("if there are changes in {}", paths.join(", ")),
            When::Full => "by --full".to_owned(),
        };
        write!(f, "{:<16}{when}: {}", self.name, self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn step(when: When) -> CiStep {
        CiStep { name: "step", when, reason: "a test", run: |_| Ok(()) }
    }

    #[test]
    fn a_step_that_never_passed_is_run() {
        for when in [When::Always, When::Changed(&["target"])] {
            assert_eq!(step(when).decide(false, None), StepDecision::Run);
        }
        assert!(matches!(step(When::Full).decide(false, None), StepDecision::Skip(_)));
    }

    #[test]
    fn full_runs_everything() {
        let commit = crate::output("git", &["rev-parse", "HEAD"]).ok();
        for when in [When::Always, When::Changed(&["no/such/folder"]), When::Full] {
            assert_eq!(step(when).decide(true, commit.as_deref()), StepDecision::Run);
        }
    }
}
