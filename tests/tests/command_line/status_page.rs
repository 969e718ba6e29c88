//! The status page of a target, in a browser.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use feedrail_tests::process::{Daemon, DaemonOptions, Running, feedrail, free_address};
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

/// Opens a page with these options.
fn show(browser: &Path, folder: &TempDir, page: &str, options: &[&str]) -> Output {
    Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
        .arg(format!("--user-data-dir={}", folder.path().join("browser").display()))
        .args(options)
        .arg(page)
        .output()
        .unwrap()
}

/// Starts a target for the folder, and gives the address of its status page.
fn start(folder: &TempDir, data: &Path) -> (Daemon, String) {
    let metrics = free_address().to_string();
    let daemon = DaemonOptions::files([data])
        .arg("--metrics")
        .arg(&metrics)
        .env("STATE_DIRECTORY", folder.path().join("state").to_str().unwrap())
        .start();
    (daemon, format!("http://{metrics}/"))
}

/// Reads small blocks at random until it is killed.
fn load(daemon: &Daemon, options: &[&str]) -> Running {
    let work = ["perf", "--rw", "randread", "--bs", "4k", "--runtime", "600"];
    let words = work.iter().chain(options).map(|word| (*word).to_owned());
    feedrail(words.chain(daemon.options())).start()
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
    start(folder, &data)
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
    let load = load(&daemon, &[]);
    let output = show(&browser, &folder, &page, &["--dump-dom", "--virtual-time-budget=6000"]);
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
    for fact in ["listening", "buffer pool peak", "page cache hits", "locked in memory"] {
        assert!(dom.contains(fact), "{fact}: {dom}");
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!errors.contains("Content Security Policy"), "{errors}");
}

/// Makes the picture of README; `cargo xtask screenshot` names its file.
#[test]
fn the_page_can_be_pictured() {
    let Some(path) = std::env::var_os("FEEDRAIL_SCREENSHOT") else { return };
    let browser = browser().expect("a picture needs a browser");
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("shards");
    fs::create_dir(&data).unwrap();
    for number in 0..24 {
        fs::write(data.join(format!("train-{number:06}.tar")), vec![7; 8 << 20]).unwrap();
    }
    fs::write(data.join("train-000024.tar"), "").unwrap();
    let (daemon, page) = start(&folder, &data);
    let loads = ["1", "2", "3"].map(|nsid| load(&daemon, &["--namespace-id", nsid]));
    let path = format!("--screenshot={}", path.display());
    let budget = "--virtual-time-budget=60000";
    show(&browser, &folder, &page, &[&path, "--window-size=1280,1290", budget]);
    loads.into_iter().for_each(Running::kill);
}
