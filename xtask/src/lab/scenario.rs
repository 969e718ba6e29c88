//! Scenario of the lab: a script whose first lines are its heading.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Time limit of a scenario in seconds, unless its heading sets one.
const LIMIT_SECONDS: u64 = 300;
/// Name of the set of the few scenarios that an emulated guest always runs.
const SMOKE: &str = "smoke";
const PROVIDERS: [&str; 2] = ["verbs", "soft"];

/// Heading of a scenario: comment lines `# what it proves`, then `# set: ...`, and optionally `#
/// providers: ...`, `# limit: SECONDS` and any number of `# kernel may say: ...`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Heading {
    sets: Vec<String>,
    providers: Vec<String>,
    limit_seconds: u64,
    expected: Vec<String>,
}

/// Scenario to run with one RDMA provider on our side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) scenario: String,
    pub(crate) provider: String,
    pub(crate) limit_seconds: u64,
    /// Whether the scenario is one of the few that an emulated guest always runs.
    pub(crate) smoke: bool,
    /// Parts of kernel messages that this scenario expects, and that would be failures in others.
    pub(crate) expected: Vec<String>,
}

impl Run {
    /// Name of the folder for the logs of the run.
    pub(crate) fn folder(&self) -> String {
        format!("{}-{}", self.scenario, self.provider)
    }
}

impl Heading {
    fn parse(text: &str) -> Result<Self> {
        let values = |key| {
            let comments = text.lines().map_while(|line| line.strip_prefix("# "));
            comments.filter_map(move |line| line.strip_prefix(key)).map(str::trim)
        };
        let words = |key| {
            let value = values(key).next();
            value.map(|value| value.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        let sets = words("set:").context("no line `# set: ci` or `# set: full`")?;
        let providers = words("providers:").unwrap_or(PROVIDERS.map(str::to_owned).to_vec());
        for provider in &providers {
            ensure!(PROVIDERS.contains(&provider.as_str()), "no such provider: {provider}");
        }
        let limit_seconds = match words("limit:") {
            Some(limit) => limit.join(" ").parse().context("`# limit:` is a number of seconds")?,
            None => LIMIT_SECONDS,
        };
        let expected = values("kernel may say:").map(str::to_owned).collect();
        Ok(Self { sets, providers, limit_seconds, expected })
    }
}

/// Returns the runs of the scenarios in a folder that `wanted` accepts, sorted by name.
pub(crate) fn select(folder: &Path, wanted: impl Fn(&str, &[String]) -> bool) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let scenario = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let heading = Heading::parse(&fs::read_to_string(&path)?)
            .with_context(|| path.display().to_string())?;
        if !wanted(&scenario, &heading.sets) {
            continue;
        }
        runs.extend(heading.providers.into_iter().map(|provider| Run {
            scenario: scenario.clone(),
            provider,
            limit_seconds: heading.limit_seconds,
            smoke: heading.sets.iter().any(|set| set == SMOKE),
            expected: heading.expected.clone(),
        }));
    }
    // `sort_by` is stable, so the order of providers is kept.
    runs.sort_by(|a, b| a.scenario.cmp(&b.scenario));
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_have_set_providers_limit_and_kernel_lines() {
        let text =
            "# What.\n# set: ci bookworm\n# providers: soft\n# limit: 7\n# kernel may say: a b\n";
        let heading = Heading::parse(text).expect("it is whole");
        assert_eq!(heading.sets, ["ci", "bookworm"]);
        assert_eq!(heading.providers, ["soft"]);
        assert_eq!(heading.limit_seconds, 7);
        assert_eq!(heading.expected, ["a b"]);
    }

    #[test]
    fn a_heading_ends_with_the_comment() {
        assert!(Heading::parse("# What.\ntrue\n# set: ci\n").is_err());
        let heading = Heading::parse("# What.\n# set: full\ntrue\n# limit: 7\n").expect("whole");
        assert_eq!(heading.providers, PROVIDERS);
        assert_eq!(heading.limit_seconds, LIMIT_SECONDS);
    }

    #[test]
    fn unknown_heading_lines_are_errors() {
        assert!(Heading::parse("# What.\n# set: ci\n# providers: hard\n").is_err());
        assert!(Heading::parse("# What.\n# set: ci\n# limit: long\n").is_err());
    }
}
