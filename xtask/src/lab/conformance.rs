//! Conformance suite of the RDMA providers, as a program for the guest.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::root;

/// Name of the scenario that runs the suite.
pub(super) const NAME: &str = "conformance";
/// Integration test of the crate `rdma` that contains the suite.
const PROGRAM: &str = "integration";

/// Builds the suite, and returns the path of the program.
pub(super) fn build() -> Result<PathBuf> {
    eprintln!("+ cargo test --no-run -p feedrail-rdma --test {PROGRAM}");
    let output = Command::new("cargo")
        .args(["test", "--no-run", "-p", "feedrail-rdma", "--test", PROGRAM])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "the suite could not be built: {}", output.status);
    let messages = String::from_utf8(output.stdout).context("the output of cargo is not UTF-8")?;
    executable(&messages).context("cargo did not say where the suite is")
}

/// Returns the path of the program from cargo's messages, one line of JSON each.
fn executable(messages: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut suites = messages.filter(|message| message["target"]["name"] == PROGRAM);
    suites.find_map(|message| Some(Path::new(message["executable"].as_str()?).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_among_the_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"rdma"},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"integration"},"executable":"/a/integration-1"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
            "\n",
        );
        assert_eq!(executable(messages), Some("/a/integration-1".into()));
        assert_eq!(executable("{\"reason\":\"build-finished\"}\n"), None);
    }
}
