//! `cargo xtask release`: builds, tries and publishes the artefacts of a release, on the
//! maintainer's machine. `docs/releasing.md` describes its use.

pub(crate) mod architecture;
mod archive;
mod artefact;
mod crates;
mod image;
mod notes;
pub(crate) mod programs;
mod publish;
mod tarball;
mod tools;
mod trial;
mod wheel;

pub(crate) mod version;

use std::cell::OnceCell;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::source::Tree;
use crate::{deb, output, root};
use architecture::Architecture;
use artefact::Artefact;
use publish::Destination;
use tools::Tools;

/// Options of `cargo xtask release`.
#[derive(Args)]
pub(crate) struct Options {
    /// Make only these; all without a name.
    #[arg(value_enum)]
    kinds: Vec<ArtefactKind>,
    /// Make them for these architectures only.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME")]
    architecture: Vec<Architecture>,
    /// Make nothing: what lies in out/release-files is tried or published.
    #[arg(long)]
    keep: bool,
    /// Then try each artefact in small Debian systems without a compiler and a network; needs root.
    #[arg(long = "try")]
    tried: bool,
    #[command(flatten)]
    destination: Destination,
    /// The format of the tables.
    #[arg(short = 'o', long, value_enum, default_value_t)]
    output_format: TableFormat,
}

/// Format in which tables are printed.
#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum TableFormat {
    #[default]
    Normal,
    /// A line for each row.
    Json,
}

/// Kind of artefact. Kinds are built in this order.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ArtefactKind {
    /// Programs with their unit, manual pages, completions, examples and licences.
    Tarball,
    /// The Python package for Linux with glibc 2.28.
    Wheel,
    /// The Python package's sources.
    Sdist,
    /// Debian packages of the target and the command line.
    Deb,
    /// The container image, as an OCI archive.
    Image,
    /// The bill of materials, in CycloneDX.
    Sbom,
    /// The notes, cut from CHANGELOG.md.
    Notes,
}

/// Version, folder and architectures of a release's files.
pub(crate) struct ReleaseFiles {
    version: String,
    folder: PathBuf,
    architectures: Vec<Architecture>,
    /// Commit time in seconds since 1970, which all files get as their modification time.
    seconds: u64,
}

impl ReleaseFiles {
    /// Returns the files in the folder whose names end with `end`.
    fn files(&self, end: &str) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(end)) {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }
}

/// Builds, tries and publishes what the options select.
pub(crate) fn main(options: &Options) -> Result<()> {
    let complaints = version::complaints(&Tree::default())?;
    ensure!(complaints.is_empty(), "the version differs:\n{}", complaints.join("\n"));
    let folder = root().join("out/release-files");
    fs::create_dir_all(&folder)?;
    let architectures = match options.architecture.as_slice() {
        [] => Architecture::ALL.to_vec(),
        some => some.to_vec(),
    };
    let release = ReleaseFiles {
        version: version::of(&Tree::default())?,
        folder,
        architectures,
        seconds: output("git", &["log", "-1", "--format=%ct"])?.trim().parse()?,
    };
    let tools = Tools::install()?;
    if !options.keep {
        let wanted =
            |kind: &&ArtefactKind| options.kinds.is_empty() || options.kinds.contains(kind);
        let maker = Maker { release: &release, tools: &tools, described: OnceCell::new() };
        let mut artefacts = Vec::new();
        for kind in ArtefactKind::value_variants().iter().filter(wanted) {
            artefacts.extend(maker.make(*kind)?);
        }
        artefacts.extend(artefact::made_by(&release.folder, || write_sums(&release))?);
        options.output_format.print_artefacts(&artefacts);
    }
    if options.tried {
        let trials = trial::all(&release, &tools)?;
        options.output_format.print_trials(&trials);
        ensure!(trials.iter().all(trial::TrialResult::passed), "a trial failed");
    }
    if options.destination.is_wanted() {
        options.destination.publish(&release, &tools)?;
    }
    Ok(())
}

/// Builder of artefacts, which prepares common parts only once.
struct Maker<'a> {
    release: &'a ReleaseFiles,
    tools: &'a Tools,
    described: OnceCell<Described>,
}

/// Completions and manual pages of the programs, and licences of the crates in them.
struct Described {
    completions: PathBuf,
    manual: PathBuf,
    licences: String,
}

