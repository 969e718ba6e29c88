//! Processor architectures of the released programs.

use clap::ValueEnum;

/// Minimum version of glibc that programs and wheels require: that of manylinux_2_28.
pub(crate) const GLIBC: &str = "2.28";

/// Processor architecture, on Linux with glibc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Architecture {
    #[value(name = "x86_64")]
    X86_64,
    Aarch64,
}

impl Architecture {
    pub(crate) const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// Name of the architecture in Rust, Linux and Python.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// Name of the architecture in Debian and in container images.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    pub(crate) fn triple(self) -> String {
        format!("{}-unknown-linux-gnu", self.name())
    }

    /// Cargo's target folder for programs of the architecture.
    pub(crate) fn programs_dir(self) -> String {
        format!("out/cross/programs-{}", self.name())
    }

    /// Target folder in which maturin builds its wheels, with a linker of its own.
    pub(crate) fn wheels_dir(self) -> String {
        format!("out/cross/wheels-{}", self.name())
    }

    /// Whether programs of the architecture run on this machine.
    pub(crate) fn runs_here(self) -> bool {
        self.name() == std::env::consts::ARCH
    }
}
