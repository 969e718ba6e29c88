//! Secrets for in-band authentication.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use feedrail_tests::process::feedrail;
use serde_json::Value;

/// Secret of the bytes 0 to 31.
const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const KEY: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

fn generate(options: &[&str]) -> String {
    String::from_utf8(feedrail(["gen-dhchap-key"]).args(options).run().success()).unwrap()
}

fn write_key(path: &Path, content: &str, mode: u32) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_given_secret_is_what_nvme_cli_prints() {
    assert_eq!(generate(&["-s", HEX, "-m", "1"]), format!("{KEY}\n"));
    assert_eq!(generate(&["--secret", HEX, "--hmac", "1", "--key-length", "32"]).trim(), KEY);
    let json = generate(&["-s", HEX, "-m", "1", "-o", "json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["key"], &json["hmac"], &json["length"]),
        (&KEY.into(), &1.into(), &32.into())
    );
}

#[test]
fn random_secrets_differ_and_are_valid() {
    for (options, hmac, length) in [
        (&[][..], 0, 32),
        (&["-m", "1"], 1, 32),
        (&["-m", "2"], 2, 48),
        (&["-m", "3"], 3, 64),
        (&["-m", "1", "-l", "64"], 1, 64),
        (&["-l", "48"], 0, 48),
    ] {
        let (key, other) = (generate(options), generate(options));
        assert_ne!(key, other);
        let outcome = feedrail(["check-dhchap-key"]).input(key.as_bytes()).run();
        let text = String::from_utf8(outcome.success()).unwrap();
        let begin = format!("Key is valid (HMAC {hmac}, length {length}, CRC ");
        assert!(text.starts_with(&begin), "{options:?}: {text}");
    }
}

#[test]
fn wrong_secrets_are_refused() {
    for (options, word) in [
        (&["-s", "0"][..], "odd number"),
        (&["-s", "xy"], "hexadecimal"),
        (&["-s", "00"], "64, 96 or 128 digits"),
        (&["-s", HEX, "-l", "48"], "--key-length is 48"),
        (&["-l", "33"], "--key-length is 32, 48 or 64"),
    ] {
        let line = feedrail(["gen-dhchap-key"]).args(options).run().failure();
        assert!(line.contains(word), "{options:?}: {line}");
    }
}

#[test]
fn the_nqn_of_older_scripts_is_ignored_with_a_note() {
    let outcome = feedrail(["gen-dhchap-key", "-s", HEX, "-m", "1", "-n", "nqn.2026-01.a:b"]).run();
    assert!(outcome.stderr.contains("--nqn has no effect"), "{outcome}");
    assert_eq!(outcome.success(), format!("{KEY}\n").as_bytes());
}

#[test]
fn a_key_is_checked_as_option_file_and_stdin() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("host.key");
    write_key(&path, KEY, 0o600);
    let expected = "Key is valid (HMAC 1, length 32, CRC 91267e8a)\n";
    let check = || feedrail(["check-dhchap-key"]);
    for program in [
        check().args(["-k", KEY]),
        check().args(["--key", KEY]),
        check().args(["-f"]).args([&path]),
        check().input(KEY.as_bytes()),
    ] {
        assert_eq!(String::from_utf8(program.run().success()).unwrap(), expected);
    }
    let json = check().args(["-o", "json", "-f"]).args([&path]).run().success();
    let json: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!((&json["valid"], &json["crc"]), (&true.into(), &"91267e8a".into()));
}

#[test]
fn mistakes_name_the_file_and_a_remedy_and_no_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("host.key");
    let check = || feedrail(["check-dhchap-key", "-f"]).args([&path]).run().failure();
    let assert_line = |line: &str, word: &str| {
        assert!(line.contains(word) && line.contains(&*path.to_string_lossy()), "{word}: {line}");
        assert!(!line.contains("AAEC"), "{line}");
    };
    assert_line(&check(), "gen-dhchap-key");
    for (content, mode, word) in [
        (KEY.to_owned(), 0o644, "chmod 600"),
        (KEY.replace("AAEC", "AAED"), 0o600, "checksum"),
        (KEY.replace(":01:", ":09:"), 0o600, "00, 01, 02 or 03"),
        (KEY[..30].to_owned(), 0o600, "ends with a colon"),
        (format!("{KEY}\n{KEY}"), 0o600, "several lines"),
        (String::new(), 0o600, "empty"),
    ] {
        write_key(&path, &content, mode);
        assert_line(&check(), word);
    }
    let line = feedrail(["check-dhchap-key", "-k", &KEY[..30]]).run().failure();
    assert!(line.contains("--key") && !line.contains("AAEC"), "{line}");
}

#[test]
fn a_key_that_nvme_cli_refuses_is_valid_with_a_note() {
    let key = generate(&["-m", "3", "-l", "32"]);
    let outcome = feedrail(["check-dhchap-key"]).input(key.as_bytes()).run();
    assert!(outcome.stderr.contains("nvme-cli 2 refuses"), "{outcome}");
    outcome.success();
}
