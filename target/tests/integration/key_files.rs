//! Mistakes of operators with keys: each error names the file or host, and what to do.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use feedrail_auth::{HashFunction, Secret, Transformation};
use feedrail_target::Config;
use feedrail_target::stepped::Inventory;

const HOST: &str = "nqn.2026-01.io.feedrail:host";

fn key(code: u8, first: u8) -> String {
    let bytes: Vec<u8> = (first..first + 32).collect();
    let transformation = Transformation::of(code).expect("0 to 3");
    Secret::new(transformation, &bytes).expect("a length").to_representation().to_string()
}

/// Messages of a check of this configuration, whose paths start at the folder.
fn errors(folder: &Path, subsystem: &str) -> Vec<String> {
    let text = format!(
        "provider = \"soft\"\n[[port]]\naddress = \"127.0.0.1:4420\"\n[[subsystem]]\n\
         nqn = \"nqn.2026-01.io.feedrail:t\"\n{subsystem}\n"
    );
    let config = match Config::from_toml(&folder.join("target.toml"), &text) {
        Ok(config) => config,
        Err(error) => return vec![error.to_string()],
    };
    match Inventory::check(&config) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.iter().map(ToString::to_string).collect(),
    }
}

const NAMESPACE: &str = "[[subsystem.namespace]]\nkind = \"null\"\nsize_bytes = 4096\n";

fn entry(keys: &str) -> String {
    format!("{NAMESPACE}[[subsystem.host]]\nnqn = \"{HOST}\"\n{keys}")
}

/// Asserts one error with all of these parts, and without anything of the key.
#[track_caller]
fn assert_error(folder: &Path, subsystem: &str, parts: &[&str], content: &str) {
    let errors = errors(folder, subsystem);
    let [error] = &errors[..] else { panic!("one error: {errors:?}") };
    for part in parts {
        assert!(error.contains(part), "{error}\n  does not say: {part}");
    }
    let secret = content.get(12..30).unwrap_or("no secret");
    assert!(!error.contains(secret), "{error}");
}

#[test]
fn each_key_file_that_cannot_be_used_is_named_with_the_remedy() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let good = key(1, 0);
    let path = |name: &str| folder.join(name);
    let put = |name: &str, content: &[u8], mode| {
        fs::write(path(name), content).expect("written");
        fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).expect("its owner may");
    };
    put("good", good.as_bytes(), 0o600);
    assert_eq!(errors(folder, &entry("dhchap_key = \"good\"")), [""; 0]);
    let cases: [(&str, Vec<u8>, u32, &str); 24] = [
        ("empty", Vec::new(), 0o600, "gen-dhchap-key"),
        ("newline", b"\n".to_vec(), 0o600, "gen-dhchap-key"),
        ("spaces", b"   ".to_vec(), 0o600, "gen-dhchap-key"),
        ("binary", vec![0xFF, 0xFE, 0], 0o600, "gen-dhchap-key"),
        ("long", vec![b'a'; 5000], 0o600, "one line"),
        ("two", format!("{good}\n{good}\n").into(), 0o600, "a file of its own"),
        ("two-crlf", format!("{good}\r\n{good}\r\n").into(), 0o600, "a file of its own"),
        ("comment", format!("# of trainer 7\n{good}").into(), 0o600, "a file of its own"),
        ("cut", good.as_bytes()[..40].to_vec(), 0o600, "colon"),
        ("no-prefix", good.as_bytes()[7..].to_vec(), 0o600, "DHHC-1"),
        ("tls", b"NVMeTLSkey-1:01:AAAA:".to_vec(), 0o600, "TLS"),
        ("code-04", good.replacen(":01:", ":04:", 1).into(), 0o600, "00"),
        ("code-1", good.replacen(":01:", ":1:", 1).into(), 0o600, "00"),
        ("code-x", good.replacen(":01:", ":0x:", 1).into(), 0o600, "00"),
        ("no-code", good.replacen("01:", "", 1).into(), 0o600, "DHHC-1"),
        ("base64", b"DHHC-1:01:!!!!:".to_vec(), 0o600, "Base64"),
        ("short", b"DHHC-1:01:AAAAAAAA:".to_vec(), 0o600, "32"),
        ("checksum", good.replacen("AAEC", "AAED", 1).into(), 0o600, "checksum"),
        ("quoted", format!("\"{good}\"").into(), 0o600, "DHHC-1"),
        ("assigned", format!("dhchap_key={good}").into(), 0o600, "DHHC-1"),
        ("readable", good.clone().into(), 0o644, "chmod 600"),
        ("by-all", good.clone().into(), 0o604, "chmod 600"),
        ("writable", good.clone().into(), 0o620, "chmod 600"),
        ("open", good.clone().into(), 0o777, "chmod 600"),
    ];
    for (name, content, mode, remedy) in &cases {
        put(name, content, *mode);
        for keys in [
            format!("dhchap_key = \"{name}\""),
            format!("dhchap_key = \"good\"\ndhchap_ctrl_key = \"{name}\""),
        ] {
            let content = String::from_utf8_lossy(content);
            let at = path(name).display().to_string();
            assert_error(folder, &entry(&keys), &[&at, remedy, "target.toml:"], &content);
        }
    }
    fs::create_dir(path("folder")).expect("made");
    symlink("nowhere", path("dangling")).expect("linked");
    symlink("good", path("link")).expect("linked");
    assert_eq!(errors(folder, &entry("dhchap_key = \"link\"")), [""; 0]);
    for (name, remedy) in [
        ("missing", "gen-dhchap-key"),
        ("dangling", "gen-dhchap-key"),
        ("folder", "not a regular file"),
        ("good/file", ""),
        ("/dev/null", "not a regular file"),
        ("/dev/zero", "not a regular file"),
        ("", "not a regular file"),
    ] {
        assert_error(folder, &entry(&format!("dhchap_key = {name:?}")), &[name, remedy], "");
    }
}

