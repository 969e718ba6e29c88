//! Manifests against one that Python wrote, and manifests that lie.

use std::io::Cursor;

use proptest::prelude::*;

use super::*;
use crate::index::IndexWriter;

/// Written by Python's `json.dumps(sort_keys=True, indent=2, ensure_ascii=False)`; its hash is that
/// of Python's package blake3, computed as the documentation of the module says.
const PYTHON: &str = include_str!("../../tests/data/manifest.json");

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn parsed(json: &str) -> Result<Manifest, Error> {
    Manifest::parse(json.as_bytes())
}

/// The parts of Python's manifest, changed.
fn changed(change: impl FnOnce(&mut ManifestFile)) -> Result<Manifest, Error> {
    let mut file = parsed(PYTHON).expect("valid").to_file();
    change(&mut file);
    Manifest::new(file)
}

/// Python's manifest with one text instead of another, and what is wrong with it.
fn error_with(from: &str, to: &str) -> String {
    assert!(PYTHON.contains(from), "{from}");
    parsed(&PYTHON.replacen(from, to, 1)).expect_err(to).to_string()
}

#[test]
fn a_manifest_of_python_is_read_and_written() {
    let manifest = parsed(PYTHON).expect("valid");
    assert_eq!(manifest.name().as_str(), "größe \"1\"");
    assert_eq!(manifest.to_json(), PYTHON);
    let [(a, target), (b, _)] = manifest.targets() else { panic!("two targets") };
    assert_eq!((a.as_str(), b.as_str()), ("a", "b"));
    assert_eq!(target.url.to_string(), "nvmf://192.0.2.1");
    assert_eq!(target.nqn.as_str(), "nqn.2026-01.org.example:a");
    let [tar, other] = manifest.shards() else { panic!("two shards") };
    assert_eq!(tar.replicas, [TargetIndex(1), TargetIndex(0)]);
    assert_eq!((tar.generation, tar.crc32c), (Some(Generation(255)), Some(Crc32c(0x9A71_BB4C))));
    assert_eq!((other.generation, other.crc32c, other.uuid), (None, None, None));
    assert_eq!(manifest.shard_bytes(), [256_000_492, 1]);
    assert_eq!(manifest.index().expect("has one").file.as_str(), "sub/index.npy");
    let content = "blake3:ff19beffcf7b0d3539f40fdbc1522902496e510e2c74339627e3666d40779ac4";
    assert_eq!(manifest.content_hash().to_string(), content);
}

#[test]
fn a_target_may_have_key_files_and_no_keys() {
    let manifest = changed(|file| {
        for target in file.targets.values_mut() {
            target.dhchap_secret_file = Some("/etc/feedrail/host.key".parse().expect("a path"));
        }
    });
    let text = manifest.expect("valid").to_json();
    assert!(text.contains("\"dhchap_secret_file\": \"/etc/feedrail/host.key\""), "{text}");
    let again = parsed(&text).expect("the hash is of all that is there");
    assert_eq!(again.to_json(), text);
    let key = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    let error = parsed(&text.replace("/etc/feedrail/host.key", key)).unwrap_err().to_string();
    assert!(error.contains("names the file of a key") && !error.contains("AwQFBg"), "{error}");
}

#[test]
fn a_name_with_marks_is_written_as_it_is() {
    // A mark that is shown with the letter before it, and not by itself.
    let nqn = "nqn.2026-01.org.example:a\u{6ed}";
    let manifest = changed(|file| {
        file.targets.values_mut().for_each(|target| target.nqn = nqn.parse().expect("a name"));
    });
    let manifest = manifest.expect("valid");
    assert!(manifest.to_json().contains(nqn));
    assert_eq!(parsed(&manifest.to_json()).expect("what was written"), manifest);
}

#[test]
fn a_manifest_knows_its_index() {
    let manifest = parsed(PYTHON).expect("valid");
    let mut file = include_bytes!("../../tests/data/npy/three.npy").to_vec();
    manifest.check_index(&Index::parse(&file).expect("whole")).expect("its own");
    *file.last_mut().expect("not empty") ^= 1;
    let other = manifest.check_index(&Index::parse(&file).expect("whole"));
    assert!(matches!(other, Err(Error::IndexHash { .. })), "{other:?}");
    let none = IndexWriter::new(Cursor::new(Vec::new())).and_then(IndexWriter::finish);
    let none = Index::parse(none.expect("memory").into_inner()).expect("whole");
    let other = manifest.check_index(&none);
    assert!(matches!(other, Err(Error::IndexSamples { claimed: 3, found: 0 })), "{other:?}");
    let without = changed(|file| file.index = None).expect("valid");
    assert!(matches!(without.check_index(&none), Err(Error::NoIndex)));
}

