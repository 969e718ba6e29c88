//! Steps of continuous integration, the quick ones first.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use super::step::{CiStep, NotChecked, When};
use crate::{lab, sim, tidy};

/// Files that link with rdma-core or load it.
const VERBS: &[&str] = &["rdma/src/verbs", "rdma/Cargo.toml"];
/// Loom's models, and the product code that they share.
const MODELLED: &[&str] = &[
    "initiator/src/driver/sleepers",
    "initiator/src/driver/sleepers.rs",
    "initiator/src/driver/wake_flag.rs",
    "rdma/src/shm",
    "rdma/src/software",
    "target/src/backend/range_lock",
    "target/src/backend/range_lock.rs",
    "target/src/controller/link.rs",
    "target/src/doorbell",
    "target/src/doorbell.rs",
    "target/src/sync.rs",
];

/// Variables of the environment with which tests run for longer.
const ALL: &[(&str, &str)] = &[
    ("FEEDRAIL_ALL_WORLDS", "1"),
    ("FEEDRAIL_CHECKPOINT_KILLS", "500"),
    ("FEEDRAIL_REPLICA_KILLS", "30"),
];

/// All steps. A step that returns an error fails the run.
pub(crate) const STEPS: &[CiStep] = &[
    CiStep {
        name: "tidy",
        when: When::Always,
        reason: "house rules of sources and documents, in a second",
        run: |_| tidy::run(&tidy::Options::default()),
    },
    CiStep {
        name: "format",
        when: When::Always,
        reason: "a second",
        run: |_| cargo("fmt --all --check"),
    },
    CiStep {
        name: "clippy",
        when: When::Always,
        reason: "lints of every crate, and of the program with the deliberate bugs",
        run: |_| {
            cargo("clippy --workspace --all-targets --locked -- -D warnings")?;
            cargo(
                "clippy --package feedrail-tests --bin sim-bugs --features deliberate-bugs \
                 --locked -- -D warnings",
            )
        },
    },
    CiStep {
        name: "link-check",
        when: When::Changed(VERBS),
        reason: "types of the packagers' feature, which only the verbs provider has",
        run: |_| cargo("check --package feedrail-rdma --features link-rdma-core --locked"),
    },
    CiStep {
        name: "doc",
        when: When::Always,
        reason: "links in doc comments break when what they name moves",
        run: |_| {
            let denied = [("RUSTDOCFLAGS", "-D warnings")];
            crate::run("cargo", &["doc", "--workspace", "--no-deps", "--locked"], &denied)
        },
    },
    CiStep {
        name: "packages",
        when: When::Always,
        reason: "a file that a package lacks shows only in the package",
        run: |_| packages(),
    },
    CiStep {
        name: "dependencies",
        when: When::Changed(&["Cargo.lock", "deny.toml"]),
        reason: "licences and advisories of what Cargo.lock names",
        run: |_| dependencies(),
    },
    CiStep {
        name: "tests",
        when: When::Always,
        reason: "the command that README gives",
        run: |full| {
            let all: &[_] = if full { ALL } else { &[] };
            crate::run("cargo", &["test", "--workspace"], all)
        },
    },
    CiStep {
        name: "worlds",
        when: When::Always,
        reason: "hosts, targets, disks and networks in which everything goes wrong",
        run: |full| sim::worlds(if full { 1_000 } else { 200 }),
    },
    CiStep {
        name: "deliberate-bugs",
        when: When::Full,
        reason: "whether the worlds find bugs: it takes minutes and has always passed",
        run: |_| deliberate_bugs(),
    },
    CiStep {
        name: "as-shipped",
        when: When::Full,
        reason: "the compiler's optimisations broke the protocol in no other profile",
        run: |_| cargo("test --profile dist --package feedrail-roce-proto --lib"),
    },
    CiStep {
        name: "linked",
        when: When::Changed(VERBS),
        reason: "the packagers' build, linked with rdma-core",
        run: |_| linked(),
    },
    CiStep {
        name: "loom",
        when: When::Changed(MODELLED),
        reason: "every interleaving of the modelled files, which only they change",
        run: |_| loom(),
    },
    CiStep {
        name: "python",
        when: When::Always,
        reason: "the package goes through the initiator, the data sets and the target",
        run: |_| with_programs("python/ci.sh", &[]),
    },
    CiStep {
        name: "lab",
        when: When::Always,
        reason: "the kernel's peers; emulated, the gate takes a part",
        run: lab::ci,
    },
    CiStep {
        name: "release",
        when: When::Full,
        reason: "everything that is published, made and tried; it takes half an hour",
        run: |_| crate::run("cargo", &["xtask", "release", "--try"], &[]),
    },
    CiStep {
        name: "torch",
        when: When::Changed(&["python", "dataset", "checkpoint", "checkpoint-store"]),
        reason: "what training code calls, where torch is installed",
        run: |_| with_programs("python/torch-ci.sh", &["test"]),
    },
];