#[test]
fn mistakes_in_entries_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let same = key(0, 0);
    for (name, content) in [("good", key(1, 0)), ("same", same.clone()), ("copy", same)] {
        fs::write(folder.join(name), content).expect("written");
        let mode = fs::Permissions::from_mode(0o600);
        fs::set_permissions(folder.join(name), mode).expect("its owner may");
    }
    let other = "[[subsystem.host]]\nnqn = \"nqn.2026-01.io.feedrail:other\"\n";
    let twice = format!("[[subsystem.host]]\nnqn = \"{HOST}\"\ndhchap_key = \"same\"");
    let key = "dhchap_key = \"good\"\n";
    for (keys, parts) in [
        (String::new(), &["dhchap_key"][..]),
        (format!("{key}hashes = [\"sha1\"]"), &["sha1", "sha256"]),
        (format!("{key}hashes = [\"SHA-256\"]"), &["SHA-256", "sha256"]),
        (format!("{key}hashes = []"), &["nothing", "sha256"]),
        (format!("{key}groups = [\"ffdhe1024\"]"), &["ffdhe1024", "ffdhe2048"]),
        (format!("{key}groups = [\"modp\"]"), &["modp", "null"]),
        (format!("{key}groups = []"), &["nothing", "null"]),
        (format!("{key}group = [\"null\"]"), &["group"]),
        (format!("{key}dhchap_key = \"good\""), &["dhchap_key"]),
        (format!("{key}{twice}"), &[HOST, "two entries", "remove one"]),
        (
            format!("dhchap_key = \"same\"\n{other}dhchap_key = \"copy\""),
            &["same", "copy", "gen-dhchap-key"],
        ),
        ("dhchap_key = \"same\"\ndhchap_ctrl_key = \"copy\"".to_owned(), &["same", "copy"]),
    ] {
        assert_error(folder, &entry(&keys), parts, "");
    }
    let (host, key) =
        (format!("[[subsystem.host]]\nnqn = \"{HOST}\"\n"), "dhchap_key = \"good\"\n");
    for (subsystem, parts) in [
        (format!("authentication = \"yes\"\n{NAMESPACE}"), &["required", "offered", "off"][..]),
        (NAMESPACE.to_owned(), &["allowed_hosts", "[[subsystem.host]]", "allow_any_host"]),
        (
            format!("allowed_hosts = [\"nqn.2026-01.io.feedrail:b\"]\n{NAMESPACE}{host}{key}"),
            &["target.toml:6", "no key", "offered"],
        ),
        (format!("{NAMESPACE}[[subsystem.host]]\nnqn = \"\"\n{key}"), &["target.toml:", "empty"]),
        (format!("{NAMESPACE}[[subsystem.host]]\nnqn = \"a b \"\n{key}"), &["target.toml:"]),
        (format!("{NAMESPACE}[[subsystem.host]]\n{key}"), &["nqn"]),
    ] {
        assert_error(folder, &subsystem, parts, "");
    }
    let allowed = format!("allowed_hosts = [\"{HOST}\"]\n{NAMESPACE}{host}{key}");
    assert_eq!(errors(folder, &allowed), [""; 0], "the host has a key");
    let hash = HashFunction::Sha512.name();
    let named = format!("{NAMESPACE}{host}{key}hashes = [{hash:?}]\n");
    assert_eq!(errors(folder, &named), [""; 0]);
}
