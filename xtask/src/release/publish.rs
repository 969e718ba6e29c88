//! Publishes crates, wheels, the image and the tag, in this order. It asks before each step. Steps
//! whose result exists are skipped, so that the same command continues a release that was
//! interrupted.

use std::io::{self, BufRead, Write};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use super::tools::Tools;
use super::{ReleaseFiles, notes};
use crate::{output, root};

/// Where things are published, and whether they are.
#[derive(Args)]
pub(crate) struct Destination {
    /// Publish what lies in out/release-files: crates, wheels, the image, the git tag.
    #[arg(long)]
    publish: bool,
    /// Answer each question with yes.
    #[arg(long, requires = "publish")]
    yes: bool,
    /// Print the commands and run none of them.
    #[arg(long, requires = "publish")]
    dry_run: bool,
    /// A registry of crates in cargo's configuration, instead of crates.io.
    #[arg(long, value_name = "NAME")]
    crate_registry: Option<String>,
    /// A repository of wheels by its URL, instead of PyPI.
    #[arg(long, value_name = "URL")]
    wheel_repository: Option<String>,
    /// The image without its tag, as skopeo names it; without it no image is published.
    #[arg(long, value_name = "docker://HOST/NAME")]
    image: Option<String>,
    /// The git remote that the tag is pushed to.
    #[arg(long, value_name = "NAME", default_value = "origin")]
    remote: String,
}

/// Command that publishes something, with its description.
#[derive(Debug, PartialEq, Eq)]
struct PublishStep {
    what: String,
    command: Vec<String>,
    /// Command that succeeds if this is published already. `None` for tools that check it
    /// themselves.
    check: Option<Vec<String>>,
}

impl Destination {
    pub(crate) fn is_wanted(&self) -> bool {
        self.publish
    }

    /// Publishes all that is not published yet.
    pub(crate) fn publish(&self, release: &ReleaseFiles, tools: &Tools) -> Result<()> {
        if !self.dry_run {
            ready(release)?;
        }
        let metadata =
            output("cargo", &["metadata", "--format-version=1", "--no-deps", "--locked"])?;
        let crates = in_order(&serde_json::from_str(&metadata)?)?;
        for step in self.steps(release, tools, &crates)? {
            self.take(&step, &mut io::stdin().lock())?;
        }
        Ok(())
    }

    fn steps(
        &self,
        release: &ReleaseFiles,
        tools: &Tools,
        crates: &[String],
    ) -> Result<Vec<PublishStep>> {
        let version = &release.version;
        let mut steps: Vec<_> = crates.iter().map(|name| self.of_crate(name, version)).collect();
        let mut upload = vec![tools.program("maturin"), "upload".into(), "--skip-existing".into()];
        if let Some(url) = &self.wheel_repository {
            upload.extend(["--repository-url".into(), url.clone()]);
        }
        let sources = format!("feedrail-{version}.tar.gz");
        for file in [release.files(".whl")?, release.files(&sources)?].concat() {
            upload.push(file.display().to_string());
        }
        steps.push(PublishStep { what: "wheels".into(), command: upload, check: None });
        if let Some(image) = &self.image {
            let files = release.files(".oci.tar")?;
            let archive = files.first().context("there is no image: cargo xtask release image")?;
            let name = format!("{image}:{version}");
            steps.push(PublishStep {
                what: "image".into(),
                command: words(&[
                    "skopeo",
                    "copy",
                    "--all",
                    &format!("oci-archive:{}", archive.display()),
                    &name,
                ]),
                check: Some(words(&["skopeo", "inspect", "--raw", &name])),
            });
        }
        let tag = format!("v{version}");
        let reference = format!("refs/tags/{tag}");
        let remote = &self.remote;
        steps.push(PublishStep {
            what: "tag".into(),
            command: words(&[
                "git",
                "tag",
                "--annotate",
                "--message",
                &format!("Feedrail {version}"),
                &tag,
            ]),
            check: Some(words(&["git", "rev-parse", "--quiet", "--verify", &reference])),
        });
        steps.push(PublishStep {
            what: format!("tag at {remote}"),
            command: words(&["git", "push", remote, &reference]),
            check: Some(words(&["git", "ls-remote", "--exit-code", "--tags", remote, &reference])),
        });
        Ok(steps)
    }

    fn of_crate(&self, name: &str, version: &str) -> PublishStep {
        let mut command = words(&["cargo", "publish", "--locked", "--package", name]);
        let mut check = words(&["cargo", "info", "--quiet", &format!("{name}@{version}")]);
        // Without `--registry`, `cargo info` reports the crate of the workspace.
        let registry = self.crate_registry.as_deref().unwrap_or("crates-io");
        command.extend(["--registry".into(), registry.into()]);
        check.extend(["--registry".into(), registry.into()]);
        PublishStep { what: format!("crate {name}"), command, check: Some(check) }
    }

