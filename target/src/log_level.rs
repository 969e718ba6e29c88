//! Log level, which can be changed at run time by methods of the management socket.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tracing::level_filters::LevelFilter;

/// `tracing` target of the audit log: changes by clients of the management socket.
pub(crate) const AUDIT: &str = "audit";

/// Log of the process; empty if another program has installed its own subscriber.
static LOG: OnceLock<LogLevel> = OnceLock::new();

/// Function that sets the filter of the log, in the syntax of `--log`.
type SetFilter = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// Filter of the process's log: that of the start, with later changes.
pub(crate) struct LogLevel {
    set_filter: SetFilter,
    state: Mutex<LogState>,
}

struct LogState {
    /// Filter of the start, or the filter for a level that was set later.
    base: String,
    level: LevelFilter,
    /// Modules whose debug lines are written in addition (SPDK's log flags).
    debugged: BTreeSet<&'static str>,
}

impl LogLevel {
    /// Registers the log of the process. Later calls have no effect.
    pub(crate) fn register(base: String, level: LevelFilter, set_filter: SetFilter) {
        let state = Mutex::new(LogState { base, level, debugged: BTreeSet::new() });
        let _ = LOG.set(Self { set_filter, state });
    }

    /// Log of the process; `None` if another program has installed its own subscriber.
    pub(crate) fn get() -> Option<&'static Self> {
        LOG.get()
    }

    /// Level that was set last; before that, the most detailed level in the filter of the start.
    pub(crate) fn level(&self) -> LevelFilter {
        self.state().level
    }

    /// Sets the level for all modules, in place of the filter of the start. The audit log stays at
    /// `info`, so that a client cannot hide its changes.
    ///
    /// # Errors
    /// The subscriber rejects the filter.
    pub(crate) fn set_level(&self, level: LevelFilter) -> Result<(), String> {
        let mut state = self.state();
        (state.base, state.level) = (format!("{level},{AUDIT}=info"), level);
        (self.set_filter)(&state.filter())
    }

    /// Whether debug lines of a module were switched on by [`LogLevel::set_debugged`].
    pub(crate) fn is_debugged(&self, module: &str) -> bool {
        self.state().debugged.contains(module)
    }

    /// Switches debug lines of a module on, or off to those that the level has.
    ///
    /// # Errors
    /// The subscriber rejects the filter.
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
