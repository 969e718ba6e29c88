//! Installs the tools that build a release into out/tools: maturin, zig and cargo-zigbuild from
//! PyPI, cargo-deb from crates.io, and a Rust compiler for the other architecture.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result};

use super::architecture::{Architecture, GLIBC};
use crate::{output, root, run};

/// Packages from PyPI. zig includes a linker, and the symbols of every version of glibc.
const REQUIREMENTS: [&str; 3] =
    ["maturin>=1.16,<2", "ziglang>=0.16,<0.18", "cargo-zigbuild>=0.24,<0.25"];
/// Package from crates.io that builds Debian packages.
const CARGO_DEB: &str = "cargo-deb@^3.8";

/// Folder with the installed tools.
pub(crate) struct Tools {
    folder: PathBuf,
}

impl Tools {
    /// Installs the packages from PyPI, unless this list is installed already.
    pub(crate) fn install() -> Result<Self> {
        let folder = root().join("out/tools");
        let (list, wanted) = (folder.join("requirements"), REQUIREMENTS.join("\n"));
        if !fs::read_to_string(&list).is_ok_and(|installed| installed == wanted) {
            let environment = folder.join("python").display().to_string();
            run("python3", &["-m", "venv", "--clear", &environment], &[])?;
            let pip = format!("{environment}/bin/pip");
            let quiet = ["install", "--quiet", "--disable-pip-version-check"];
            run(&pip, &[&quiet[..], &REQUIREMENTS].concat(), &[])?;
            fs::write(list, wanted)?;
        }
        Ok(Self { folder })
    }

    /// Returns the path of a program from PyPI.
    pub(crate) fn program(&self, name: &str) -> String {
        self.folder.join("python/bin").join(name).display().to_string()
    }

    /// Returns a search path that begins with the folders of the tools.
    pub(crate) fn search_path(&self) -> String {
        let own = ["python/bin", "cargo/bin"].map(|name| self.folder.join(name));
        let inherited = env::var_os("PATH").unwrap_or_default();
        let folders = own.into_iter().chain(env::split_paths(&inherited));
        env::join_paths(folders).unwrap_or(inherited).to_string_lossy().into_owned()
    }

    /// Installs cargo-deb, which takes some minutes, unless cargo has it.
    pub(crate) fn install_cargo_deb(&self) -> Result<()> {
        let folder = self.folder.join("cargo");
        if folder.join("bin/cargo-deb").exists() || output("cargo", &["deb", "--version"]).is_ok() {
            return Ok(());
        }
        let folder = folder.display().to_string();
        run("cargo", &["install", "--quiet", "--locked", "--root", &folder, CARGO_DEB], &[])
    }

    /// Builds a stub of libgcc_s, the unwinder of systems with glibc, to link with on an
    /// architecture.
    pub(crate) fn unwinder(&self, architecture: Architecture) -> Result<PathBuf> {
        let folder = self.folder.join(format!("unwinder-{}", architecture.name()));
        fs::create_dir_all(&folder)?;
        let library = folder.join("libgcc_s.so.1");
        let sources = root().join("xtask/release");
        let target = format!("{}-linux-gnu.{GLIBC}", architecture.name());
        let symbols = format!("-Wl,--version-script={}", sources.join("libgcc_s.map").display());
        let source = sources.join("libgcc_s.c").display().to_string();
        let output = library.display().to_string();
        let zig = ["-m", "ziglang", "cc", "-target", &target, "-shared", "-nostdlib"];
        let linked = ["-Wl,-soname,libgcc_s.so.1", &symbols, "-o", &output, &source];
        run(&self.program("python3"), &[&zig[..], &linked].concat(), &[])?;
        Ok(library)
    }

    /// Returns the environment variables of a build for an architecture.
    ///
    /// # Errors
    /// Neither cargo's compiler nor a Debian package has the standard library of the architecture.
    pub(crate) fn environment(
        &self,
        architecture: Architecture,
        target_dir: &str,
    ) -> Result<BuildEnvironment> {
        let mut variables = vec![
            ("PATH", self.search_path()),
            ("CARGO_TARGET_DIR", root().join(target_dir).display().to_string()),
        ];
        if !is_compiled_for(architecture)? {
            let folder = self.folder.join(format!("rust-{}", architecture.name()));
            variables.push(("RUSTC", debian_compiler(&folder, architecture)?));
        }
        Ok(BuildEnvironment(variables))
    }
}

/// Environment variables of a build.
pub(crate) struct BuildEnvironment(Vec<(&'static str, String)>);

impl BuildEnvironment {
    pub(crate) fn with(mut self, name: &'static str, value: &Path) -> Self {
        self.0.push((name, value.display().to_string()));
        self
    }

    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Result<()> {
        let variables: Vec<_> = self.0.iter().map(|(name, value)| (*name, &**value)).collect();
        run(program, arguments, &variables)
    }
}

/// Whether cargo's compiler has the standard library of an architecture.
fn is_compiled_for(architecture: Architecture) -> Result<bool> {
    let library = ["--print", "target-libdir", "--target", &architecture.triple()];
    Ok(Path::new(output("rustc", &library)?.trim()).exists())
}

/// Installs Debian's compiler, with the standard library of another architecture, into a folder.
fn debian_compiler(folder: &Path, architecture: Architecture) -> Result<String> {
    let compiler = folder.join("rustc").display().to_string();
    if !Path::new(&compiler).exists() {
        let script = root().join("xtask/release/debian-rust.sh").display().to_string();
        let folder = folder.display().to_string();
        run("bash", &[&script, &folder, architecture.debian()], &[]).with_context(|| {
            let triple = architecture.triple();
            format!("no Rust compiles for {triple} here; rustup does: rustup target add {triple}")
        })?;
    }
    Ok(compiler)
}
