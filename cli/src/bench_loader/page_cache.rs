//! Measures how much of the local files is in the page cache, and fills or empties it.
#![expect(unsafe_code, reason = "asks the kernel about a mapping")]

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use clap::ValueEnum;
use rustix::fs::{Access, Advice, access, fadvise};
use rustix::process::geteuid;

use super::local_files::LocalFiles;
use crate::file_map::FileMap;
use crate::interrupt::Interrupt;

/// Pages of a file that one call of mincore(2) covers.
const WINDOW_PAGES: usize = 1 << 16;
/// Tolerated percentage of pages that are in the page cache before a cold turn, or are missing
/// before a warm one.
const STRAY_PERCENT: f64 = 1.0;

/// State of the page cache before a turn, as a value of `--caches`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum CacheState {
    /// The files were read before
    Warm,
    /// The files were dropped from the page cache before
    Cold,
    /// Not used: reads with O_DIRECT of whole blocks of 4 KiB
    Direct,
}

/// Number of pages of the files, and how many of them the page cache contains.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Residency {
    pub(super) resident_pages: u64,
    pub(super) pages: u64,
}

impl Residency {
    pub(super) fn percent(self) -> f64 {
        if self.pages == 0 { 0.0 } else { self.resident_pages as f64 * 100.0 / self.pages as f64 }
    }

    pub(crate) fn resident_bytes(self) -> u64 {
        self.resident_pages * rustix::param::page_size() as u64
    }
}

impl CacheState {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Cold => "cold",
            Self::Direct => "direct",
        }
    }

    /// Brings the page cache into this state as far as the kernel allows, and measures the result.
    /// `None` if the kernel does not report it.
    pub(super) fn prepare(
        self,
        files: &LocalFiles,
        interrupt: &Interrupt,
    ) -> Result<Option<Residency>> {
        match self {
            Self::Warm => warm(files, interrupt)?,
            Self::Cold | Self::Direct => cool(files)?,
        }
        residency(files)
    }

    /// Returns why the figures of a turn are not those of this state, given the residency that was
    /// measured before the turn.
    pub(super) fn warning(self, found: Option<Residency>) -> Option<String> {
        let percent = found.map(Residency::percent);
        match (self, percent) {
            (Self::Direct, _) => None,
            (_, None) => Some("the kernel does not tell what the page cache had".to_owned()),
            (Self::Cold, Some(percent)) if percent > STRAY_PERCENT => Some(format!(
                "not cold: {percent:.0} % of the files stayed in the page cache when they were dropped from it, because \
                 a process has them mapped or their file system is in memory"
            )),
            (Self::Warm, Some(percent)) if percent < 100.0 - STRAY_PERCENT => Some(format!(
                "not warm: {percent:.0} % of the files were in the page cache after they were read, as if they did not \
                 fit into it"
            )),
            (_, Some(_)) => None,
        }
    }
}

/// Drops files from the page cache as far as the kernel allows, and measures what stayed. `None` if
/// the kernel does not report it.
pub(crate) fn drop_from_page_cache(paths: &[PathBuf]) -> Result<Option<Residency>> {
    let bytes_of = |path: &PathBuf| Ok(path.metadata()?.len());
    let bytes = paths.iter().map(bytes_of).collect::<Result<Vec<u64>>>()?;
    let files = LocalFiles::new(paths, &bytes)?;
    cool(&files)?;
    residency(&files)
}

/// Reads all files, unless every page is in the page cache already.
fn warm(files: &LocalFiles, interrupt: &Interrupt) -> Result<()> {
    if residency(files)?.is_some_and(|found| found.resident_pages == found.pages) {
        return Ok(());
    }
    let mut room = vec![0; 1 << 20];
    for path in files.paths() {
        let about = || format!("cannot read {}", path.display());
        let mut file = File::open(path).with_context(about)?;
        while file.read(&mut room).with_context(about)? > 0 {
            interrupt.check()?;
        }
    }
    Ok(())
}

/// Drops the files from the page cache. Dirty pages are written first; pages that a process has
/// mapped stay.
fn cool(files: &LocalFiles) -> Result<()> {
    for file in files.open()? {
        // Where the file system supports neither call, the pages stay, which `residency` finds
        // next.
        let _ = file.sync_all();
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
    }
    Ok(())
}

fn residency(files: &LocalFiles) -> Result<Option<Residency>> {
    let mut total = Residency::default();
    for path in files.paths() {
        let about = || format!("cannot ask for the page cache of {}", path.display());
        if !is_told(path).with_context(about)? {
            return Ok(None);
        }
        let found = file_residency(path).with_context(about)?;
        total.pages += found.pages;
        total.resident_pages += found.resident_pages;
    }
    Ok(Some(total))
}

/// Returns whether the kernel reports the residency of a file. Where the caller neither owns the
/// file nor may write to it, the kernel reports every page as resident.
fn is_told(path: &Path) -> io::Result<bool> {
    let may_write = access(path, Access::WRITE_OK).is_ok();
    Ok(may_write || path.metadata()?.uid() == geteuid().as_raw())
}

fn file_residency(path: &Path) -> Result<Residency> {
    let page = rustix::param::page_size();
    let map = FileMap::open(path)?;
    let mut found = Residency::default();
    let mut flags = vec![0_u8; WINDOW_PAGES];
    for start in (0..map.bytes()).step_by(WINDOW_PAGES * page) {
        let bytes = (map.bytes() - start).min(WINDOW_PAGES * page);
        let pages = bytes.div_ceil(page);
        let address = map.base().wrapping_add(start).cast_mut().cast();
        // SAFETY: within the mapping, from the beginning of a page on, and there is a flag for
        // each page.
        let result = unsafe { libc::mincore(address, bytes, flags.as_mut_ptr()) };
        if result != 0 {
            return Err(anyhow!(io::Error::last_os_error()));
        }
        found.pages += pages as u64;
        let resident = flags[..pages].iter().filter(|flag| **flag & 1 == 1).count();
        found.resident_pages += resident as u64;
    }
    Ok(found)
}
