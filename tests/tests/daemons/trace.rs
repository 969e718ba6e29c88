//! Traces of commands: of a target, of a host, and of both together.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::thread;

use feedrail_tests::process::{
    Daemon, DaemonOptions, ManagementClient, eventually, feedrail, loopback_address,
    write_configuration,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const NQN: &str = "nqn.2026-01.io.feedrail:traced";
/// How long storage takes at least.
const DELAY_US: f64 = 500.0;

struct Traced {
    folder: TempDir,
    daemon: Daemon,
}

impl Traced {
    fn start(provider: &str) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let configuration = format!(
            "state_dir = \"state\"\nprovider = \"{provider}\"\nmanagement = \"socket\"\n\
             [[port]]\naddress = \"{}:4420\"\n\
             [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nkind = \"memory\"\nname = \"slow\"\nsize_bytes = \"4MiB\"\n\
             faults = {{ delay_us = {DELAY_US} }}\n",
            loopback_address()
        );
        let configuration = write_configuration(folder.path(), &configuration);
        let daemon = DaemonOptions::default().arg("--config").arg(configuration).start();
        let socket = folder.path().join("socket");
        eventually("the daemon has its management socket", || socket.exists());
        Self { folder, daemon }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn call(&self, params: &Value) -> Result<Value, Value> {
        let mut client = ManagementClient::connect(&PathBuf::from(self.path("socket")));
        client.call("feedrail_trace_commands", params)
    }

    /// Reads and writes with a trace of the host.
    fn work(&self, number_ios: &str) {
        let program = feedrail(["perf", "--rw", "randrw", "--allow-writes", "--bs", "4k"]);
        let program = program.args(["--iodepth", "4", "--number-ios", number_ios, "-n", NQN]);
        let program = program.args(["--trace", &self.path("host.json")]);
        program.args(self.daemon.address_options()).run().success();
    }
}

fn is_busy(error: &Value) -> bool {
    error["message"] == "another trace is being taken"
}

fn read(path: &str) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The slices of a trace by their names: how long each took, in us, and within which it was.
fn slices(trace: &Value) -> BTreeMap<String, Vec<(f64, Option<String>)>> {
    let mut open = BTreeMap::<&str, Vec<(&str, f64)>>::new();
    let mut slices = BTreeMap::<_, Vec<_>>::new();
    for event in trace["traceEvents"].as_array().unwrap() {
        let text = |name: &str| event[name].as_str().unwrap();
        let (name, at) = (text("name"), event["ts"].as_f64().unwrap());
        let stack = open.entry(text("id")).or_default();
        if text("ph") == "b" {
            stack.push((name, at));
        } else {
            let (begun, from) = stack.pop().expect("what ends has begun");
            assert_eq!(begun, name);
            assert!(from <= at, "{event}");
            let outer = stack.last().map(|&(outer, _)| outer.to_owned());
            slices.entry(name.to_owned()).or_default().push((at - from, outer));
        }
    }
    assert!(open.values().all(Vec::is_empty), "what begins ends");
    slices
}

#[test]
fn a_command_is_seen_on_both_sides() {
    for provider in ["soft", "auto"] {
        let traced = Traced::start(provider);
        // Both run at the same time as far as this machine lets them.
        let both = (0..20).find_map(|_| {
            let trace = feedrail(["target", "trace", "--time", "5", "--limit", "400"]);
            let trace = trace.args(["--file", &traced.path("target.json")]);
            let trace = trace.args(["--socket", &traced.path("socket")]);
            thread::scope(|scope| {
                let tracing = scope.spawn(|| trace.run().success());
                traced.work("4000");
                tracing.join().unwrap();
            });
            let merge = feedrail(["merge-traces", &traced.path("host.json")]);
            let merge = merge.args([&traced.path("target.json"), "--file"]);
            merge.args([traced.path("both.json")]).run().success();
            let both = slices(&read(&traced.path("both.json")));
            (both.get("target: read 4.00 KiB").is_some_and(|reads| reads.len() > 20))
                .then_some(both)
        });
        let both = both.expect("a trace while there is work");
        for kind in ["read", "write"] {
            let name = format!("{kind} 4.00 KiB");
            let at_target = &both[&format!("target: {name}")];
            let within = |(_, outer): &&(f64, Option<String>)| outer.as_ref() == Some(&name);
            assert!(at_target.iter().filter(within).count() > at_target.len() / 2, "{provider}");
            assert!(both[&name].iter().all(|(_, outer)| outer.is_none()));
        }
        // Each file is one that Perfetto reads, too. That of the target has its own times.
        let storage = &slices(&read(&traced.path("target.json")))["storage"];
        assert!(storage.iter().all(|(took, _)| *took >= DELAY_US), "{provider}: {storage:?}");
        assert!(!slices(&read(&traced.path("host.json"))).contains_key("storage"));
    }
}

#[test]
fn a_trace_has_what_was_asked_for() {
    let traced = Traced::start("soft");
    thread::scope(|scope| {
        let tracing = scope.spawn(|| traced.call(&json!({ "time_ms": 60_000, "limit": 50 })));
        // It ends when there are so many, however late it began.
        while !tracing.is_finished() {
            traced.work("100");
        }
        let trace = tracing.join().unwrap().unwrap();
        let commands = trace["commands"].as_array().unwrap();
        assert_eq!(commands.len(), 50);
        for command in commands {
            assert_eq!(command["subnqn"].as_str().unwrap_or(NQN), NQN);
            assert_eq!((&command["qid"], &command["nsid"]), (&json!(1), &json!(1)), "{command}");
            assert_eq!(command["length_bytes"], 4096);
            assert!(command["storage_ns"].as_u64().unwrap() >= 500_000, "{command}");
        }
    });
    // Without work the trace is empty.
    assert_eq!(
        traced.call(&json!({ "time_ms": 1 })).unwrap(),
        json!({ "commands": [], "dropped": 0 })
    );
    for (params, expected) in [
        (json!({}), "missing field `time_ms`"),
        (json!({ "time_ms": 0 }), "time_ms: is not between 1 and 60000"),
        (json!({ "time_ms": 60_001 }), "time_ms: is not between 1 and 60000"),
        (json!({ "time_ms": 1, "limit": 0 }), "limit: is not between 1 and 65536"),
        (json!({ "time_ms": 1, "limit": 65_537 }), "limit: is not between 1 and 65536"),
        (json!({ "time_ms": 1, "cid": 7 }), "unknown field `cid`"),
    ] {
        let error = traced.call(&params).unwrap_err();
        assert!(error["message"].as_str().unwrap().contains(expected), "{params}: {error}");
    }
}

#[test]
fn one_trace_is_taken_at_a_time_and_keeps_no_target_from_its_end() {
    let traced = Traced::start("soft");
    let Traced { folder, daemon } = traced;
    let socket = folder.path().join("socket");
    let call =
        |params: &Value| ManagementClient::connect(&socket).call("feedrail_trace_commands", params);
    thread::scope(|scope| {
        let tracing = scope.spawn(|| {
            // The others may be first.
            while call(&json!({ "time_ms": 60_000 })).is_err_and(|error| is_busy(&error)) {}
        });
        eventually("another one is refused", || {
            call(&json!({ "time_ms": 1 })).is_err_and(|error| is_busy(&error))
        });
        let (status, _) = daemon.terminate();
        assert!(status.success());
        // It has what there was, or no answer.
        drop(tracing.join());
    });
}