#[test]
fn the_hash_covers_everything() {
    let hash = parsed(PYTHON).expect("valid").hash();
    let changes: [fn(&mut ManifestFile); 9] = [
        |file| file.name = name("other"),
        |file| file.index = None,
        |file| file.shards[0].bytes += 1,
        |file| file.shards[0].uuid = None,
        |file| file.shards[0].generation = Some(Generation(0)),
        |file| file.shards[0].crc32c = None,
        |file| file.shards[0].replicas.reverse(),
        |file| file.shards.reverse(),
        |file| file.targets.values_mut().for_each(|target| target.url.port += 1),
    ];
    for change in changes {
        assert_ne!(changed(change).expect("valid").hash(), hash);
    }
    assert_eq!(changed(|_| ()).expect("valid").hash(), hash);
}

#[test]
fn the_content_hash_leaves_out_where_shards_are() {
    let hash = parsed(PYTHON).expect("valid").content_hash();
    let content = |change: fn(&mut ManifestFile)| changed(change).expect("valid").content_hash();
    assert_eq!(content(|file| file.name = name("other")), hash);
    assert_eq!(content(|file| file.shards[0].replicas.truncate(1)), hash);
    assert_eq!(content(|file| file.shards[0].generation = None), hash);
    assert_eq!(content(|file| file.targets.values_mut().for_each(|t| t.url.port += 1)), hash);
    assert_ne!(content(|file| file.shards[0].bytes += 1), hash);
    assert_ne!(content(|file| file.shards[0].crc32c = None), hash);
    assert_ne!(content(|file| file.shards[0].name = name("1.tar")), hash);
    assert_ne!(content(|file| file.index = None), hash);
}

#[test]
fn a_changed_manifest_is_refused() {
    let error = error_with("256000492", "256000493");
    assert!(error.contains("it was changed after it was written"), "{error}");
    let error = error_with("\"hash\": \"blake3:c1", "\"hash\": \"blake3:c2");
    assert!(error.contains("claims the hash blake3:c2d4"), "{error}");
    let line = PYTHON.lines().nth(1).expect("the hash");
    assert!(matches!(parsed(&PYTHON.replace(line, "")), Err(Error::NoHash)));
}

#[test]
fn other_spellings_have_the_same_hash() {
    let upper = PYTHON.replace("67e55044", "67E55044").replace("9a71bb4c", "9A71BB4C");
    let upper = upper.replace("192.0.2.1\"", "192.0.2.1:4420/\"").replace("db8::2", "DB8:0::2");
    assert_eq!(parsed(&upper).expect("the same").to_json(), PYTHON);
}

#[test]
fn other_versions_are_refused() {
    for version in [0, 2, u64::MAX] {
        let json = format!("{{\"version\": {version}, \"new\": [1]}}");
        assert!(matches!(parsed(&json), Err(Error::Version(found)) if found == version));
    }
    assert!(matches!(changed(|file| file.version = 2), Err(Error::Version(2))));
    assert!(error_with("\"version\": 1", "\"version\": 1.0").contains("at line 39 column 16"));
}

#[test]
fn keys_are_those_of_the_format() {
    let unknown = "unknown field `x`";
    assert!(error_with("\"name\": \"größe", "\"x\": 1, \"name\": \"größe").contains(unknown));
    assert!(error_with("\"bytes\": 1,", "\"bytes\": 1, \"x\": 0,").contains(unknown));
    assert!(error_with("\"samples\": 3", "\"samples\": 3, \"x\": 0").contains(unknown));
    assert!(error_with("{\n      \"nqn\"", "{\"x\": 0, \"nqn\"").contains(unknown));
    assert!(error_with("\"bytes\": 1,", "").contains("missing field `bytes`"));
    let twice = error_with("\"bytes\": 1,", "\"bytes\": 1, \"bytes\": 1,");
    assert!(twice.contains("duplicate field `bytes`"), "{twice}");
    assert!(error_with("\"b\": {", "\"a\": {").contains("two targets are called a at line"));
}

