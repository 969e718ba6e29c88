//! Tries each artefact in small Debian systems without a compiler and a network. `tests/release`
//! contains the scripts.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::ReleaseFiles;
use super::architecture::Architecture;
use super::tools::Tools;
use crate::lab::guest::run_fetching;
use crate::{deb, output, root};

/// Debian system in which artefacts are tried.
struct System {
    suite: &'static str,
    glibc: &'static str,
    /// Command of a Python that is new enough, and its version; `None` if the system has none.
    python: Option<(&'static str, &'static str)>,
}

/// Debian suites from the oldest to the newest of the mirrors.
const SYSTEMS: [System; 4] = [
    System { suite: "bullseye", glibc: "2.31", python: None },
    System { suite: "bookworm", glibc: "2.36", python: Some(("python3", "3.11")) },
    System { suite: "trixie", glibc: "2.41", python: Some(("python3", "3.13")) },
    System { suite: "forky", glibc: "2.42", python: Some(("python3", "3.14")) },
];

/// Result of trying an artefact.
pub(crate) struct TrialResult {
    artefact: &'static str,
    place: String,
    /// Steps that passed, or the error.
    outcome: Result<String>,
    seconds: u64,
}

impl TrialResult {
    pub(crate) fn passed(&self) -> bool {
        self.outcome.is_ok()
    }

    pub(crate) fn row(&self) -> [String; 4] {
        let result = match &self.outcome {
            Ok(done) => done.clone(),
            Err(error) => format!("FAILED: {error:#}"),
        };
        [self.artefact.to_owned(), self.place.clone(), self.seconds.to_string(), result]
    }

    pub(crate) fn to_json(&self) -> Value {
        let [artefact, place, _, result] = self.row();
        json!({"tried": artefact, "where": place, "seconds": self.seconds,
            "passed": self.passed(), "result": result})
    }
}

/// Tries all artefacts of a release.
pub(crate) fn all(release: &ReleaseFiles, tools: &Tools) -> Result<Vec<TrialResult>> {
    let mut trials = Vec::new();
    for system in &SYSTEMS {
        trials.extend(system.trials(release, tools)?);
    }
    if let Some(image) = release.files(".oci.tar")?.first() {
        let script = script("image.sh");
        trials.push(attempt("image", "umoci, chroot", || {
            said(&["bash", &script, &image.display().to_string()])
        }));
    }
    if !release.files("_amd64.deb")?.is_empty() {
        trials.push(attempt("packages", "systemd in the lab's Debian 12 guest", || {
            life_cycle(tools)
        }));
    }
    if !release.files("aarch64.whl")?.is_empty() {
        let folder = folder_of("aarch64");
        fill(release, &folder, Architecture::Aarch64)?;
        numpy(tools, &folder, Architecture::Aarch64, "3.11")?;
        let script = script("aarch64.sh");
        trials.push(attempt("aarch64", "qemu-user, Debian bookworm", || {
            said(&["bash", &script, &folder.display().to_string()])
        }));
    }
    Ok(trials)
}

impl System {
    fn trials(&self, release: &ReleaseFiles, tools: &Tools) -> Result<Vec<TrialResult>> {
        let place = format!("Debian {}, glibc {}", self.suite, self.glibc);
        let system = root().join("out/tools/systems").join(self.suite);
        if !system.join("usr").exists() {
            let mut arguments =
                [script("root.sh"), self.suite.into(), system.display().to_string()].to_vec();
            // systemd-sysusers creates the user of the packages.
            arguments.push("systemd".into());
            arguments.extend(self.python.map(|_| "python3-venv".into()));
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            if let Err(error) = run_fetching(&arguments) {
                return Ok(vec![attempt("system", &place, || Err(error))]);
            }
        }
        let folder = folder_of(self.suite);
        fill(release, &folder, Architecture::X86_64)?;
        let (enter, system) = (script("enter.sh"), system.display().to_string());
        let seen = folder.display().to_string();
        let inside =
            |script: &[&str]| said(&[&["bash", &enter, &system, &seen, "sh"][..], script].concat());
        let is_made = |end: &str| release.files(end).map(|files| !files.is_empty());
        let mut trials = Vec::new();
        if is_made("x86_64-unknown-linux-gnu.tar.gz")? {
            trials.push(attempt("tarball", &place, || inside(&["/opt/feedrail/tarball.sh"])));
        }
        if is_made("_amd64.deb")? {
            trials.push(attempt("packages", &place, || inside(&["/opt/feedrail/packages.sh"])));
        }
        if let Some((python, version)) = self.python
            && is_made("x86_64.whl")?
        {
            numpy(tools, &folder, Architecture::X86_64, version)?;
            trials.push(attempt("wheel", &place, || inside(&["/opt/feedrail/wheel.sh", python])));
        }
        Ok(trials)
    }
}

