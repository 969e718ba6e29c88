//! Version of the workspace (`workspace.package`), and the places that must repeat it.

use anyhow::{Context, Result};
use toml_edit::{DocumentMut, Item};

use crate::source::Tree;

/// Changelogs of the Debian packages, which begin with the version of the package.
const PACKAGE_CHANGELOGS: [&str; 2] = ["cli/debian/changelog", "target/debian/changelog"];

/// Returns the version of the workspace.
pub(crate) fn of(tree: &Tree) -> Result<String> {
    Ok(version(&manifest(tree)?)?.to_owned())
}

/// Returns the places that contain a version other than the workspace's.
pub(crate) fn complaints(tree: &Tree) -> Result<Vec<String>> {
    let manifest = manifest(tree)?;
    let version = version(&manifest)?;
    let mut complaints = dependencies(&manifest, version);
    for path in PACKAGE_CHANGELOGS {
        let text = tree.read(path)?;
        if !text.lines().next().is_some_and(|line| line.contains(&format!(" ({version}-"))) {
            complaints.push(format!("{path}: the first entry is not of {version}"));
        }
    }
    Ok(complaints)
}

fn manifest(tree: &Tree) -> Result<DocumentMut> {
    tree.read("Cargo.toml")?.parse().context("Cargo.toml")
}

fn version(manifest: &DocumentMut) -> Result<&str> {
    let version = manifest["workspace"]["package"]["version"].as_str();
    version.context("Cargo.toml: no workspace.package.version")
}

/// Returns the dependencies on crates of the workspace that require another version. Cargo
/// publishes a crate only if its dependencies have versions, and these cannot be inherited.
fn dependencies(manifest: &DocumentMut, version: &str) -> Vec<String> {
    let dependencies = manifest["workspace"]["dependencies"].as_table_like();
    let other = |(name, item): (&str, &Item)| {
        item.get("path")?;
        let asked = item.get("version")?.as_str()?;
        (asked != version)
            .then(|| format!("Cargo.toml: `{name}` is {asked}, and the workspace {version}"))
    };
    dependencies.into_iter().flat_map(|table| table.iter().filter_map(other)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_of_another_version_is_noticed() {
        let manifest: DocumentMut = r#"
            [workspace.package]
            version = "0.2.0"
            [workspace.dependencies]
            new = { path = "new", version = "0.2.0" }
            old = { path = "old", version = "0.1.0" }
            private = { path = "private" }
            foreign = { version = "0.1.0" }
            other = "1"
        "#
        .parse()
        .unwrap();
        let complaints = dependencies(&manifest, version(&manifest).unwrap());
        assert_eq!(complaints, ["Cargo.toml: `old` is 0.1.0, and the workspace 0.2.0"]);
    }
}
