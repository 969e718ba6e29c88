//! The script that dpkg runs after an upgrade of the target's package, with stand-ins for what it
//! calls.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// Calls of the script, in order, and its output, where the service runs and the new program
/// accepts its configuration or does not.
fn configured(old_version: &str, runs: bool, accepted: bool) -> (Vec<String>, String) {
    let folder = tempfile::tempdir().unwrap();
    let calls = folder.path().join("calls");
    let programs = [
        ("systemd-sysusers", 0),
        ("systemctl", i32::from(!runs)),
        ("runuser", i32::from(!accepted)),
        ("deb-systemd-invoke", 0),
        ("feedrail", 0),
    ];
    for (program, status) in programs {
        let path = folder.path().join(program);
        let text = format!(
            "#!/bin/sh\necho {program} \"$@\" >>{}\n[ \"$1\" != show ] || {{ wc -l <{}; exit; }}\nexit {status}\n",
            calls.display(),
            calls.display(),
        );
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/debian/postinst");
    let output = Command::new("/bin/sh")
        .arg(script)
        .args(["configure", old_version])
        .env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()))
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let calls = fs::read_to_string(calls).unwrap();
    (calls.lines().map(str::to_owned).collect(), said)
}

fn has(calls: &[String], start: &str) -> Option<usize> {
    calls.iter().position(|call| call.starts_with(start))
}

#[test]
fn an_upgrade_checks_then_drains_then_restarts() {
    let (calls, said) = configured("0.1.0-1", true, true);
    let places = [
        "systemd-sysusers",
        "runuser -u feedrail -- feedrail-target --config",
        "feedrail target drain",
        "deb-systemd-invoke restart",
    ]
    .map(|start| has(&calls, start));
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{calls:?}");
    // It runs again, so nothing is to be undone.
    assert_eq!(has(&calls, "feedrail target drain --undo"), None, "{calls:?}");
    assert_eq!(said, "");
}

#[test]
fn a_target_that_the_new_program_would_not_start_goes_on() {
    let (calls, said) = configured("0.1.0-1", true, false);
    assert_eq!(has(&calls, "deb-systemd-invoke"), None, "{calls:?}");
    assert_eq!(has(&calls, "feedrail"), None, "{calls:?}");
    assert!(said.contains("the old one keeps running"), "{said}");
}

#[test]
fn nothing_is_restarted_that_does_not_run() {
    for (old_version, runs) in [("", true), ("", false), ("0.1.0-1", false)] {
        let (calls, said) = configured(old_version, runs, true);
        assert_eq!(has(&calls, "deb-systemd-invoke"), None, "{calls:?}");
        assert_eq!(has(&calls, "runuser"), None, "{calls:?}");
        assert_eq!(said, "");
    }
}
