//! `feedrail serve`: a target in the foreground.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use feedrail_tests::process::{Bytes, binary, feedrail, loopback_address, wait_at_most};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// A folder with `a.bin`, `sub/b.bin` and an empty file, which is left out.
struct Folder {
    place: TempDir,
    content: Vec<u8>,
}

impl Folder {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let content = Bytes::new(5).take(70_001);
        fs::create_dir_all(place.path().join("data/sub")).unwrap();
        fs::write(place.path().join("data/a.bin"), &content).unwrap();
        fs::write(place.path().join("data/sub/b.bin"), "b").unwrap();
        fs::write(place.path().join("data/empty"), "").unwrap();
        Self { place, content }
    }

    /// Starts `feedrail serve` for it on a loopback address.
    fn serve(&self, format: &str) -> Served {
        self.serve_with(format, &[])
    }

    fn serve_with(&self, format: &str, options: &[&str]) -> Served {
        let address = loopback_address().to_string();
        let mut child = Command::new(binary("feedrail"))
            .args(["serve", "-o", format, "--listen", &address, "--metrics", "127.0.0.1:0"])
            .args(options)
            .arg(self.place.path().join("data"))
            .env("STATE_DIRECTORY", self.place.path().join("state"))
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Served { child, output }
    }
}

struct Served {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Served {
    /// The lines up to one that is the last of the start.
    fn lines_until(&mut self, is_last: impl Fn(&str) -> bool) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        while !lines.last().is_some_and(|line| is_last(line)) {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "it ended: {lines:?}");
            lines.push(line.trim_end().to_owned());
        }
        lines
    }

    fn stop(self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
        self.ends();
    }

    fn ends(mut self) {
        let status = wait_at_most(&mut self.child, Duration::from_secs(120));
        assert!(status.is_some_and(|status| status.success()), "{status:?}");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_printed_command_reads_what_is_served() {
    let folder = Folder::new();
    let mut served = folder.serve("normal");
    let lines = served.lines_until(|line| line == "Ctrl-C stops serving");
    assert_eq!(lines[0], "serving 2 namespaces, read-only, to any host");
    assert!(lines[2].ends_with("a.bin") && lines[3].ends_with("sub/b.bin"), "{lines:?}");
    let command = lines.iter().find(|line| line.contains("feedrail read")).unwrap();
    let (words, _) = command.split_once(" >").unwrap();
    let read = feedrail(words.split_whitespace().skip(1)).run().success();
    assert!(read == folder.content[..64 << 10]);
    let python = lines.iter().find(|line| line.contains("python3")).unwrap();
    assert!(python.contains("feedrail.open(\"nvmf://127."), "{python}");
    served.stop(Signal::INT);
}

#[test]
fn the_lines_of_the_daemon_are_printed_as_json() {
    let folder = Folder::new();
    let mut served = folder.serve("json");
    let lines = served.lines_until(|line| line.contains(r#""event":"ready""#));
    let lines: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events: Vec<_> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["listening", "ready"]);
    assert_eq!(lines[0]["namespaces"], 2);
    served.stop(Signal::TERM);
}

#[test]
fn it_ends_with_the_process_that_it_was_told() {
    let folder = Folder::new();
    for (format, last) in [("normal", "Ctrl-C stops serving"), ("json", r#""event":"ready""#)] {
        let mut other = Command::new("sleep").arg("infinity").spawn().unwrap();
        let pid = other.id().to_string();
        let mut served = folder.serve_with(format, &["--pid", &pid]);
        served.lines_until(|line| line.contains(last));
        // The number is taken until the process is waited for.
        other.kill().unwrap();
        served.ends();
        other.wait().unwrap();
    }
}

#[test]
fn what_cannot_be_served_is_a_one_line_error() {
    for format in ["normal", "json"] {
        let run = |path: &str| feedrail(["serve", "-o", format, "-l", "127.0.0.1", path]).run();
        let line = run("/nonexistent/train.bin").failure();
        assert!(line.contains("/nonexistent/train.bin: No such file"), "{line}");
        // No number of a process is as large.
        let line =
            feedrail(["serve", "-o", format, "--pid", "2147483647", "a.bin"]).run().failure();
        assert!(line.contains("process 2147483647: No such process"), "{line}");
    }
}
