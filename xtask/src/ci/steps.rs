//! The steps, the quick ones first.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Result;

use super::step::{Step, When};
use crate::{lab, sim, tidy};

/// Files that change what every crate is compiled to.
const BUILD: [&str; 3] = ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml"];
/// What is linked with rdma-core, or loads it.
const VERBS: &[&str] = &["rdma/src/verbs", "rdma/build.rs", "rdma/Cargo.toml", BUILD[1], BUILD[2]];
/// The code that loom's models share with the product, and the models.
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
    BUILD[1],
    BUILD[2],
];

/// Every step; a step fails the run.
pub(crate) const STEPS: &[Step] = &[
    Step {
        name: "tidy",
        when: When::Always,
        reason: "house rules of sources and documents, in a second",
        run: |_| tidy::run(&tidy::Options::default()),
    },
    Step {
        name: "format",
        when: When::Always,
        reason: "a second",
        run: |_| cargo("fmt --all --check"),
    },
    Step {
        name: "clippy",
        when: When::Always,
        reason: "lints of every crate",
        run: |_| cargo("clippy --workspace --all-targets --locked -- -D warnings"),
    },
    Step {
        name: "link-check",
        when: When::Changed(VERBS),
        reason: "types of the packagers' feature, which only the verbs provider has",
        run: |_| cargo("check --package feedrail-rdma --features link-rdma-core --locked"),
    },
    Step {
        name: "doc",
        when: When::Always,
        reason: "links in doc comments break when what they name moves",
        run: |_| {
            let denied = [("RUSTDOCFLAGS", "-D warnings")];
            crate::run("cargo", &["doc", "--workspace", "--no-deps", "--locked"], &denied)
        },
    },
    Step {
        name: "packages",
        when: When::Always,
        reason: "a file that a package lacks shows only in the package",
        run: |_| packages(),
    },
    Step {
        name: "dependencies",
        when: When::Changed(&[BUILD[1], "deny.toml"]),
        reason: "licences and advisories of what Cargo.lock names",
        run: |_| dependencies(),
    },
    Step {
        name: "tests",
        when: When::Always,
        reason: "the command that README gives",
        run: |_| cargo("test --workspace"),
    },
    Step {
        name: "worlds",
        when: When::Always,
        reason: "hosts, targets, disks and networks in which everything goes wrong",
        run: |full| sim::worlds(if full { 1_000 } else { 200 }),
    },
    Step {
        name: "deliberate-bugs",
        when: When::Changed(&["tests/src/world", "tests/src/bin"]),
        reason: "whether the worlds find bugs: they do as long as the simulator is the same",
        run: |_| sim::bugs(),
    },
    Step {
        name: "as-shipped",
        when: When::Changed(&["roce-proto", BUILD[0], BUILD[1], BUILD[2]]),
        reason: "the compiler's optimisations have broken the protocol in no other profile",
        run: |_| cargo("test --release --package feedrail-roce-proto --lib"),
    },
    Step {
        name: "linked",
        when: When::Changed(VERBS),
        reason: "the packagers' build, linked with rdma-core",
        run: |_| linked(),
    },
    Step {
        name: "loom",
        when: When::Changed(MODELLED),
        reason: "every interleaving of the modelled files, which only they change",
        run: |_| loom(),
    },
    Step {
        name: "python",
        when: When::Always,
        reason: "the package goes through the initiator, the data sets and the target",
        run: |_| crate::run("bash", &["python/ci.sh"], &[]),
    },
    Step {
        name: "lab",
        when: When::Always,
        reason: "the kernel's peers; emulated, the gate takes a part",
        run: lab::ci,
    },
    Step {
        name: "torch",
        when: When::Changed(&["python", "dataset"]),
        reason: "what training code calls, where torch is installed",
        run: |_| crate::run("bash", &["python/torch-ci.sh", "test"], &[]),
    },
];

/// The step with a name.
pub(crate) fn named(name: &str) -> Option<&'static Step> {
    STEPS.iter().find(|step| step.name == name)
}

/// Packages all that is published, as crates.io would get it. Uncommitted changes are packaged too.
fn packages() -> Result<()> {
    cargo("publish --dry-run --workspace --no-verify --allow-dirty --locked")
}

/// The rules of `deny.toml` for dependencies, where `cargo-deny` is installed. Its database of
/// advisories has to be fetched.
fn dependencies() -> Result<()> {
    if !succeeds(&["deny", "--version"]) {
        eprintln!(
            "skipped: licences and advisories of dependencies, because cargo-deny is not installed"
        );
        return Ok(());
    }
    cargo("deny check licenses bans sources")?;
    if !succeeds(&["deny", "fetch", "db"]) {
        eprintln!("skipped: advisories, because `cargo deny fetch db` cannot fetch their database");
        return Ok(());
    }
    cargo("deny check advisories")
}

/// Whether cargo does this without an error; its output is not shown.
fn succeeds(arguments: &[&str]) -> bool {
    let mut command = Command::new("cargo");
    let quiet = command.args(arguments).current_dir(crate::root());
    let status = quiet.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// The packagers' build, where there is something to link with.
fn linked() -> Result<()> {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        eprintln!("skipped: linking with rdma-core, because libibverbs-dev is not installed");
        return Ok(());
    }
    cargo("test --package feedrail-rdma --lib --features link-rdma-core linked")
}

/// Loom explores every interleaving, so it gets a build of its own with its own primitives. The
/// tests take 20 s, and their build as programs are shipped took 376 s.
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
            ("CARGO_PROFILE_RELEASE_LTO", "off"),
            ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
            ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "2"),
            ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
        ],
    )
}

/// Registered memory is named by address, as devices do, so its provenance has to be exposed;
/// property tests look for cases that failed before, in a file. Interpreted code takes hundreds of
/// times as long, so there are fewer cases.
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
