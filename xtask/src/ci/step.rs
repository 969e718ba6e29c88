//! A step of continuous integration, and when it is run.

use std::fmt;

use anyhow::Result;

use super::changes::Changes;

/// A step, as a row of [`super::steps::STEPS`].
pub(crate) struct CiStep {
    pub(crate) name: &'static str,
    pub(crate) when: When,
    /// Why it is run then.
    pub(crate) reason: &'static str,
    /// Runs it: all of it, or what the gate has time for.
    pub(crate) run: fn(full: bool) -> Result<()>,
}

/// When the gate runs a step; `--full` runs each.
#[derive(Clone, Copy)]
pub(crate) enum When {
    Always,
    /// If one of these files or folders has changed since `--full` passed last.
    Changed(&'static [&'static str]),
    /// Never: `--full` alone does.
    Full,
}

/// Whether a step is run, or why it is not.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StepDecision {
    Run,
    Skip(&'static str),
}

impl CiStep {
    pub(crate) fn decide(&self, full: bool, changes: &Changes) -> StepDecision {
        match self.when {
            _ if full => StepDecision::Run,
            When::Always => StepDecision::Run,
            When::Changed(paths) if changes.touch(paths) => StepDecision::Run,
            When::Changed(_) => {
                StepDecision::Skip("nothing that it checks has changed since --full passed")
            }
            When::Full => StepDecision::Skip("it is a step of --full"),
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
    fn the_gate_runs_what_changes_touch() {
        let changes = Changes::Files(["rdma/src/lib.rs".to_owned()].into());
        let decision = |when| step(when).decide(false, &changes);
        assert_eq!(decision(When::Always), StepDecision::Run);
        assert_eq!(decision(When::Changed(&["target", "rdma"])), StepDecision::Run);
        assert!(matches!(decision(When::Changed(&["target"])), StepDecision::Skip(_)));
        assert!(matches!(decision(When::Full), StepDecision::Skip(_)));
    }

    #[test]
    fn full_runs_everything() {
        let changes = Changes::Files([].into());
        for when in [When::Always, When::Changed(&["target"]), When::Full] {
            assert_eq!(step(when).decide(true, &changes), StepDecision::Run);
        }
    }
}
