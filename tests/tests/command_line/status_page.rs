//! The status page of a target, in a browser.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use feedrail_tests::process::{Daemon, DaemonOptions, feedrail, free_address};
use tempfile::TempDir;

/// Files of the folder that is exported, more than the page lists.
const FILES: usize = 12_000;
/// A name that is markup.
const MARKUP: &str = "<img src=x onerror=document.title='run'>";

/// Chromium, or a line that says that it is missing.
fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let programs = ["chromium", "chromium-browser", "google-chrome"];
    let mut found = std::env::split_paths(&path)
        .flat_map(|folder| programs.map(|program| folder.join(program)))
        .filter(|program| program.exists());
    let found = found.next();
    if found.is_none() {
        eprintln!("skipped: the status page in a browser, because chromium is not installed");
    }
    found
}

fn serve(folder: &TempDir) -> (Daemon, String) {
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    for number in 0..FILES {
        fs::write(data.join(format!("shard-{number:05}.bin")), [7; 4096]).unwrap();
    }
    fs::write(data.join("00-used.bin"), vec![7; 1 << 20]).unwrap();
    fs::write(data.join(MARKUP), [7; 4096]).unwrap();
    fs::write(data.join("empty.bin"), "").unwrap();
    let metrics = free_address().to_string();
    let daemon = DaemonOptions::files([&data])
        .arg("--metrics")
        .arg(&metrics)
        .env("STATE_DIRECTORY", folder.path().join("state").to_str().unwrap())
        .start();
    (daemon, format!("http://{metrics}/"))
}

#[test]
fn a_browser_shows_what_a_target_does() {
    let Some(browser) = browser() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (daemon, page) = serve(&folder);
    for nsid in ["1", "2"] {
        let read = ["read", "--namespace-id", nsid].into_iter().map(str::to_owned);
        feedrail(read.chain(daemon.options())).run().success();
    }
    let work = ["perf", "--rw", "randread", "--bs", "4k", "--runtime", "600"].map(str::to_owned);
    let load = feedrail(work.into_iter().chain(daemon.options())).start();
    let show = |options: &[&str]| {
        Command::new(&browser)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
            .arg(format!("--user-data-dir={}", folder.path().join("browser").display()))
            .args(options)
            .arg(&page)
            .output()
            .unwrap()
    };
    let output = show(&["--dump-dom", "--virtual-time-budget=6000"]);
    if let Ok(path) = std::env::var("FEEDRAIL_SCREENSHOT") {
        let path = format!("--screenshot={path}");
        show(&[&path, "--window-size=1280,1150", "--virtual-time-budget=40000"]);
    }
    load.kill();
    let dom = String::from_utf8_lossy(&output.stdout);
    assert!(dom.contains(r#"class="dim">live</span>"#), "{dom}");
    assert!(dom.contains("12,002"), "the number of namespaces: {dom}");
    assert!(dom.contains(daemon.nqn()) && dom.contains("00-used.bin"), "{dom}");
    let name = "&lt;img src=x onerror=document.title='run'&gt;";
    assert!(dom.contains(name) && !dom.contains("<img"), "{dom}");
    assert!(dom.contains("<title>Feedrail target</title>"), "no foreign script ran: {dom}");
    let chart = dom.split(r#"<polyline class="read" points=""#).nth(1).unwrap();
    let points = chart.split('"').next().unwrap().split_whitespace();
    assert!(points.count() >= 2, "{dom}");
    assert!(dom.contains("empty.bin") && dom.contains("it is empty"), "{dom}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!errors.contains("Content Security Policy"), "{errors}");
}
