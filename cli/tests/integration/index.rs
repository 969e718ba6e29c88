//! `feedrail index` and `feedrail manifest`, from files and from a daemon in another process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use feedrail_dataset::formats::{ShardBytes, npz_arrays};
use feedrail_dataset::index::Index;
use feedrail_dataset::manifest::Manifest;
use feedrail_tests::process::{
    Daemon, DaemonOptions, Outcome, binary, eventually, feedrail, loopback_address,
    write_configuration,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// One shard of each format, and Megatron's `.idx`.
const SHARDS: [&str; 10] = [
    "arrays.npz",
    "gnu.tar",
    "megatron.bin",
    "megatron.idx",
    "model.safetensors",
    "nanogpt.bin",
    "records.tfrecord",
    "rows.npy",
    "table.parquet",
    "pax.tar",
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../dataset/tests/data/formats").join(name)
}

/// A folder of shards, and a place for indexes and manifests.
struct DataSet {
    shards: TempDir,
    outputs: TempDir,
}

impl DataSet {
    fn new(names: &[&str]) -> Self {
        let shards = tempfile::tempdir().unwrap();
        for name in names {
            let to = Path::new(name).file_name().unwrap();
            fs::copy(fixture(name), shards.path().join(to)).unwrap();
        }
        Self { shards, outputs: tempfile::tempdir().unwrap() }
    }

    fn folder(&self) -> &str {
        self.shards.path().to_str().unwrap()
    }

    fn output(&self, name: &str) -> PathBuf {
        self.outputs.path().join(name)
    }

    /// Exports all files, in an order that is not that of their names.
    fn export(&self) -> Daemon {
        let entries = fs::read_dir(self.shards.path()).unwrap();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files.reverse();
        Daemon::serving(files)
    }

    fn run(&self, verb: &str, output: &str, more: &[&str]) -> Outcome {
        let output = self.output(output);
        let options = ["--output", output.to_str().unwrap(), "-o", "json"];
        feedrail([verb]).args(more).args(options).run()
    }

    fn index(&self, output: &str, more: &[&str]) -> Vec<u8> {
        self.run("index", output, &[more, &["--block-size", "16"]].concat()).success();
        fs::read(self.output(output)).unwrap()
    }

    fn manifest(&self, output: &str, more: &[&str]) -> Value {
        let more = [more, &["--name", "set", "--provider", "soft"]].concat();
        self.run("manifest", output, &more).success();
        let json = fs::read(self.output(output)).unwrap();
        Manifest::parse(&json).expect("a valid manifest");
        serde_json::from_slice(&json).unwrap()
    }
}

/// Whether two indexes have the same samples of shards of the same names and sizes, whatever else a
/// target tells of them.
fn same_samples(one: &[u8], other: &[u8]) -> bool {
    let parsed = [one, other].map(|file| Index::parse(file).unwrap());
    let named = parsed.each_ref().map(|index| {
        let shards = index.shards().expect("a table").shards().iter();
        shards.map(|shard| (shard.name.clone(), shard.bytes, shard.samples)).collect::<Vec<_>>()
    });
    let [one, other] = parsed.each_ref().map(Index::samples);
    one == other && named[0] == named[1]
}

fn url(daemon: &Daemon) -> String {
    format!("nvmf://{}/{}", daemon.address(), daemon.nqn())
}

#[test]
fn the_index_of_a_target_is_that_of_the_files() {
    let set = DataSet::new(&SHARDS);
    let daemon = set.export();
    for crc in [&[][..], &["--crc"]] {
        let local = set.index("local.npy", &[crc, &[set.folder()]].concat());
        let remote = set.index("remote.npy", &[crc, &[&url(&daemon)]].concat());
        assert!(same_samples(&local, &remote), "{crc:?}");
        let index = Index::parse(&local).unwrap();
        let samples = index.samples();
        // 3 arrays, 5 samples in each archive, 6 sequences, 4 tensors, 18 blocks, 4 records, 4
        // rows, 3 row groups.
        assert_eq!(samples.len(), 3 + 5 + 6 + 4 + 18 + 5 + 4 + 4 + 3);
        let shards: Vec<u32> = samples.iter().map(|sample| sample.shard.get()).collect();
        assert!(shards.is_sorted() && shards.last() == Some(&8), "{shards:?}");
        assert_eq!(crc.is_empty(), samples.iter().all(|sample| sample.crc32c.get() == 0));
    }
}

#[test]
fn one_namespace_is_indexed_by_name_or_identifier() {
    let set = DataSet::new(&SHARDS);
    let daemon = set.export();
    let of_file =
        |name: &str| set.index("a.npy", &[set.shards.path().join(name).to_str().unwrap()]);
    for name in ["pax.tar", "megatron.bin"] {
        let remote = set.index("b.npy", &[&format!("{}/{name}", url(&daemon))]);
        assert!(same_samples(&of_file(name), &remote));
    }
    let listed = feedrail(["list", "-o", "json"]).args(daemon.address_options()).run().success();
    let listed: Value = serde_json::from_slice(&listed).unwrap();
    let found = listed["namespaces"].as_array().unwrap().iter();
    let nsid = found.clone().find(|found| found["name"] == "rows.npy").unwrap()["nsid"].clone();
    let remote = set.index("b.npy", &[&format!("{}/nsid:{nsid}", url(&daemon))]);
    assert!(same_samples(&of_file("rows.npy"), &remote));
    let number = set.run("index", "c.npy", &[&format!("{}/{nsid}", url(&daemon))]).failure();
    assert!(number.contains("nsid:"), "{number}");
    let missing = set.run("index", "c.npy", &[&format!("{}/missing.tar", url(&daemon))]);
    assert!(missing.failure().contains("no such namespace"));
}

#[test]
fn a_folder_of_mds_is_in_the_order_of_its_index() {
    let names = ["mds/index.json", "mds/shard.00001.mds", "mds/shard.00000.mds"];
    let set = DataSet::new(&names);
    fs::write(set.shards.path().join("readme.txt"), "no shard").unwrap();
    let local = set.index("local.npy", &[set.folder()]);
    assert_eq!(Index::parse(&local).unwrap().len(), 10);
    assert!(same_samples(&local, &set.index("remote.npy", &[&url(&set.export())])));
    let compressed = DataSet::new(&["mds-zstd/index.json", "mds-zstd/shard.00000.mds.zstd"]);
    let line = compressed.run("index", "a.npy", &[compressed.folder()]).failure();
    assert!(line.contains("compression=None"), "{line}");
    fs::write(set.shards.path().join("shard.00001.mds"), "short").unwrap();
    let line = set.run("index", "a.npy", &[set.folder()]).failure();
    assert!(line.contains("shard.00001.mds has 5 bytes, but index.json says 434"), "{line}");
}

#[test]
fn an_index_of_a_folder_names_its_shards_and_a_manifest_finds_them() {
    let set = DataSet::new(&["gnu.tar", "rows.npy"]);
    let folder = set.shards.path();
    fs::create_dir_all(folder.join("x/.hidden")).unwrap();
    fs::rename(folder.join("rows.npy"), folder.join("x/rows.npy")).unwrap();
    fs::copy(folder.join("gnu.tar"), folder.join("x/.hidden/a.tar")).unwrap();
    fs::write(folder.join("a.tar"), "").unwrap();
    let index = set.index("index.npy", &[set.folder()]);
    let index = Index::parse(&index).unwrap();
    let names = |index: &Index<_>| {
        let shards = index.shards().unwrap().shards().iter();
        shards.map(|shard| (shard.name.to_string(), shard.samples)).collect::<Vec<_>>()
    };
    assert_eq!(names(&index), [("gnu.tar".to_owned(), 5), ("x/rows.npy".to_owned(), 4)]);
    // The target exports the folder without the empty file, and another order is no difference.
    let (_place, daemon) = replica(folder, "");
    set.manifest(
        "manifest.json",
        &["--index", set.output("index.npy").to_str().unwrap(), &url(&daemon)],
    );
    let [one, other] = ["x/rows.npy", "gnu.tar"].map(|name| format!("{}/{name}", url(&daemon)));
    let index = set.output("index.npy");
    let reversed = set.manifest("b.json", &["--index", index.to_str().unwrap(), &one, &other]);
    assert_eq!(reversed["shards"][0]["name"], "x/rows.npy");
    // Its warning would be a second line.
    fs::remove_file(folder.join("a.tar")).unwrap();
    let mut bytes = fs::read(folder.join("x/rows.npy")).unwrap();
    bytes.push(0);
    fs::write(folder.join("x/rows.npy"), bytes).unwrap();
    let target = format!("a={}", url(&daemon));
    let arguments = ["--name", "set", "--index", index.to_str().unwrap(), set.folder(), "--target"];
    let line = set.run("manifest", "c.json", &[&arguments[..], &[&target]].concat()).failure();
    assert!(line.contains("x/rows.npy has the size"), "{line}");
}

#[test]
fn indexes_of_mds_that_were_merged_name_folders() {
    let set = DataSet::new(&["mds/index.json", "mds/shard.00001.mds", "mds/shard.00000.mds"]);
    let folder = set.shards.path();
    let merged = fs::read_to_string(folder.join("index.json")).unwrap();
    for (part, shard) in [("0", "shard.00000.mds"), ("1", "shard.00001.mds")] {
        fs::create_dir(folder.join(part)).unwrap();
        fs::rename(folder.join(shard), folder.join(part).join(shard)).unwrap();
    }
    fs::copy(folder.join("index.json"), folder.join("0/index.json")).unwrap();
    let merged = merged
        .replace("shard.00000.mds", "0/shard.00000.mds")
        .replace("shard.00001.mds", "1/shard.00001.mds");
    fs::write(folder.join("index.json"), merged).unwrap();
    let local = set.index("local.npy", &[set.folder()]);
    assert_eq!(Index::parse(&local).unwrap().len(), 10);
    let (_place, daemon) = replica(folder, "");
    assert!(same_samples(&local, &set.index("remote.npy", &[&url(&daemon)])));
}

#[test]
fn a_truncated_shard_is_an_error_and_the_old_index_stays() {
    let set = DataSet::new(&["gnu.tar", "rows.npy"]);
    let shard = set.shards.path().join("gnu.tar");
    let bytes = fs::read(&shard).unwrap();
    fs::write(&shard, &bytes[..bytes.len() / 2]).unwrap();
    fs::write(set.output("index.npy"), "old").unwrap();
    for crc in [&[][..], &["--crc"]] {
        let line = set.run("index", "index.npy", &[crc, &[set.folder()]].concat()).failure();
        assert!(line.contains("gnu.tar: shard 0, offset "), "{line}");
        assert!(line.contains(&format!("ends at {}", bytes.len() / 2)), "{line}");
    }
    assert_eq!(fs::read(set.output("index.npy")).unwrap(), b"old");
    assert_eq!(fs::read_dir(set.outputs.path()).unwrap().count(), 1);
}

#[test]
fn a_file_of_no_known_format_is_an_error_unless_it_is_told() {
    let set = DataSet::new(&["nanogpt.bin"]);
    let (bin, other) = (set.shards.path().join("nanogpt.bin"), set.shards.path().join("tokens"));
    fs::rename(bin, &other).unwrap();
    let line = set.run("index", "a.npy", &[set.folder()]).failure();
    assert!(line.contains("tokens: shard 0, offset 0: expected the first bytes or"), "{line}");
    assert!(line.contains("--format"), "{line}");
    let index = set.index("a.npy", &[set.folder(), "--format", "tokens", "--stride", "1"]);
    assert_eq!(Index::parse(&index).unwrap().len(), 301 - 16);
    let index = set.index("a.npy", &[set.folder(), "--format", "tokens", "--dtype", "uint8"]);
    assert_eq!(Index::parse(&index).unwrap().len(), (602 - 17) / 16 + 1);
}

/// Removes what only a target knows.
fn without_target(mut manifest: Value) -> Value {
    for shard in manifest["shards"].as_array_mut().unwrap() {
        let shard = shard.as_object_mut().unwrap();
        assert!(shard.remove("uuid").is_some() == shard.remove("generation").is_some());
    }
    manifest.as_object_mut().unwrap().remove("hash");
    manifest
}

#[test]
fn the_manifest_of_a_target_is_that_of_the_files_but_for_what_it_alone_knows() {
    let set = DataSet::new(&SHARDS);
    let daemon = set.export();
    let url = url(&daemon);
    set.index("index.npy", &[set.folder()]);
    let index = set.output("index.npy");
    let common = ["--index", index.to_str().unwrap(), "--crc"];
    let target = format!("a={url}");
    let remote = set.manifest("remote.json", &[&common[..], &[&url, "--target", &target]].concat());
    let local =
        set.manifest("local.json", &[&common[..], &[set.folder(), "--target", &target]].concat());
    let shards = remote["shards"].as_array().unwrap();
    assert_eq!(shards.len(), 9);
    for shard in shards {
        let bytes = fs::read(set.shards.path().join(shard["name"].as_str().unwrap())).unwrap();
        assert_eq!(shard["bytes"], bytes.len());
        assert_eq!(shard["crc32c"], format!("{:08x}", crc32c::crc32c(&bytes)));
        assert!(shard["uuid"].is_string() && shard["generation"].is_string(), "{shard}");
        assert_eq!(shard["replicas"], serde_json::json!(["a"]));
    }
    assert_eq!(remote["index"]["samples"], 52);
    assert_eq!(without_target(remote), without_target(local));
}

#[test]
fn targets_that_export_the_same_shards_are_replicas() {
    let set = DataSet::new(&["gnu.tar", "rows.npy"]);
    let (one, other) = (set.export(), set.export());
    let urls = [url(&one), url(&other)];
    let manifest = set.manifest("a.json", &[&urls[0], &urls[1], "--crc"]);
    assert_eq!(manifest["targets"].as_object().unwrap().len(), 2);
    for shard in manifest["shards"].as_array().unwrap() {
        assert_eq!(shard["replicas"], serde_json::json!(["target-1", "target-2"]));
    }
    let changed = DataSet::new(&["gnu.tar", "rows.npy"]);
    let shard = changed.shards.path().join("rows.npy");
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, bytes).unwrap();
    let third = changed.export();
    let third = url(&third);
    let run = |more: &[&str]| {
        let arguments = [&["--name", "set", "--provider", "soft", &urls[0], &third], more].concat();
        set.run("manifest", "b.json", &arguments).failure()
    };
    let line = run(&["--crc"]);
    assert!(line.contains("rows.npy has the CRC-32C") && line.contains(" on target-2"), "{line}");
    let line = run(&[]);
    assert!(line.contains("compare the bytes with --crc"), "{line}");
    assert!(!set.output("b.json").exists());
}