impl Maker<'_> {
    fn make(&self, kind: ArtefactKind) -> Result<Vec<Artefact>> {
        let ReleaseFiles { folder, architectures, .. } = self.release;
        let each = |make: fn(&Self, Architecture) -> Result<()>| {
            let mut artefacts = Vec::new();
            for &architecture in architectures {
                artefacts.extend(artefact::made_by(folder, || make(self, architecture))?);
            }
            Ok(artefacts)
        };
        match kind {
            ArtefactKind::Tarball => each(Self::tarball),
            ArtefactKind::Wheel => each(|maker, architecture| {
                wheel::build(maker.tools, architecture, &maker.release.folder)
            }),
            ArtefactKind::Deb => each(Self::packages),
            ArtefactKind::Sdist => {
                artefact::made_by(folder, || wheel::write_sources(self.tools, folder))
            }
            ArtefactKind::Image => artefact::made_by(folder, || self.image()),
            ArtefactKind::Sbom => artefact::made_by(folder, || self.bill()),
            ArtefactKind::Notes => artefact::made_by(folder, || self.notes()),
        }
    }

    fn tarball(&self, architecture: Architecture) -> Result<()> {
        let name = format!("feedrail-{}-{}", self.release.version, architecture.triple());
        let Described { completions, manual, licences } = self.described()?;
        let programs = &programs::build(self.tools, architecture)?;
        let parts = tarball::Parts { programs, completions, manual, licences };
        let archive = tarball::archive(&name, &parts, self.release.seconds)?;
        self.write(&format!("{name}.tar.gz"), &archive.to_tar_gz()?)
    }

    fn packages(&self, architecture: Architecture) -> Result<()> {
        self.tools.install_cargo_deb()?;
        self.described()?;
        programs::build(self.tools, architecture)?;
        let built = deb::Built::Crossed(architecture);
        deb::package("1", &self.release.folder, &built, &self.tools.search_path())
    }

    fn image(&self) -> Result<()> {
        let ReleaseFiles { version, architectures, seconds, .. } = self.release;
        let programs = architectures
            .iter()
            .map(|&architecture| Ok((architecture, programs::build(self.tools, architecture)?)));
        let programs = programs.collect::<Result<Vec<_>>>()?;
        let built: Vec<_> = programs.iter().map(|(at, path)| (*at, path.as_path())).collect();
        let archive = image::Image { version, seconds: *seconds }.archive(&built)?;
        self.write(&format!("feedrail-{version}.oci.tar"), &archive.to_tar()?)
    }

    fn bill(&self) -> Result<()> {
        let version = &self.release.version;
        let bill = crates::bill(&crates::shipped()?, version)?;
        self.write(&format!("feedrail-{version}.cdx.json"), bill.as_bytes())
    }

    fn notes(&self) -> Result<()> {
        let changelog = fs::read_to_string(root().join("CHANGELOG.md"))?;
        let notes =
            notes::cut(&changelog, &self.release.version).context("CHANGELOG.md is empty")?;
        self.write("RELEASE-NOTES.md", notes.as_bytes())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.release.folder.join(name);
        fs::write(&path, bytes).with_context(|| path.display().to_string())
    }

    /// Generates manual pages and completions with a program of this machine's architecture.
    fn described(&self) -> Result<&Described> {
        if let Some(described) = self.described.get() {
            return Ok(described);
        }
        let here = Architecture::ALL.into_iter().find(|architecture| architecture.runs_here());
        let here = here.context("no program that is released runs on this machine")?;
        let feedrail = programs::build(self.tools, here)?.join("feedrail");
        let folder = deb::extras();
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let (completions, manual) = (folder.join("completions"), folder.join("man"));
        programs::write_completions(&feedrail, &completions)?;
        programs::write_manual(&feedrail, &manual)?;
        let licences = crates::licences(&crates::shipped()?)?;
        Ok(self.described.get_or_init(|| Described { completions, manual, licences }))
    }
}

/// Writes `SHA256SUMS` for all other files in the folder.
fn write_sums(release: &ReleaseFiles) -> Result<()> {
    let mut lines = String::new();
    for path in release.files("")?.iter().filter(|path| !path.ends_with("SHA256SUMS")) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        lines += &format!("{}  {name}\n", image::hex(&fs::read(path)?));
    }
    fs::write(release.folder.join("SHA256SUMS"), lines)?;
    Ok(())
}

impl TableFormat {
    fn print_artefacts(self, artefacts: &[Artefact]) {
        let seconds = |artefact: &Artefact| match artefact.seconds {
            Some(seconds) => seconds.to_string(),
            None => "with it".to_owned(),
        };
        let row = |artefact: &Artefact| {
            [artefact.name(), artefact.bytes.to_string(), seconds(artefact)].to_vec()
        };
        self.print(
            &["artefact", "bytes", "seconds"],
            artefacts.iter().map(|artefact| (row(artefact), artefact.to_json())),
        );
    }

    fn print_trials(self, trials: &[trial::TrialResult]) {
        self.print(
            &["tried", "where", "seconds", "result"],
            trials.iter().map(|trial| (trial.row().to_vec(), trial.to_json())),
        );
    }

    /// Prints rows as a table or as JSON.
    fn print(self, names: &[&str], rows: impl Iterator<Item = (Vec<String>, Value)>) {
        let rows: Vec<_> = rows.collect();
        if self == Self::Json {
            rows.iter().for_each(|(_, row)| println!("{row}"));
            return;
        }
        let columns = rows.iter().map(|(columns, _)| columns.as_slice());
        let heads: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let all: Vec<_> = std::iter::once(heads.as_slice()).chain(columns).collect();
        let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max();
        for row in &all {
            let cells = row.iter().enumerate().map(|(column, cell)| {
                format!("{cell:<width$}", width = width(column).unwrap_or_default())
            });
            println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
        }
    }
}
