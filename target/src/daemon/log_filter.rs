//! Log filter that rejects misspelt levels.

use std::fmt;
use std::str::FromStr;

use tracing_subscriber::filter::{LevelFilter, Targets};

/// Log filter: a level, or levels by module, as in `warn,feedrail_target::controller=debug`.
///
/// `Targets` takes a word that is no level as the name of a module, so that a misspelt level would
/// silence all others. Here a word without `=` must be a level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(String);

/// Description of why a text is not a log filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilterError(String);

impl fmt::Display for LogFilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}; use error, warn, info, debug, trace or off, or MODULE=LEVEL, separated by commas",
            self.0
        )
    }
}

impl std::error::Error for LogFilterError {}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for LogFilter {
    type Err = LogFilterError;

    fn from_str(text: &str) -> Result<Self, LogFilterError> {
        let parts: Vec<_> =
            text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
        for part in &parts {
            if part.contains('[') {
                return Err(LogFilterError(format!("`{part}` names spans, which the log has not")));
            }
            if !part.contains('=') && part.parse::<LevelFilter>().is_err() {
                return Err(LogFilterError(format!("`{part}` is not a log level")));
            }
        }
        let text = parts.join(",");
        match text.parse::<Targets>() {
            Ok(_) => Ok(Self(text)),
            Err(error) => Err(LogFilterError(format!("`{text}` is not a log filter: {error}"))),
        }
    }
}

impl LogFilter {
    /// Returns the filter for a `tracing` subscriber.
    pub fn to_filter(&self) -> Targets {
        // `from_str` has parsed the same text.
        self.0.parse().unwrap_or_default()
    }
}

/// Whether log lines may have colours: `NO_COLOR` is unset or empty (no-color.org).
pub fn colours_are_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn levels_and_modules_are_taken() {
        for text in ["info", "WARN", "off", "3", "warn, feedrail_target=debug", "rdma=trace,", ""] {
            assert!(text.parse::<LogFilter>().is_ok(), "{text}");
        }
    }

    #[test]
    fn a_module_has_a_level_of_its_own() {
        let filter = "warn,feedrail_target=debug".parse::<LogFilter>().unwrap().to_filter();
        assert!(filter.would_enable("feedrail_target::controller", &Level::DEBUG));
        assert!(!filter.would_enable("rdma", &Level::INFO));
        assert!(filter.would_enable("rdma", &Level::WARN));
        let errors = "".parse::<LogFilter>().unwrap().to_filter();
        assert!(errors.would_enable("rdma", &Level::ERROR));
        assert!(!errors.would_enable("rdma", &Level::WARN));
    }

    #[test]
    fn a_misspelt_level_is_an_error() {
        for text in ["wran", "info,wran", "feedrail_target=wran", "verbose", "6", "rdma[qp]=trace"]
        {
            let error = text.parse::<LogFilter>().expect_err(text).to_string();
            assert!(error.contains("error, warn, info"), "{error}");
        }
    }
}
