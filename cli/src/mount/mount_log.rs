//! The log of a mount, which tells an operator why reads wait or fail.

use std::path::Path;

use anyhow::{Context as _, Result};
use feedrail_target::daemon::{LogOutput, ProcessLog};

/// Filter unless more is asked for: trouble, and the beginning and end of a mount and of a target's
/// absence.
const DEFAULT: &str = "warn,feedrail_mount=info";

/// Starts the log of this process: in a file if one is named; else on standard error, or, in the
/// background, where the machine keeps its logs. `None` if there is no such place.
pub(super) fn start(
    verbose: u8,
    file: Option<&Path>,
    is_in_background: bool,
) -> Result<Option<ProcessLog>> {
    let filter = crate::log_filter(DEFAULT, verbose).context("RUST_LOG")?;
    let output = match file {
        Some(path) => {
            let opened = LogOutput::file(path);
            Some(opened.with_context(|| format!("cannot write to {}", path.display()))?)
        }
        None if is_in_background => LogOutput::of_background(),
        None => Some(LogOutput::standard_error()),
    };
    let Some(output) = output else { return Ok(None) };
    let log = ProcessLog::start("feedrail-mount", &filter, output)?;
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    Ok(Some(log))
}
