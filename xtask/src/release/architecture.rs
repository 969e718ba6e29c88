//! The processor architectures that are released.

use clap::ValueEnum;

/// The glibc that programs and wheels need at least: that of manylinux_2_28.
pub(crate) const GLIBC: &str = "2.28";

/// An architecture; both run Linux with glibc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Architecture {
    #[value(name = "x86_64")]
    X86_64,
    Aarch64,
}

impl Architecture {
    pub(crate) const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// The name that Rust, Linux and Python have for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// The name that Debian and container images have for it.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    pub(crate) fn triple(self) -> String {
        format!("{}-unknown-linux-gnu", self.name())
    }

    /// The folder where cargo builds its programs.
    pub(crate) fn programs_dir(self) -> String {
        format!("out/cross/programs-{}", self.name())
    }

    /// The folder where maturin builds its wheels, with its own linker.
    pub(crate) fn wheels_dir(self) -> String {
        format!("out/cross/wheels-{}", self.name())
    }

    /// Whether programs of it run on this machine.
    pub(crate) fn runs_here(self) -> bool {
        self.name() == std::env::consts::ARCH
    }
}
