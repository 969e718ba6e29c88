//! Level of the log, which may be changed at run time.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tracing::level_filters::LevelFilter;

/// `tracing` target of changes that clients of the management socket make.
pub(crate) const AUDIT: &str = "audit";

/// Log of the process, if it has one that can be changed.
static LOG: OnceLock<LogLevel> = OnceLock::new();

/// Sets the filter of the log, in the notation of `--log`.
type SetFilter = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// Filter of a log: that of the start, and the changes since.
pub(crate) struct LogLevel {
    set_filter: SetFilter,
    state: Mutex<LogState>,
}

struct LogState {
    /// Filter of the start, or a level that was set later.
    base: String,
    level: LevelFilter,
    /// Modules whose debug lines are written as well.
    debugged: BTreeSet<&'static str>,
}

impl LogLevel {
    /// Registers the filter of the process's log. Only the first call counts.
    pub(crate) fn register(base: String, level: LevelFilter, set_filter: SetFilter) {
        let state = Mutex::new(LogState { base, level, debugged: BTreeSet::new() });
        let _ = LOG.set(Self { set_filter, state });
    }

    /// Log of the process; `None` if another program writes it.
    pub(crate) fn get() -> Option<&'static Self> {
        LOG.get()
    }

    /// Level that was set last, or the most detailed one of the filter at the start.
    pub(crate) fn level(&self) -> LevelFilter {
        self.state().level
    }

    /// Writes lines of this level and above, whatever the filter was. The audit log is not
    /// affected: a client that may change the level cannot hide other changes.
    ///
    /// # Errors
    /// The log does not accept the filter.
    pub(crate) fn set_level(&self, level: LevelFilter) -> Result<(), String> {
        let mut state = self.state();
        (state.base, state.level) = (format!("{level},{AUDIT}=info"), level);
        (self.set_filter)(&state.filter())
    }

    /// Whether debug lines of a module are asked for.
    pub(crate) fn is_debugged(&self, module: &str) -> bool {
        self.state().debugged.contains(module)
    }

    /// Writes debug lines of a module, or only those that the level has.
    ///
    /// # Errors
    /// The log does not accept the filter.
    pub(crate) fn set_debugged(&self, module: &'static str, wanted: bool) -> Result<(), String> {
        let mut state = self.state();
        match wanted {
            true => state.debugged.insert(module),
            false => state.debugged.remove(module),
        };
        (self.set_filter)(&state.filter())
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogState {
    fn filter(&self) -> String {
        let debugged = self.debugged.iter().map(|module| format!("{module}=debug"));
        [self.base.clone()].into_iter().chain(debugged).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn levels_and_modules_make_one_filter() {
        let filters = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&filters);
        let log = LogLevel {
            set_filter: Box::new(move |filter| {
                seen.lock().expect("no panic").push(filter.to_owned());
                Ok(())
            }),
            state: Mutex::new(LogState {
                base: "warn,rdma=info".into(),
                level: LevelFilter::WARN,
                debugged: BTreeSet::new(),
            }),
        };
        log.set_debugged("roce_proto", true).expect("taken");
        log.set_level(LevelFilter::INFO).expect("taken");
        assert!(log.is_debugged("roce_proto") && !log.is_debugged("rdma"));
        log.set_debugged("roce_proto", false).expect("taken");
        let expected = [
            "warn,rdma=info,roce_proto=debug",
            "info,audit=info,roce_proto=debug",
            "info,audit=info",
        ];
        assert_eq!(*filters.lock().expect("no panic"), expected);
        assert_eq!(log.level(), LevelFilter::INFO);
    }
}