/// Boots a guest that installs the Debian packages, and whose systemd starts the unit.
fn life_cycle(tools: &Tools) -> Result<String> {
    let next = folder_of("next");
    let built = deb::Built::Crossed(Architecture::X86_64);
    deb::package("2", &next, &built, &tools.search_path())?;
    deb::live(&folder_of("bookworm"), &next)?;
    Ok("installed, started, reloaded, upgraded, removed, purged".to_owned())
}

/// Returns the folder that a system mounts.
fn folder_of(name: &str) -> PathBuf {
    root().join("out/tools/trials").join(name)
}

fn script(name: &str) -> String {
    root().join("tests/release").join(name).display().to_string()
}

/// Copies the artefacts of an architecture and the scripts to the folder that a system mounts.
fn fill(release: &ReleaseFiles, folder: &Path, architecture: Architecture) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    let wheels = folder.join("wheels");
    fs::create_dir_all(&wheels)?;
    let copy = |from: &Path, to: PathBuf| {
        fs::copy(from, &to)
            .map(drop)
            .with_context(|| format!("{} to {}", from.display(), to.display()))
    };
    for wheel in release.files(&format!("{}.whl", architecture.name()))? {
        copy(&wheel, wheels.join(wheel.file_name().unwrap_or_default()))?;
    }
    for package in release.files(&format!("_{}.deb", architecture.debian()))? {
        copy(&package, folder.join(package.file_name().unwrap_or_default()))?;
    }
    for tarball in release.files(&format!("-{}.tar.gz", architecture.triple()))? {
        copy(&tarball, folder.join("feedrail.tar.gz"))?;
    }
    for name in ["serve.sh", "tarball.sh", "packages.sh", "wheel.sh"] {
        copy(Path::new(&script(name)), folder.join(name))?;
    }
    copy(&root().join("python/examples/quickstart.py"), folder.join("quickstart.py"))
}

/// Downloads numpy, which the wheel needs, since the system has no network.
fn numpy(tools: &Tools, folder: &Path, architecture: Architecture, python: &str) -> Result<()> {
    let wheels = folder.join("wheels").display().to_string();
    let platforms = ["manylinux2014", "manylinux_2_27", "manylinux_2_28"]
        .map(|name| format!("--platform={name}_{}", architecture.name()));
    let [first, second, third] = platforms.each_ref().map(String::as_str);
    let what = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "numpy>=1.26"];
    let how = ["--only-binary=:all:", "--python-version", python, first, second, third];
    crate::run(&tools.program("pip"), &[&what[..], &how, &["--dest", &wheels]].concat(), &[])
}

/// Runs a trial, and records its outcome and duration.
#[expect(clippy::disallowed_methods, reason = "the table shows what took the time")]
fn attempt(
    artefact: &'static str,
    place: &str,
    trial: impl FnOnce() -> Result<String>,
) -> TrialResult {
    let begin = Instant::now();
    let outcome = trial();
    TrialResult { artefact, place: place.to_owned(), outcome, seconds: begin.elapsed().as_secs() }
}

/// Runs a script, and returns the steps that it reports in lines `tried: STEP`.
fn said(command: &[&str]) -> Result<String> {
    let printed = output(command[0], &command[1..])?;
    let lines: Vec<_> = printed.lines().filter_map(|line| line.strip_prefix("tried: ")).collect();
    ensure!(!lines.is_empty(), "the script ended without a word");
    Ok(lines.join("; "))
}