/// Returns the step of this name.
pub(crate) fn named(name: &str) -> Option<&'static CiStep> {
    STEPS.iter().find(|step| step.name == name)
}

/// Runs a script with the path of the programs that `cargo test` has built.
fn with_programs(script: &str, arguments: &[&str]) -> Result<()> {
    let programs = crate::built_for_tests()?;
    let variables = [("FEEDRAIL_BIN_DIR", &*programs.to_string_lossy())];
    crate::run("bash", &[&[script], arguments].concat(), &variables)
}

/// Packages all crates that are published, as for crates.io, but with uncommitted changes.
fn packages() -> Result<()> {
    cargo("publish --dry-run --workspace --no-verify --allow-dirty --locked")
}

/// Checks dependencies by the rules of `deny.toml`, if `cargo-deny` is installed. It needs network
/// access to fetch its database of advisories.
fn dependencies() -> Result<()> {
    if !succeeds(&["deny", "--version"]) {
        bail!(NotChecked("cargo-deny is not installed"));
    }
    cargo("deny check licenses bans sources")?;
    if !succeeds(&["deny", "fetch", "db"]) {
        bail!(NotChecked("`cargo deny fetch db` cannot fetch the database of advisories"));
    }
    cargo("deny check advisories")
}

/// Whether a cargo command succeeds. Its output is not shown.
fn succeeds(arguments: &[&str]) -> bool {
    let mut command = Command::new("cargo");
    let quiet = command.args(arguments).current_dir(crate::root());
    let status = quiet.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Tests whether the worlds of networks and those of checkpoint volumes find deliberate bugs.
fn deliberate_bugs() -> Result<()> {
    sim::bugs()?;
    cargo("test --package feedrail-checkpoint --features deliberate-bugs --test deliberate_bugs")
}

/// Tests the build for distributions, which links with rdma-core, if its headers are installed.
fn linked() -> Result<()> {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        bail!(NotChecked("libibverbs-dev is not installed"));
    }
    cargo("test --package feedrail-rdma --lib --features link-rdma-core linked")
}

/// Runs loom's tests, which explore all interleavings, in a build with loom's primitives. They take
/// 20 s; with the profile of released programs their build took 376 s.
pub(crate) fn loom() -> Result<()> {
    let crates =
        ["--package=feedrail-rdma", "--package=feedrail-target", "--package=feedrail-initiator"];
    let arguments = ["test", "--lib", "--release", "--target-dir", "out/loom", "loom"];
    crate::run(
        "cargo",
        &[&arguments[..1], &crates, &arguments[1..]].concat(),
        &[
            ("RUSTFLAGS", "--cfg loom"),
            ("LOOM_MAX_PREEMPTIONS", "3"),
            ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "2"),
            ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
        ],
    )
}

/// Runs tests of registered memory with Miri. Exposed provenance is permitted, since memory is
/// registered by address; file access, since property tests read cases that failed before.
/// Interpreted code is hundreds of times slower, so there are fewer cases.
pub(crate) fn miri() -> Result<()> {
    let arguments = "run nightly cargo miri test --package feedrail-rdma --lib --target-dir out/miri software::regions";
    crate::run(
        "rustup",
        &arguments.split(' ').collect::<Vec<_>>(),
        &[
            ("MIRIFLAGS", "-Zmiri-permissive-provenance -Zmiri-disable-isolation"),
            ("PROPTEST_CASES", "16"),
        ],
    )
}

fn cargo(args: &str) -> Result<()> {
    crate::run("cargo", &args.split(' ').collect::<Vec<_>>(), &[])
}