/// A target that says that its directory is the same data set as others'.
fn replica(folder: &Path, content_id: &str) -> (TempDir, Daemon) {
    let configuration = format!(
        r#"
        [[port]]
        address = "{}:4420"

        [[subsystem]]
        nqn = "nqn.2026-01.org.example:replicas"
        dataset_id = "2f1d6a52-6a0c-4d0e-8e53-6d7a2c9b1f40"
        allow_any_host = true
        [[subsystem.directory]]
        path = "{}"
        {content_id}
        "#,
        loopback_address(),
        folder.display(),
    );
    let place = tempfile::tempdir().unwrap();
    let file = write_configuration(place.path(), &configuration);
    let daemon = DaemonOptions::default().arg("--config").arg(file).start();
    (place, daemon)
}

#[test]
fn replicas_of_two_generations_need_the_comparison_of_their_bytes() {
    let (set, copy) = (DataSet::new(&["rows.npy"]), DataSet::new(&["rows.npy"]));
    let copies = |content_id| [&set, &copy].map(|set| replica(set.shards.path(), content_id));
    let replicas = copies("");
    let [one, other] = replicas.each_ref().map(|(_, daemon)| url(daemon));
    let arguments = ["--name", "set", "--provider", "soft", &one, &other];
    let line = set.run("manifest", "a.json", &arguments).failure();
    assert!(
        line.contains("rows.npy has the generation ") && line.contains("on target-1"),
        "{line}"
    );
    assert!(!set.output("a.json").exists());
    let compared = set.manifest("a.json", &["--crc", &one, &other]);
    assert_eq!(compared["shards"][0]["generation"], Value::Null);
    assert!(compared["shards"][0]["uuid"].is_string(), "{compared}");
    let named = copies("content_id = \"v1\"");
    let [one, other] = named.each_ref().map(|(_, daemon)| url(daemon));
    let agreed = set.manifest("b.json", &[&one, &other]);
    assert!(agreed["shards"][0]["generation"].is_string(), "{agreed}");
    assert_eq!(agreed["shards"][0]["replicas"], serde_json::json!(["target-1", "target-2"]));
}