    /// Runs a step, after the user has confirmed it.
    fn take(&self, step: &PublishStep, answers: &mut impl BufRead) -> Result<()> {
        let line = step.command.join(" ");
        if self.dry_run {
            println!("{line}");
            return Ok(());
        }
        if step.check.as_ref().is_some_and(|check| succeeds(check)) {
            println!("{}: is published already", step.what);
            return Ok(());
        }
        if !self.yes && !agreed(&step.what, &line, answers)? {
            bail!("{}: not published; what comes after it is not either", step.what);
        }
        let arguments: Vec<_> = step.command[1..].iter().map(String::as_str).collect();
        crate::run(&step.command[0], &arguments, &[])
    }
}

/// Fails if there are uncommitted changes, or the changelog lacks the version.
fn ready(release: &ReleaseFiles) -> Result<()> {
    ensure!(!release.files(".whl")?.is_empty(), "there are no wheels: cargo xtask release wheel");
    let changes = output("git", &["status", "--porcelain"])?;
    ensure!(changes.is_empty(), "there are uncommitted changes:\n{changes}");
    let changelog = std::fs::read_to_string(root().join("CHANGELOG.md"))?;
    let version = &release.version;
    ensure!(notes::is_dated(&changelog, version), "CHANGELOG.md has no section of {version}");
    Ok(())
}

/// Returns the crates to publish, each after its dependencies.
fn in_order(metadata: &Value) -> Result<Vec<String>> {
    let packages = metadata["packages"].as_array().context("cargo names no packages")?;
    let name = |package: &Value| package["name"].as_str().unwrap_or_default().to_owned();
    // `publish` is null for a crate that is published, and an empty list for others.
    let published: Vec<_> =
        packages.iter().filter(|package| package["publish"].is_null()).collect();
    let names: Vec<_> = published.iter().map(|package| name(package)).collect();
    let mut ordered: Vec<String> = Vec::new();
    while ordered.len() < names.len() {
        let ready = published.iter().find(|package| {
            let needs = package["dependencies"].as_array().into_iter().flatten();
            // Cargo omits development dependencies that have only a path.
            let left_out = |need: &&Value| need["kind"] == "dev" && need["req"] == "*";
            let own = needs.filter(|need| !left_out(need)).map(name);
            !ordered.contains(&name(package))
                && own.filter(|need| names.contains(need)).all(|need| ordered.contains(&need))
        });
        ordered.push(name(ready.context("the crates depend on each other in a circle")?));
    }
    Ok(ordered)
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn succeeds(command: &[String]) -> bool {
    let output = Command::new(&command[0]).args(&command[1..]).current_dir(root()).output();
    output.is_ok_and(|output| output.status.success())
}

fn agreed(what: &str, line: &str, answers: &mut impl BufRead) -> Result<bool> {
    print!("{what}: {line}\npublish it? [y/N] ");
    io::stdout().flush()?;
    let mut answer = String::new();
    answers.read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "yes"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn destination() -> Destination {
        Destination {
            publish: true,
            yes: false,
            dry_run: false,
            crate_registry: None,
            wheel_repository: None,
            image: None,
            remote: "origin".into(),
        }
    }

    #[test]
    fn a_crate_is_published_behind_those_that_it_needs() {
        let package = |name: &str, publish: Value, needs: &[(&str, Value)]| {
            let need = |(name, kind): &(&str, Value)| match name.strip_prefix("by-path:") {
                Some(name) => json!({"name": name, "kind": kind, "req": "*"}),
                None => json!({"name": name, "kind": kind, "req": "^1"}),
            };
            let needs = needs.iter().map(need);
            json!({"name": name, "publish": publish, "dependencies": needs.collect::<Vec<_>>()})
        };
        let metadata = json!({"packages": [
            package("program", Value::Null, &[("library", Value::Null), ("checked", json!("dev"))]),
            package("library", Value::Null, &[("base", Value::Null), ("by-path:program", json!("dev"))]),
            package("checked", Value::Null, &[]),
            package("base", Value::Null, &[("foreign", Value::Null)]),
            package("tests", json!([]), &[("program", Value::Null)]),
        ]});
        assert_eq!(in_order(&metadata).unwrap(), ["checked", "base", "library", "program"]);
    }

    #[test]
    fn a_step_is_taken_if_it_is_agreed_to_and_not_done() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file").display().to_string();
        let touch = |check: Option<Vec<String>>| PublishStep {
            what: "file".into(),
            command: words(&["touch", &file]),
            check,
        };
        let done = Some(words(&["test", "-e", &file]));
        let step = touch(done);
        assert!(destination().take(&step, &mut &b"n\n"[..]).is_err());
        assert!(destination().take(&step, &mut &b""[..]).is_err());
        assert!(!std::path::Path::new(&file).exists());
        destination().take(&step, &mut &b"y\n"[..]).unwrap();
        assert!(std::path::Path::new(&file).exists());
        // It is there: nothing is asked.
        destination().take(&step, &mut &b""[..]).unwrap();
        let yes = Destination { yes: true, ..destination() };
        yes.take(&touch(None), &mut &b""[..]).unwrap();
        std::fs::remove_file(&file).unwrap();
        let dry = Destination { dry_run: true, ..destination() };
        dry.take(&touch(None), &mut &b""[..]).unwrap();
        assert!(!std::path::Path::new(&file).exists());
    }
}
