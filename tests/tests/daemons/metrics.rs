//! The counters as an HTTP page, as Prometheus reads them.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use feedrail_initiator::{ErrorKind, SubsystemAddress};
use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, OpenMetricsPage, SetWhenDropped, eventually, free_address, host,
    loopback_address, slice_of, write_configuration,
};
use nvme_proto::Nsid;

const SIZE_BYTES: usize = 1 << 20;

struct Scraped {
    daemon: Daemon,
    address: SocketAddr,
}

impl Scraped {
    fn start(file: &Path) -> Self {
        let address = free_address();
        let options = DaemonOptions::files([file]).arg("--writable");
        let options = options.arg("--metrics-detail").arg("namespace");
        let daemon = options.arg("--metrics").arg(address.to_string()).start();
        Self { daemon, address }
    }

    fn page(&self) -> OpenMetricsPage {
        OpenMetricsPage::scrape(self.address)
    }
}

fn file(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("shard \"1\"");
    std::fs::write(&path, Bytes::new(1).take(SIZE_BYTES)).unwrap();
    path
}

#[test]
fn counters_are_what_hosts_did() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let scraped = Scraped::start(&file(folder.path()));
    let nqn = scraped.daemon.nqn().to_owned();
    let before = scraped.page();
    assert_eq!(before.get("feedrail_connections"), 0.0);
    let of_subsystem = |name: &str| format!("feedrail_subsystem_{name}_total{{nqn=\"{nqn}\"}}");
    assert_eq!(before.get(&of_subsystem("failed")), 0.0);
    let size = format!("feedrail_subsystem_size_bytes{{nqn=\"{nqn}\"}}");
    assert_eq!(before.get(&size), SIZE_BYTES as f64);
    // Nothing was done yet.
    assert!(!before.samples.contains_key(&of_subsystem("reads")));
    assert!(!before.samples.keys().any(|series| series.starts_with("feedrail_namespace_")));

    let host = host().build().unwrap();
    let namespace = scraped.daemon.open(&host);
    // What was read to open it.
    eventually("the page is new", || scraped.page().get("feedrail_connections") > 0.0);
    let opened = scraped.page();
    for at in 0..10 {
        namespace.read_to_vec(at * 4096, 4096).wait().unwrap();
    }
    namespace.write(8192, slice_of(&[7; 512])).wait().result.unwrap();
    namespace.flush().wait().unwrap();
    let read = opened.get(&of_subsystem("read_bytes")) + 40_960.0;
    eventually("the page is new", || scraped.page().get(&of_subsystem("flushes")) > 0.0);
    let after = scraped.page();
    assert_eq!(after.get(&of_subsystem("read_bytes")), read);
    assert_eq!(after.get("feedrail_io_read_bytes_total"), read);
    assert_eq!(after.get(&of_subsystem("written_bytes")), 512.0);
    let of_namespace = |name: &str| {
        format!("feedrail_namespace_{name}{{nqn=\"{nqn}\",nsid=\"1\",name=\"shard \\\"1\\\"\"}}")
    };
    assert_eq!(after.get(&of_namespace("read_bytes_total")), read);
    assert_eq!(after.get(&of_namespace("flushes_total")), 1.0);
    let count = after.get(&of_namespace("reads_total"));
    assert_eq!(after.get(&of_namespace("read_seconds_count")), count);
    assert_eq!(after.get(&of_namespace("size_bytes")), SIZE_BYTES as f64);
    let of_reads = format!("feedrail_subsystem_read_seconds_count{{nqn=\"{nqn}\"}}");
    assert_eq!(after.get(&of_reads), count);
    let endless = of_namespace("read_seconds_bucket").replace('}', ",le=\"+Inf\"}");
    assert_eq!(after.get(&endless), count);
    assert_eq!(after.get("feedrail_associations"), 1.0);
    let turns = |page: &OpenMetricsPage| page.get("feedrail_turn_seconds_count{core=\"0\"}");
    assert!(turns(&after) > turns(&opened), "each command takes a turn");
    assert_eq!(after.get("feedrail_connections_accepted_total"), after.get("feedrail_connections"));
    let names: BTreeSet<_> = before.families.keys().collect();
    assert_eq!(names, after.families.keys().collect(), "families are there from the start");
    // The same counters as those of the line on standard output.
    let stats = scraped.daemon.stats();
    assert_eq!(stats["io"]["read_bytes"], serde_json::json!(read as u64));
}