#[test]
fn values_are_parsed() {
    for (from, to, error) in [
        ("nvmf://192", "nvme://192", "a URL begins with nvmf:// at line 32 column"),
        ("nqn.2026-01.org.example:a", "", "an NQN must not be empty"),
        ("67e55044", "67e5504", "invalid group length"),
        ("9a71bb4c", "+a71bb4c", "there should be 8 hexadecimal digits"),
        ("00000000000000ff", "ff", "there should be 16 hexadecimal digits"),
        ("blake3:a8", "sha256:a8", "a hash is \"blake3:\""),
        ("sub/index.npy", "../index.npy", "should be a relative path"),
        ("sub/index.npy", "/index.npy", "should be a relative path"),
        ("sub/index.npy", "sub\\\\index.npy", "should be a relative path"),
        ("000.tar", "", "a name must not be empty"),
        ("000.tar", "\\u0000", "must not contain control characters"),
        ("\"bytes\": 1", "\"bytes\": -1", "invalid value: integer `-1`, expected u64"),
        ("\"bytes\": 1", "\"bytes\": 1e3", "invalid type: floating point"),
        ("256000492", "99999999999999999999", "invalid type: floating point"),
    ] {
        let found = error_with(from, to);
        assert!(found.contains(error), "{to}: {found}");
    }
}

#[test]
fn parts_fit_together() {
    let error =
        |change: fn(&mut ManifestFile)| changed(change).expect_err("does not fit").to_string();
    assert_eq!(error(|file| file.shards.clear()), Error::NoShards.to_string());
    assert_eq!(
        error(|file| file.shards[1].name = name("000.tar")),
        "two shards are called 000.tar"
    );
    let bytes = error(|file| file.shards[0].bytes = 0);
    assert_eq!(bytes, "shard 000.tar should have 1 to 9223372036854775807 bytes, not 0");
    let bytes = error(|file| file.shards[0].bytes = 1 << 63);
    assert!(bytes.contains("not 9223372036854775808"), "{bytes}");
    let total = error(|file| file.shards.iter_mut().for_each(|shard| shard.bytes = u64::MAX));
    assert_eq!(total, Error::TotalBytes.to_string());
    let none = error(|file| file.shards[1].replicas.clear());
    assert_eq!(none, Error::NoReplicas(name("a\\b")).to_string());
    let unknown = error(|file| drop(file.targets.remove(&name("b"))));
    assert_eq!(unknown, "shard 000.tar has a replica on b, which is not among the targets");
    let twice = error(|file| file.shards[1].replicas.push(name("a")));
    assert_eq!(twice, "shard a\\b has two replicas on a");
    let samples = error(|file| file.index.as_mut().expect("has one").samples = u64::MAX / 40 + 1);
    assert!(samples.starts_with("an index cannot have"), "{samples}");
}

fn files() -> impl Strategy<Value = ManifestFile> {
    let hash = any::<[u8; 4]>().prop_map(|bytes| Blake3Hash::of(&bytes));
    let index = (hash, 0..1_u64 << 40).prop_map(|(hash, samples)| IndexEntry {
        file: "index.npy".parse().expect("a path"),
        hash,
        samples,
    });
    let shard = ("\\PC{1,20}", 1..1_u64 << 50, any::<(Option<u32>, Option<u64>, Option<u128>)>());
    let shards =
        prop::collection::vec((shard, prop::sample::subsequence(vec!["a", "b"], 1..=2)), 1..5);
    (prop::option::of(index), "\\PC{1,20}", shards).prop_filter_map(
        "a name twice",
        |(index, title, shards)| {
            let mut file = parsed(PYTHON).expect("valid").to_file();
            (file.index, file.name) = (index, title.parse().ok()?);
            file.shards.clear();
            for ((title, bytes, (crc, generation, uuid)), replicas) in shards {
                file.shards.push(ShardEntry {
                    bytes,
                    crc32c: crc.map(Crc32c),
                    generation: generation.map(Generation),
                    name: title.parse().ok()?,
                    replicas: replicas.into_iter().map(name).collect(),
                    uuid: uuid.map(uuid::Uuid::from_u128),
                });
            }
            Manifest::new(file.clone()).is_ok().then_some(file)
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read(file in files()) {
        let manifest = Manifest::new(file.clone()).expect("fits");
        let json = manifest.to_json();
        let again = parsed(&json).expect("just written");
        prop_assert_eq!(again.to_json(), json);
        prop_assert_eq!(again.to_file(), file);
        prop_assert_eq!(again, manifest);
    }

    #[test]
    fn no_bytes_cause_a_panic(bytes: Vec<u8>, at in 0..PYTHON.len(), byte: u8) {
        let _ = Manifest::parse(&bytes);
        let mut damaged = PYTHON.as_bytes().to_vec();
        damaged[at] = byte;
        if let Ok(manifest) = Manifest::parse(&damaged) {
            prop_assert_eq!(manifest.to_json(), PYTHON, "only blanks and cases are free");
        }
        let _ = Manifest::parse(&PYTHON.as_bytes()[..at]);
    }
}