#[test]
fn a_manifest_that_would_lie_is_an_error() {
    let set = DataSet::new(&["gnu.tar", "rows.npy"]);
    let run = |more: &[&str]| {
        let arguments = [&["--name", "set"], more].concat();
        set.run("manifest", "a.json", &arguments).failure()
    };
    assert!(run(&[set.folder()]).contains("--target"));
    set.index("index.npy", &[set.folder()]);
    let target = ["--target", "nvmf://192.0.2.1/nqn.2026-01.org.example:a"];
    let index = set.output("index.npy");
    let with_index = [&["--index", index.to_str().unwrap()], &target[..]].concat();
    let tar = set.shards.path().join("gnu.tar");
    let line = run(&[&with_index[..], &[tar.to_str().unwrap()]].concat());
    assert!(line.contains("samples of rows.npy, which is not among the 1 shards"), "{line}");
    let elsewhere = tempfile::tempdir().unwrap();
    let moved = elsewhere.path().join("index.npy");
    fs::copy(index, &moved).unwrap();
    let with_moved = [&["--index", moved.to_str().unwrap(), set.folder()], &target[..]].concat();
    assert!(run(&with_moved).contains("not in the folder of the manifest"));
}

/// A target of memory that starts each operation after a second.
fn slow_target(folder: &TempDir) -> Daemon {
    let configuration = format!(
        r#"
        [[port]]
        address = "{}:4420"

        [[subsystem]]
        nqn = "nqn.2026-01.org.example:slow"
        allow_any_host = true
        [[subsystem.namespace]]
        kind = "memory"
        size_bytes = "64MiB"
        faults = {{ delay_us = 1_000_000 }}
        "#,
        loopback_address(),
    );
    let file = write_configuration(folder.path(), &configuration);
    DaemonOptions::default().arg("--config").arg(file).start()
}

