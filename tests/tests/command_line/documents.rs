//! README and `docs/`: their commands run as written, their configurations are valid, and their
//! lists are those of the code.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use feedrail_target::config::Config;
use feedrail_target::{PeerErrors, Stats, StorageErrors};
use feedrail_tests::process::{
    Daemon, DaemonOptions, OpenMetricsPage, Program, binary, free_address, loopback_address,
};
use serde_json::Value;

/// Stands for `cargo`, whose build commands are done already: the programs are those
/// under test.
const CARGO: &str = r#"#!/bin/sh
case "$*" in
"run --release --bin "*) program=$4; shift 5; exec "$BINARIES/$program" "$@" ;;
"build --release") mkdir -p out/release && ln -s "$BINARIES/feedrail" "$BINARIES/feedrail-target" out/release ;;
*) echo "a document says 'cargo $*', which this test does not know" >&2; exit 1 ;;
esac
"#;

/// Whether `feedrail` and `feedrail-target` are in the search path when a document begins.
#[derive(PartialEq)]
enum Programs {
    Installed,
    NotYet,
}

/// A fenced block of a document: its info string, and its content.
struct CodeBlock {
    info: String,
    text: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn document(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The blocks of a document whose info string begins with a language.
fn blocks(name: &str, language: &str) -> Vec<CodeBlock> {
    let text = document(name);
    let mut lines = text.lines();
    let mut blocks = Vec::new();
    while let Some(line) = lines.next() {
        let Some(info) = line.strip_prefix("```") else { continue };
        let inside: Vec<&str> =
            lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
        blocks.push(CodeBlock { info: info.to_owned(), text: inside.join("\n") + "\n" });
    }
    blocks.retain(|block| block.info.split(' ').next() == Some(language));
    blocks
}

/// One shell script of all commands of a document. A block with the info string `sh background`
/// runs in another terminal beside them, and prints a line when it listens.
fn script(name: &str) -> String {
    let parts = blocks(name, "sh").into_iter().map(|block| match block.info.as_str() {
        "sh background" => format!(
            "{{ {}}} > background.jsonl &\n\
             until grep -q '\"event\":\"listening\"' background.jsonl; do\n\
             kill -0 $! || exit 1\nsleep 0.1\ndone\n",
            block.text
        ),
        _ => block.text,
    });
    // Each job has a process group of its own (`-m`).
    let end = "trap 'for job in $(jobs -p); do kill -- -$job || true; done; wait' EXIT\n";
    format!("set -euo pipefail -m\n{end}{}", parts.collect::<String>())
}

/// Runs all commands of a document as they are written, except for the addresses of this machine,
/// and returns their output.
fn run(name: &str, programs: Programs) -> String {
    let folder = tempfile::tempdir().unwrap();
    let tools = folder.path().join("tools");
    fs::create_dir(&tools).unwrap();
    fs::write(tools.join("cargo"), CARGO).unwrap();
    fs::set_permissions(tools.join("cargo"), fs::Permissions::from_mode(0o755)).unwrap();
    if programs == Programs::Installed {
        for program in ["feedrail", "feedrail-target"] {
            symlink(binary(program), tools.join(program)).unwrap();
        }
    }
    fs::copy(root().join("README.md"), folder.path().join("README.md")).unwrap();
    let [target, host] = [loopback_address(), loopback_address()].map(|it| it.to_string());
    let commands = script(name).replace("127.0.0.1", &target).replace("127.0.0.2", &host);
    let path = std::env::var("PATH").unwrap();
    let outcome = Program::new("bash")
        .args(["-c", &format!("cd '{}'\n{commands}", folder.path().display())])
        .env("PATH", format!("{}:{path}", tools.display()))
        .env("BINARIES", binaries())
        .limit(Duration::from_secs(240))
        .run();
    String::from_utf8(outcome.success()).unwrap()
}

fn binaries() -> PathBuf {
    binary("feedrail").parent().unwrap().to_owned()
}

#[test]
fn the_commands_of_readme_work() {
    let text = run("README.md", Programs::NotYet);
    assert!(text.contains("every byte is right"), "{text}");
    assert!(text.ends_with("# Feedrail"), "{text}");
}

#[test]
fn the_commands_of_getting_started_work() {
    let text = run("docs/getting-started.md", Programs::NotYet);
    for part in
        ["100000\n", "nqn.2026-01.io.feedrail:files", "\"event\":\"stats\"", "every byte is right"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn the_commands_of_checkpoints_work() {
    let text = run("docs/checkpoints.md", Programs::Installed);
    let parts =
        ["step-1200 is saved: 3000012 bytes in 2 entries", "step-1200 is deleted", "step-1300"];
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn the_commands_of_the_other_pages_work() {
    const OWN_TESTS: [&str; 2] = ["getting-started.md", "checkpoints.md"];
    for folder in ["docs", "docs/operations"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") && !OWN_TESTS.contains(&&*name) {
                run(&format!("{folder}/{name}"), Programs::Installed);
            }
        }
    }
}

#[test]
fn the_configurations_are_valid() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("target.toml");
    for name in ["docs/operations/configure.md", "docs/operations/failures.md"] {
        let examples = blocks(name, "toml");
        assert!(!examples.is_empty(), "{name}");
        for example in examples {
            fs::write(&path, &example.text).unwrap();
            let config = Config::from_file(&path, None);
            assert!(config.is_ok(), "{name}: {:?}\n{}", config.err(), example.text);
        }
    }
}

#[test]
fn the_program_is_that_of_the_crates_documentation() {
    let source = document("initiator/src/lib.rs");
    let documentation = source.lines().filter_map(|line| line.strip_prefix("//!"));
    let shown = documentation.map(|line| line.strip_prefix(' ').unwrap_or(line));
    let crate_text: String =
        shown.filter(|line| !line.starts_with("# ")).map(|line| format!("{line}\n")).collect();
    let [block] = &blocks("docs/data-loaders.md", "rust")[..] else { panic!("one program") };
    assert!(crate_text.contains(&format!("```no_run\n{}```", block.text)), "{}", block.text);
}

#[test]
fn the_patches_of_the_first_changes_apply() {
    let folder = root().join("docs/first-change");
    let patches: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(patches.len(), 3);
    for patch in patches {
        Program::new("git")
            .args(["-C".as_ref(), root().as_os_str(), "apply".as_ref(), "--check".as_ref()])
            .args([patch])
            .run()
            .success();
    }
}

/// The names of all values of a JSON object; those inside others behind a dot.
fn names(value: &Value, before: &str, names: &mut BTreeSet<String>) {
    for (key, value) in value.as_object().unwrap() {
        let name = format!("{before}{key}");
        match value {
            Value::Object(_) => self::names(value, &format!("{name}."), names),
            Value::Array(list) => {
                list.iter().for_each(|item| self::names(item, &format!("{name}."), names));
                names.insert(name);
            }
            _ => drop(names.insert(name)),
        }
    }
}

/// The page with what a target prints and counts.
const WATCH: &str = "docs/operations/watch.md";

/// The first cells of the table in a section of [`WATCH`].
fn first_cells(section: &str) -> BTreeSet<String> {
    let text = document(WATCH);
    let (_, after) = text.split_once(&format!("\n## {section}\n")).unwrap();
    let section = after.split("\n## ").next().unwrap();
    let cells = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    cells.map(str::to_owned).collect()
}

#[test]
fn every_counter_is_explained_and_no_other() {
    let stats = Stats {
        peer_errors: vec![PeerErrors::default()],
        storage_errors: vec![StorageErrors::default()],
        ..Stats::default()
    };
    let line: Value = serde_json::from_str(&stats.to_json_line()).unwrap();
    let mut counters = BTreeSet::new();
    names(&line, "", &mut counters);
    assert!(counters.remove("event"));
    assert_eq!(first_cells("Counters"), counters);
}

#[test]
fn every_family_of_metrics_is_explained_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file.bin");
    fs::write(&file, "bytes").unwrap();
    let address = free_address();
    let options = DaemonOptions::files([&file]).arg("--metrics-detail").arg("namespace");
    let daemon = options.arg("--metrics").arg(address.to_string()).start();
    let page = OpenMetricsPage::scrape(address);
    drop::<Daemon>(daemon);
    // Those of the counters above have their names.
    let named = first_cells("Counters");
    let is_named = |family: &String| {
        [("feedrail_io_", "io."), ("feedrail_network_", "network.")].iter().any(|(prefix, of)| {
            family.strip_prefix(prefix).is_some_and(|rest| named.contains(&format!("{of}{rest}")))
        })
    };
    let families: BTreeSet<_> =
        page.families.into_keys().filter(|family| !is_named(family)).collect();
    assert_eq!(first_cells("Metrics for Prometheus"), families);
}

/// Every field of a line is named in the row of its event.
#[track_caller]
fn is_explained(line: &Value) {
    let text = document(WATCH);
    let event = line["event"].as_str().unwrap();
    let row = text.lines().find(|row| row.starts_with(&format!("| `{event}` |")));
    let row = row.unwrap_or_else(|| panic!("{event} is not explained"));
    for field in line.as_object().unwrap().keys().filter(|field| *field != "event") {
        assert!(row.contains(&format!("`{field}`")), "{field} of {event}: {row}");
    }
}

#[test]
fn every_event_is_explained() {
    let events = first_cells("What the daemon prints");
    let expected = ["checked", "dropped", "listening", "not_listening", "ready", "stats"];
    assert_eq!(events, expected.map(str::to_owned).into());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file.bin");
    fs::write(&file, "bytes").unwrap();
    let daemon = DaemonOptions::files([&file]).arg("--listen").arg("192.0.2.1:4420").start();
    is_explained(daemon.listening());
    is_explained(daemon.not_listening());
    drop::<Daemon>(daemon);
    let checked = Program::new(binary("feedrail-target"))
        .args(["--check", "--listen", &loopback_address().to_string()])
        .args([&file])
        .run();
    let checked: Value = serde_json::from_slice(&checked.success()).unwrap();
    is_explained(&checked);
}
