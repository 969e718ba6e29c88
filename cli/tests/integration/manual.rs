//! Manual pages and completions, which are made from the command line itself.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use feedrail_tests::process::feedrail;

/// The names of all pages of a folder.
fn pages(folder: &Path) -> BTreeSet<String> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    files.map(|name| name.into_string().unwrap()).collect()
}

/// What a checker of manual pages complains of; nothing where it is not installed.
fn complaints(program: &str, options: &[&str], page: &Path) -> String {
    let output = Command::new(program).args(options).arg(page).stdin(Stdio::null()).output();
    let Ok(output) = output else {
        eprintln!("left out: {program}");
        return String::new();
    };
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn each_command_has_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let printed = feedrail(["man"]).args([folder.path()]).run().success();
    let printed = String::from_utf8(printed).unwrap();
    let [commands, daemons] = ["man1", "man8"].map(|section| pages(&folder.path().join(section)));
    assert_eq!(printed.lines().count(), commands.len() + daemons.len());
    assert_eq!(daemons, BTreeSet::from(["feedrail-target.8".to_owned()]));

    let help = String::from_utf8(feedrail(["--help"]).run().success()).unwrap();
    let (_, after) = help.split_once("Commands:\n").unwrap();
    let lines = after.lines().take_while(|line| !line.is_empty());
    let listed = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    for command in listed.filter(|command| !command.is_empty() && *command != "help") {
        assert!(commands.contains(&format!("feedrail-{command}.1")), "{command}: {commands:?}");
    }
    assert!(commands.contains("feedrail-target-add-ns.1"), "{commands:?}");
    assert!(!commands.contains("feedrail-target-process.1"));

    let page = |name: &str| fs::read_to_string(folder.path().join("man1").join(name)).unwrap();
    let perf = page("feedrail-perf.1");
    assert!(perf.contains("iodepth") && perf.contains(".SH EXAMPLES"), "{perf}");
    for name in &commands {
        let path = folder.path().join("man1").join(name);
        assert_eq!(
            complaints("groff", &["-man", "-Tutf8", "-W", "break", "-z"], &path),
            "",
            "{name}"
        );
    }
}

#[test]
fn shells_understand_the_completions() {
    for (shell, check) in [
        ("bash", Some(["bash", "-n"])),
        ("zsh", Some(["zsh", "-n"])),
        ("fish", Some(["fish", "-n"])),
    ] {
        for program in ["feedrail", "feedrail-target"] {
            let text = feedrail(["completions", shell, program]).run().success();
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("completions");
            fs::write(&file, &text).unwrap();
            let text = String::from_utf8(text).unwrap();
            assert!(text.contains(program), "{shell} {program}");
            let option = if program == "feedrail" { "iodepth" } else { "metrics" };
            assert!(text.contains(option), "{shell} {program}");
            let Some([shell, option]) = check else { continue };
            assert_eq!(complaints(shell, &[option], &file), "", "{shell} {program}");
        }
    }
}
