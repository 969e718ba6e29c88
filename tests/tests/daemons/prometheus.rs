//! A Prometheus that reads the counters of a target, and the queries of the dashboard on it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use feedrail_initiator::Namespace;
use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, OpenMetricsPage, eventually, free_address, host, metrics_text,
    slice_of,
};
use serde_json::Value;

const SIZE_BYTES: usize = 1 << 20;

/// Ends with the test.
struct Prometheus {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
}

impl Prometheus {
    /// Starts one that reads a target five times a second; nothing if it is not installed.
    fn start(folder: &Path, target: SocketAddr) -> Option<Self> {
        let address = free_address();
        let configuration = format!(
            "global:\n  scrape_interval: 200ms\n  scrape_timeout: 200ms\nscrape_configs:\n  - job_name: feedrail\n    \
             static_configs:\n      - targets: [\"{target}\"]\n"
        );
        let [file, data, log] = ["prometheus.yml", "data", "log"].map(|name| folder.join(name));
        fs::write(&file, configuration).unwrap();
        let output = fs::File::create(&log).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", data.display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn();
        match child {
            Ok(child) => Some(Self { child, address, log }),
            Err(error) => {
                eprintln!("left out: prometheus, of the Debian package: {error}");
                None
            }
        }
    }

    /// The results of a query; nothing while it is starting.
    fn query(&self, query: &str) -> Option<Vec<Value>> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let mut stream = TcpStream::connect(self.address).ok()?;
        let request = format!("GET /api/v1/query?query={encoded} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut response = String::new();
        stream.read_to_string(&mut response).ok()?;
        let (head, body) = response.split_once("\r\n\r\n")?;
        if head.contains(" 503 ") {
            return None;
        }
        let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{response}"));
        assert_eq!(body["status"], "success", "{query}: {body}");
        Some(body["data"]["result"].as_array().expect("results").clone())
    }

    /// The one value of a query.
    fn value(&self, query: &str) -> Option<f64> {
        let results = self.query(query)?;
        assert!(results.len() <= 1, "{query}: {results:?}");
        results.first()?["value"][1].as_str()?.parse().ok()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", fs::read_to_string(&self.log).unwrap_or_default());
        }
    }
}

/// A file of the examples.
fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/examples").join(name)
}

/// Verdict of `promtool` on a text or on files; none if it is not installed.
fn promtool(arguments: &[&OsStr], input: &str) -> Option<()> {
    let mut command = Command::new("promtool");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("left out: promtool, of the Debian package prometheus: {error}");
            return None;
        }
    };
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}");
    Some(())
}

/// The queries of the dashboard, for one target and all that it has.
fn queries_of_the_dashboard() -> BTreeSet<String> {
    let text = fs::read_to_string(example("grafana-dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let queries = targets.map(|target| {
        let query = target["expr"].as_str().unwrap();
        let query = query.replace("$instance", ".*").replace("$nqn", ".*");
        query.replace("$__rate_interval", "10s")
    });
    queries.collect()
}

fn work(namespace: &Namespace) {
    for at in 0..20 {
        namespace.read_to_vec(at * 4096, 4096).wait().unwrap();
        namespace.write(at * 4096, slice_of(&[7; 4096])).wait().result.unwrap();
    }
}

#[test]
fn prometheus_reads_the_counters_and_the_dashboard_shows_them() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = folder.path().join("shard.bin");
    fs::write(&file, Bytes::new(1).take(SIZE_BYTES)).unwrap();
    let address = free_address();
    let options = DaemonOptions::files([&file]).arg("--writable");
    let options = options.arg("--metrics-detail").arg("namespace");
    let daemon: Daemon = options.arg("--metrics").arg(address.to_string()).start();
    let Some(prometheus) = Prometheus::start(folder.path(), address) else { return };
    eventually("the target is read", || prometheus.value("up") == Some(1.0));

    let host = host().build().unwrap();
    let namespace = daemon.open(&host);
    let stats = |name: &str| daemon.stats()["io"][name].as_f64().unwrap();
    work(&namespace);
    for (metric, counter) in [
        ("feedrail_namespace_read_bytes_total", "read_bytes"),
        ("feedrail_namespace_writes_total", "writes"),
        ("feedrail_namespace_write_seconds_count", "writes"),
        ("feedrail_io_written_bytes_total", "written_bytes"),
    ] {
        let expected = stats(counter);
        eventually(metric, || prometheus.value(metric) == Some(expected));
    }
    let size = format!("feedrail_subsystem_size_bytes{{nqn=\"{}\"}}", daemon.nqn());
    assert_eq!(prometheus.value(&size), Some(SIZE_BYTES as f64));

    for query in queries_of_the_dashboard() {
        eventually(&query, || {
            work(&namespace);
            prometheus.query(&query).is_some_and(|results| !results.is_empty())
        });
    }
    let median = "histogram_quantile(0.5, rate(feedrail_namespace_read_seconds_bucket[10s]))";
    let seconds = prometheus.value(median).expect("there were reads");
    assert!((0.0..17.0).contains(&seconds), "{seconds}");
}

/// The page in the older format has nothing that Prometheus' own checker dislikes.
#[test]
fn promtool_finds_no_fault_with_the_page() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = folder.path().join("shard \"1\"\\.bin");
    fs::write(&file, Bytes::new(1).take(SIZE_BYTES)).unwrap();
    let address = free_address();
    let options = DaemonOptions::files([&file]).arg("--writable");
    let options = options.arg("--metrics-detail").arg("namespace");
    let daemon: Daemon = options.arg("--metrics").arg(address.to_string()).start();
    let media = "text/plain; version=0.0.4; charset=utf-8";
    let arguments = ["check", "metrics"].map(OsStr::new);
    if promtool(&arguments, &metrics_text(address, media)).is_none() {
        return;
    }
    let host = host().build().unwrap();
    work(&daemon.open(&host));
    eventually("the namespace is told of", || {
        metrics_text(address, media).contains("\nfeedrail_namespace_write_seconds_count{")
    });
    promtool(&arguments, &metrics_text(address, media));
}

#[test]
fn alert_rules_are_valid_and_speak_of_what_there_is() {
    let rules = example("prometheus-alerts.yml");
    let text = fs::read_to_string(&rules).unwrap();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = folder.path().join("shard.bin");
    fs::write(&file, "bytes").unwrap();
    let address = free_address();
    let options = DaemonOptions::files([&file]).arg("--metrics").arg(address.to_string());
    let _daemon: Daemon = options.start();
    let families = OpenMetricsPage::scrape(address).families;
    let expressions = text.lines().filter(|line| !line.contains("description:"));
    let words = expressions.flat_map(|line| {
        line.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
    });
    let named: BTreeSet<_> = words.filter(|word| word.starts_with("feedrail_")).collect();
    assert!(named.len() > 5, "{named:?}");
    for name in named {
        let suffixes = ["", "_total", "_bucket"];
        let family = |suffix| name.strip_suffix(suffix).is_some_and(|of| families.contains_key(of));
        assert!(suffixes.into_iter().any(family), "no {name} on the page");
    }
    let Some(()) = promtool(&[OsStr::new("check"), OsStr::new("rules"), rules.as_os_str()], "")
    else {
        return;
    };
    let test =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/daemons/prometheus-alerts-test.yml");
    promtool(&[OsStr::new("test"), OsStr::new("rules"), test.as_os_str()], "");
}
