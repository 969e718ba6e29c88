//! Manual pages and completions, which are made from the command line itself.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use feedrail_tests::process::{Program, binary, feedrail};

/// The names of all pages of a folder.
fn pages(folder: &Path) -> BTreeSet<String> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    files.map(|name| name.into_string().unwrap()).collect()
}

/// Complaints of a checker of manual pages; empty where it is not installed.
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
    let [commands, formats, daemons] =
        ["man1", "man5", "man8"].map(|section| pages(&folder.path().join(section)));
    assert_eq!(printed.lines().count(), commands.len() + formats.len() + daemons.len());
    assert_eq!(daemons, BTreeSet::from(["feedrail-target.8".to_owned()]));
    assert_eq!(formats, BTreeSet::from(["feedrail.toml.5".to_owned()]));
    // Section 1 comes first, so `man feedrail-target` would not find the daemon.
    assert!(!commands.contains("feedrail-target.1"), "{commands:?}");

    let help = String::from_utf8(feedrail(["--help"]).run().success()).unwrap();
    let (_, after) = help.split_once("Commands:\n").unwrap();
    let lines = after.lines().take_while(|line| !line.is_empty());
    let listed = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    for command in listed.filter(|command| !command.is_empty() && *command != "help") {
        let name = if command == "target" { "target-commands" } else { command };
        assert!(commands.contains(&format!("feedrail-{name}.1")), "{command}: {commands:?}");
    }
    assert!(commands.contains("feedrail-target-add-ns.1"), "{commands:?}");
    assert!(!commands.contains("feedrail-target-process.1"));

    let page = |name: &str| fs::read_to_string(folder.path().join("man1").join(name)).unwrap();
    let perf = page("feedrail-perf.1");
    assert!(perf.contains("iodepth") && perf.contains(".SH EXAMPLES"), "{perf}");
    let all = page("feedrail.1");
    assert!(all.contains("feedrail\\-target\\-commands(1)"), "{all}");
    assert!(!all.contains("feedrail\\-target(1)"), "{all}");
    let sections = [("man1", &commands), ("man5", &formats), ("man8", &daemons)];
    let each = sections
        .into_iter()
        .flat_map(|(section, pages)| pages.iter().map(move |page| (section, page)));
    for (section, name) in each {
        let path = folder.path().join(section).join(name);
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

/// The page of the configuration has each key that a configuration may have, since the error about
/// an unknown key lists them all.
#[test]
fn the_page_of_the_configuration_has_every_key() {
    let folder = tempfile::tempdir().unwrap();
    feedrail(["man"]).args([folder.path()]).run().success();
    let page = fs::read_to_string(folder.path().join("man5/feedrail.toml.5")).unwrap();
    let (port, subsystem) = (
        "[[port]]\naddress = \"127.0.0.1\"\n",
        "[[subsystem]]\nnqn = \"nqn.2026-01.io.feedrail:x\"\n",
    );
    for table in [
        "",
        "[limits]\n",
        "[[discovery.host]]\n",
        port,
        subsystem,
        &format!("{subsystem}[[subsystem.host]]\n"),
        &format!("{subsystem}[subsystem.each_host]\n"),
        &format!("{subsystem}[[subsystem.namespace]]\n"),
        &format!("{subsystem}[[subsystem.namespace]]\n[subsystem.namespace.faults]\n"),
        &format!("{subsystem}[[subsystem.directory]]\npath = \"x\"\n"),
    ] {
        let config = folder.path().join("wrong.toml");
        fs::write(&config, format!("{table}unknown = 1\n")).unwrap();
        let checked = Program::new(binary("feedrail-target"))
            .args(["--check", "--config"])
            .args([&config])
            .run();
        let (_, keys) =
            checked.stderr.split_once("expected one of ").unwrap_or_else(|| panic!("{checked}"));
        let keys: Vec<_> = keys.split('`').skip(1).step_by(2).collect();
        assert!(keys.len() > 2, "{checked}");
        for key in keys.iter().filter(|key| {
            ![
                "limits",
                "discovery",
                "port",
                "subsystem",
                "host",
                "each_host",
                "namespace",
                "directory",
                "faults",
            ]
            .contains(key)
        }) {
            assert!(page.contains(&format!("\\fB{key} = ")), "{key} of {table:?} is not explained");
        }
    }
}

/// Shells offer what users can ask for.
#[test]
fn completions_have_no_commands_of_our_own() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let text = String::from_utf8(feedrail(["completions", shell]).run().success()).unwrap();
        assert!(!text.contains("target-process") && !text.contains("target__process"), "{shell}");
    }
}