#[test]
fn an_interrupted_command_keeps_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = slow_target(&folder);
    let outputs = tempfile::tempdir().unwrap();
    let output = outputs.path().join("output");
    fs::write(&output, "old").unwrap();
    let url = url(&daemon);
    for command in
        [&["index", "--format", "tokens", "--crc"][..], &["manifest", "--name", "set", "--crc"]]
    {
        let child = Command::new(binary("feedrail"))
            .args(command)
            .args([&url, "--provider", "soft", "--output", output.to_str().unwrap()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // At most 8 MiB are read in each second, so it cannot be over by then.
        eventually("signals are handled", || handles_interrupts(child.id()));
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        let ended = child.wait_with_output().unwrap();
        let line = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(130), "{command:?}: {line}");
        assert!(line.contains("output was not written: interrupted"), "{command:?}: {line}");
        assert_eq!(line.lines().count(), 1, "{line}");
        assert_eq!(fs::read(&output).unwrap(), b"old");
        assert_eq!(fs::read_dir(outputs.path()).unwrap().count(), 1);
    }
}

fn handles_interrupts(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
    mask & (1 << (Signal::INT.as_raw() - 1)) != 0
}

#[test]
fn keys_are_written_beside_the_index() {
    let set = DataSet::new(&["gnu.tar", "rows.npy"]);
    let keys = set.output("keys.npz");
    let index = set.index("index.npy", &[set.folder(), "--keys", keys.to_str().unwrap()]);
    let samples = Index::parse(&*index).unwrap().samples().len() as u64;
    let file = fs::read(&keys).unwrap();
    let arrays = npz_arrays(ShardBytes::new(0, &file)).unwrap();
    let length = |name: &str| {
        let array = arrays.iter().find(|array| array.name == name).unwrap();
        array.npy.items().length()
    };
    assert_eq!(length("key_offsets"), 8 * (samples + 1));
    assert_eq!(length("member_rows"), 8 * (samples + 1));
    assert!(length("key_bytes") > 0 && length("member_begin") > 0);
}
