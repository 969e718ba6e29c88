//! Confines the daemon: before its first thread, and once it serves.
//!
//! [`prepare`] forks the helper that opens files and lists the paths that are opened without it.
//! The target confines its threads before they serve ([`crate::confinement::enter_thread`]), and
//! [`Confinement::seal`] applies the list of system calls.

mod harm;
mod helper;
mod paths;

pub(super) use self::harm::do_deliberate_harm;
use crate::config::{Config, ConfinementMode, ExportRoots};
use crate::confinement::{self, Answer, Opener};
use crate::reloader::ConfigSource;

/// Reason that the daemon cannot be confined, in one line.
#[derive(Debug, thiserror::Error)]
#[error("confinement: {part}: {reason}; --confinement off starts without it")]
pub(super) struct ConfinementError {
    part: &'static str,
    reason: String,
}

impl ConfinementError {
    fn new(part: &'static str, reason: impl ToString) -> Self {
        Self { part, reason: reason.to_string() }
    }
}

/// Confinement of a process that has prepared it, to be sealed once the target has started.
#[derive(Debug)]
pub(super) struct Confinement {
    mode: ConfinementMode,
    /// Whether the start fails where the kernel cannot confine.
    is_required: bool,
    /// Whether threads may open listed paths only.
    has_paths: bool,
    /// Parts that are not in force, with the reasons.
    missing: Vec<ConfinementError>,
}

/// Prepares the confinement that a configuration asks for. Called while the process has one thread,
/// since it forks. `source` reads the configuration again, when a path is asked for that it did
/// not name at the start.
///
/// # Errors
/// The kernel cannot confine, and the configuration says `on`.
pub(super) fn prepare(
    config: &Config,
    source: Option<ConfigSource>,
) -> Result<Confinement, ConfinementError> {
    let mode = config.confinement.unwrap_or(ConfinementMode::On);
    let is_required = config.confinement == Some(ConfinementMode::On);
    let mut confinement = Confinement { mode, is_required, has_paths: false, missing: Vec::new() };
    if mode != ConfinementMode::On {
        return Ok(confinement);
    }
    let helper = rustix::thread::set_no_new_privs(true)
        .map_err(|error| ConfinementError::new("no_new_privs", error))
        .and_then(|()| {
            helper::start(ExportRoots::of(config), source)
                .map_err(|error| ConfinementError::new("the helper that opens files", error))
        });
    if confinement.note(helper)?.is_some() {
        let paths = confinement.note(paths::of(config))?;
        confinement.has_paths = paths.is_some();
        confinement::prepare_threads(paths);
    }
    Ok(confinement)
}

impl Confinement {
    /// Applies the list of system calls to all threads, and logs what is in force.
    ///
    /// # Errors
    /// The kernel cannot confine, and the configuration says `on`.
    pub(super) fn seal(mut self) -> Result<(), ConfinementError> {
        let answer = match self.mode {
            ConfinementMode::Off => {
                tracing::info!("confinement off");
                return Ok(());
            }
            ConfinementMode::Warn => Answer::Log,
            ConfinementMode::On => Answer::Kill,
        };
        confinement::wait_for_early_threads();
        let capabilities = Opener::id().is_some() && !confinement::has_failed();
        if confinement::has_failed() {
            let error = ConfinementError::new("capabilities and paths", "a thread keeps its own");
            self.note::<()>(Err(error))?;
        }
        let sealed = confinement::restrict_process(answer)
            .map_err(|error| ConfinementError::new("system calls", error));
        let system_calls = self.note(sealed)?.is_some();
        for missing in &self.missing {
            tracing::warn!("{missing}");
        }
        let (paths, opener) = (self.has_paths, Opener::id());
        tracing::info!(system_calls, paths, capabilities, opener, "confinement {}", self.mode);
        Ok(())
    }

    /// Keeps an error for the log, unless the start has to fail with it.
    fn note<T>(
        &mut self,
        result: Result<T, ConfinementError>,
    ) -> Result<Option<T>, ConfinementError> {
        match result {
            Ok(done) => Ok(Some(done)),
            Err(error) if self.is_required => Err(error),
            Err(error) => {
                self.missing.push(error);
                Ok(None)
            }
        }
    }
}
