//! Release notes: the section of a version in CHANGELOG.md.

/// Heading of the changes since the last release.
const UNRELEASED: &str = "Unreleased";

/// Returns the section of a version or, if it has none, that of unreleased changes.
pub(crate) fn cut(changelog: &str, version: &str) -> Option<String> {
    section(changelog, version).or_else(|| section(changelog, UNRELEASED))
}

/// Whether the changelog has a section of the version itself.
pub(crate) fn is_dated(changelog: &str, version: &str) -> bool {
    section(changelog, version).is_some()
}

/// Returns the lines below `## NAME`, or `## [NAME] - DATE`, up to the next heading of that level.
fn section(changelog: &str, name: &str) -> Option<String> {
    let is_wanted = |line: &str| {
        let heading = line.strip_prefix("## ")?.split(' ').next()?;
        (heading.trim_matches(['[', ']']) == name).then_some(())
    };
    let below = changelog.lines().skip_while(|line| is_wanted(line).is_none()).skip(1);
    let lines: Vec<_> = below.take_while(|line| !line.starts_with("## ")).collect();
    let text = lines.join("\n").trim().to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGELOG: &str = "# Changelog\n\n## Unreleased\n\n### Added\n\n- New.\n\n\
        ## [0.2.0] - 2026-12-01\n\n- Two.\n\n## 0.1.0\n\n- One.\n";

    #[test]
    fn the_notes_are_those_of_the_version() {
        assert_eq!(cut(CHANGELOG, "0.2.0").unwrap(), "- Two.");
        assert_eq!(cut(CHANGELOG, "0.1.0").unwrap(), "- One.");
        assert!(is_dated(CHANGELOG, "0.1.0"));
    }

    #[test]
    fn a_version_that_is_not_dated_has_the_unreleased_notes() {
        assert_eq!(cut(CHANGELOG, "0.3.0").unwrap(), "### Added\n\n- New.");
        assert!(!is_dated(CHANGELOG, "0.3.0"));
        assert_eq!(cut("# Changelog\n", "0.3.0"), None);
    }
}