/// Scrapes that never end, and many concurrent ones, cost hosts nothing.
#[test]
fn bad_clients_hold_up_nobody() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let scraped = Scraped::start(&file(folder.path()));
    let host = host().build().unwrap();
    let namespace = scraped.daemon.open(&host);
    let descriptors = scraped.daemon.vitals().descriptors;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over_at_the_end = SetWhenDropped(&over);
        for kind in 0..4_u64 {
            let (over, address) = (&over, scraped.address);
            scope.spawn(move || {
                let mut kept = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let Ok(mut stream) = TcpStream::connect(address) else { continue };
                    // Any of these may find the connection closed.
                    let _ = match kind {
                        0 => stream.write_all(b"GET /metrics HTTP/1.1\r\nHost"),
                        1 => stream.write_all(&Bytes::new(kind).take(20_000)),
                        2 => stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n"),
                        _ => Ok(()),
                    };
                    kept.push(stream);
                    if kept.len() > 50 {
                        kept.clear();
                    }
                }
            });
        }
        for _ in 0..1000 {
            namespace.read_to_vec(0, 4096).wait().unwrap();
        }
    });
    eventually("clients have left", || scraped.daemon.vitals().descriptors <= descriptors);
    assert!(scraped.page().get("feedrail_io_reads_total") >= 1000.0);
    let (status, _) = scraped.daemon.terminate();
    assert!(status.success());
}

#[test]
fn an_address_in_use_is_told() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let taken = TcpListener::bind((feedrail_tests::process::loopback_address(), 0)).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let options = DaemonOptions::files([file(folder.path())]).arg("--metrics").arg(&address);
    let ended = options.try_start().unwrap_err();
    assert_eq!(ended.status.code(), Some(1));
    let reason = format!("metrics: cannot listen on {address}: Address already in use");
    assert!(ended.stderr.contains(&reason), "{}", ended.stderr);
    assert!(ended.stderr.contains("--metrics"), "{}", ended.stderr);
}

/// Errors of storage are counted, by namespace.
#[test]
fn errors_of_storage_are_counted_by_namespace() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = file(folder.path());
    let scraped = Scraped::start(&path);
    let host = host().build().unwrap();
    let namespace = scraped.daemon.connect(&host).namespace(Nsid(1)).wait().unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let error = namespace.read_to_vec(8192, 4096).wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Status(_)), "{error}");
    let labels = format!("nqn=\"{}\",nsid=\"1\",name=\"shard \\\"1\\\"\"", scraped.daemon.nqn());
    let errors = format!("feedrail_namespace_storage_errors_total{{{labels},operation=\"read\"}}");
    eventually("it is counted", || scraped.page().get(&errors) > 0.0);
    assert_eq!(scraped.page().get(&format!("feedrail_namespace_shrank{{{labels}}}")), 1.0);
}

/// Hosts that are kept out show in the counters of the subsystem that they ask for.
#[test]
fn refused_connects_are_counted_by_subsystem() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (target, address) = (loopback_address(), free_address());
    let [open, closed] = ["open", "closed"].map(|name| format!("nqn.2026-01.io.feedrail:{name}"));
    let subsystem = |nqn: &str, hosts: &str| {
        format!(
            "[[subsystem]]\nnqn = \"{nqn}\"\n{hosts}\n[[subsystem.namespace]]\nkind = \"null\"\n\
             size_bytes = \"1MiB\"\n"
        )
    };
    let text = format!(
        "metrics = \"{address}\"\nstate_dir = \"state\"\n[[port]]\naddress = \"{target}:4420\"\n{}{}",
        subsystem(&open, "allow_any_host = true"),
        subsystem(&closed, "allowed_hosts = []"),
    );
    let configuration = write_configuration(folder.path(), &text);
    let daemon = DaemonOptions::default().arg("--config").arg(configuration).start();
    let failed = |nqn: &str| {
        let series = format!("feedrail_subsystem_failed_total{{nqn=\"{nqn}\"}}");
        OpenMetricsPage::scrape(address).get(&series)
    };
    assert_eq!((failed(&open), failed(&closed)), (0.0, 0.0));
    let host = host().build().unwrap();
    let connect = |nqn: &str| {
        let nqn = nqn.parse().unwrap();
        host.connect(SubsystemAddress { address: daemon.address(), nqn }).wait()
    };
    // Ended earlier, a command of the connection's start would have failed.
    let _connected = connect(&open).unwrap();
    connect(&closed).unwrap_err();
    connect("nqn.2026-01.io.feedrail:nowhere").unwrap_err();
    eventually("it is counted", || failed(&closed) > 0.0);
    assert_eq!(failed(&open), 0.0);
    let all = OpenMetricsPage::scrape(address).get("feedrail_io_failed_total");
    assert!(all > failed(&closed), "those of unknown names are in the sum");
}
